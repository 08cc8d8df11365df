"""Distance of a module from its float model, for ``compile`` and ``launch`` alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import qsearch
from qsearch.cli.main import run


def _layer(tmp_path: Path, outputs: int = 1) -> tuple[str, str]:
    """Two dense layers around 3000, the difference from it behind them; and data without labels."""
    rng = np.random.default_rng(3)
    weight = rng.normal(size=(16, 8)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["h"]),
        helper.make_node("Sub", ["h", "b"], ["y"]),
        helper.make_node("Mul", ["h", "two"], ["z"]),
    ]
    names = ["y", "z"][:outputs]
    graph = helper.make_graph(
        nodes[: 4 + outputs],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 16])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 8]) for name in names],
        [
            numpy_helper.from_array(weight, "w"),
            numpy_helper.from_array(np.full(8, 3e3, np.float32), "b"),
            numpy_helper.from_array(np.eye(8, dtype=np.float32), "v"),
            numpy_helper.from_array(np.float32(2), "two"),
        ],
    )
    model, data = str(tmp_path / "layer.onnx"), str(tmp_path / "x.npz")
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    np.savez(data, x=rng.normal(size=(32, 16)).astype(np.float32))
    return model, data


def test_outputs_behind_the_float_part_are_compared(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = _layer(tmp_path)
    out = str(tmp_path / "m.qmod")
    # 8 bits keep 3000 ± 4 well, but not the difference from 3000.
    assert run(["compile", model, "--calib", data, "--until", "h", "-o", out]) == 1
    assert "far from float" in capfd.readouterr().err
    assert qsearch.load(out).provenance["closeness"]["sqnr_db"] < 6


def test_the_worst_of_several_outputs_is_named(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = _layer(tmp_path, outputs=2)
    out = str(tmp_path / "m.qmod")
    assert run(["compile", model, "--calib", data, "--until", "h", "-o", out]) == 1
    assert "(output 'y', the worst) on 8 samples" in capfd.readouterr().err


def test_a_search_without_labels_ends_with_1_where_its_best_is_far_from_float(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = _layer(tmp_path)
    monkeypatch.chdir(tmp_path)
    cut = ["--until", "h", "--metric", "sqnr", "--trials", "2", "--pool", "inline"]
    cut += ["--max-drop", "100%"]
    assert run(["launch", "--model", model, "--calib", data, *cut]) == 1
    said = capfd.readouterr().out
    assert "far from float" in said
    assert "target    missed" not in said, "no limit was missed"
    assert (tmp_path / "runs" / "layer" / "best.qmod").exists()


def test_a_recording_that_begins_with_silence_is_judged_by_all_of_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, data = _layer(tmp_path)
    rows = np.random.default_rng(4).normal(size=(64, 16)).astype(np.float32)
    rows[:16] *= 1e-3
    np.savez(data, x=rows)
    assert run(["compile", model, "--calib", data, "--until", "m", "-o", str(tmp_path / "m")]) == 0
    assert "close to float" in capfd.readouterr().err
