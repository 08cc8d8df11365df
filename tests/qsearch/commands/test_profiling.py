"""``qsearch profile``: figures of layers that add up, beside onnxruntime, as table, JSON, page."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.errors import CodegenError, CompilerError
from qsearch.cli.main import run
from qsearch.commands.profiling import ModuleProfile, profile
from qsearch.commands.quantization import quantize
from qsearch.exit_codes import EXIT_BAD_INPUT, EXIT_OK
from tests.compiler.runtime.test_interface import half_model


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("profile") / "digits.qmod"
    quantize("digits").save(path)
    return path


@pytest.fixture(scope="module")
def figures(digits: Path) -> ModuleProfile:
    return profile(digits, "digits", rounds=2)


def test_every_layer_has_its_products_and_its_share(figures: ModuleProfile) -> None:
    macs = {layer.layer: layer.macs for layer in figures.layers}
    # 8x8x16x9, 8x8x24x144, 4x4x32x216 and 32x10 products.
    assert [macs[n] for n in ("conv_0", "conv_1", "conv_2", "gemm_0")] == [
        9216,
        221184,
        110592,
        320,
    ]
    assert figures.macs == sum(macs.values())
    assert sum(figures.share(layer) for layer in figures.layers) == pytest.approx(1)
    assert all(layer.ms > 0 and layer.bytes > 0 for layer in figures.layers)


def test_onnxruntime_runs_beside_it_in_float_and_in_8_bits(figures: ModuleProfile) -> None:
    assert [name.split(" (")[0] for name in figures.peers] == [
        "onnxruntime float",
        "onnxruntime int8",
    ]
    assert all(of["ratio"] > 0 for of in figures.peers.values())
    timed = {layer.layer for layer in figures.layers if layer.float_ms is not None}
    assert {"conv_0", "conv_1", "conv_2", "gemm_0"} <= timed


def test_a_core_adds_up_more_than_any_layer_does(figures: ModuleProfile) -> None:
    assert figures.peak_macs_per_s is not None
    assert figures.peak_macs_per_s > 1e8
    shares = [figures.of_peak(layer.macs, layer.ms) for layer in figures.layers]
    assert all(share is None or 0 < share < 1.5 for share in shares)


def test_a_model_of_float16_runs_beside_its_module(tmp_path: Path) -> None:
    onnx.save(half_model(), tmp_path / "m.onnx")
    calib = np.random.default_rng(1).standard_normal((8, 4)).astype("float32")
    quantize(tmp_path / "m.onnx", {"pixels": calib}).save(tmp_path / "m.qmod")
    found = profile(tmp_path / "m.qmod", tmp_path / "m.onnx", rounds=1)
    assert found.peers["onnxruntime float"]["ratio"] > 0


def test_the_page_loads_nothing_and_names_every_layer(figures: ModuleProfile) -> None:
    page = figures.html()
    assert " src=" not in page
    assert "default-src 'none'" in page
    for layer in figures.layers:
        assert layer.layer in page
    assert figures.isa in page


def test_the_command_prints_json_and_writes_a_page(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "p.html"
    assert run(["profile", str(digits), "--rounds", "1", "--json", "-o", str(page)]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)
    assert found["peers"] == {}
    assert found["macs"] == sum(layer["macs"] for layer in found["layers"])
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_another_model_is_refused(digits: Path, shared_data: Path) -> None:
    with pytest.raises(CompilerError, match=r"input|28"):
        profile(digits, shared_data / "fashion_resnet.onnx", rounds=1)


def test_a_file_that_is_no_module_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.qmod"
    path.write_bytes(b"no module")
    assert run(["profile", str(path)]) == EXIT_BAD_INPUT
    assert "x.qmod" in capsys.readouterr().err


def test_without_kernels_the_nodes_of_onnxruntime_are_listed(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise CodegenError("no C compiler found", fix="install one")

    monkeypatch.setattr("compiler.targets.engine.executor.load_library", refused)
    found = profile(digits, "digits", rounds=1)
    assert found.peak_macs_per_s is None
    assert found.ms > 0
    assert len(found.layers) >= 4
    assert "no C compiler found" in found.notes[0]
    assert "install one" in found.notes[0]
    assert "onnxruntime" in found.html()
