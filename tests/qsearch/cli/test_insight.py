"""``qsearch insight`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import qsearch
from qsearch.cli.main import run

Output = pytest.CaptureFixture[str]


def test_a_table_a_page_and_the_outputs(tmp_path: Path, capfd: Output) -> None:
    path = tmp_path / "insight.html"
    assert run(["insight", "--model", "digits", "--samples", "4", "-o", str(path)]) == 0
    shown = capfd.readouterr().out
    assert "conv_2" in shown
    assert "integer, all layers: SQNR" in shown
    text = path.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert "gemm_0" in text


def test_json_follows_the_configuration(capfd: Output) -> None:
    words = ["insight", "--model", "digits", "--samples", "2", "--json"]
    assert run([*words, "--qconfig", "calibrate_mode=max"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["qconfig"]["calibrate_mode"] == "max"
    assert found["samples"] == 2
    measured = [point for point in found["points"] if point["thresholds"]]
    assert all(point["range_s"] == point["thresholds"]["max"] for point in measured)
    # Pixels and what ReLU leaves have no sign to store.
    assert all(point["levels"] == [0, 255] for point in measured)


@pytest.mark.slow
def test_what_compile_chooses_is_examined(capfd: Output) -> None:
    words = ["insight", "--model", "digits", "--samples", "2", "--json"]
    assert run([*words, "--qconfig", "auto,nbit_weight=6"]) == 0
    found = json.loads(capfd.readouterr().out)["qconfig"]
    kept = qsearch.quantize("digits", qconfig="auto,nbit_weight=6").qconfig
    assert kept is not None
    assert found == json.loads(json.dumps(kept.to_dict()))
    assert found["weight_rounding"] == "sequential"


def test_a_configuration_that_needs_statistics_of_channels(capfd: Output) -> None:
    words = ["insight", "--model", "digits", "--samples", "2", "--json"]
    assert run([*words, "--qconfig", "smooth_alpha=0.5,weight_rounding=corrected"]) == 0
    assert json.loads(capfd.readouterr().out)["qconfig"]["weight_rounding"] == "corrected"


def test_the_configuration_of_a_module_is_taken_from_its_file(
    tmp_path: Path, capfd: Output
) -> None:
    module = tmp_path / "m.qmod"
    assert (
        run(["compile", "--model", "digits", "--qconfig", "nbit_weight=5", "-o", str(module)]) == 0
    )
    capfd.readouterr()
    words = ["insight", "--model", "digits", "--samples", "2", "--json", "--qconfig", str(module)]
    assert run(words) == 0
    assert json.loads(capfd.readouterr().out)["qconfig"]["nbit_weight"] == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "digits", "--samples", "0"], "0 is not in the range"),
        (["--model", "digits", "--calib", "none.npz"], "does not exist"),
        (["--model", "digits", "--samples", "1", "-o", "no/such/folder/x.html"], "--out"),
        (["--model", "none.onnx"], "there is no model"),
    ],
)
def test_unusable_input_exits_with_code_2(words: list[str], says: str, capfd: Output) -> None:
    assert run(["insight", *words]) == 2
    assert says in capfd.readouterr().err
