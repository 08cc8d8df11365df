"""A model is opened in one way by every command, and what was read or computed is remembered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import qsearch
from qsearch.cli.main import run
from tests.qsearch.opening.counted_calls import Calls

RANKED = """
<ir_version: 8, opset_import: ["" : 17]>
m (float[N, 16] x) => (float[N, 8] y)
<int64[1] many = {80}>
{
  [wide] a = MatMul (x, w0)
  r = Relu (a)
  [rank] f, i = TopK (r, many)
  [last] y = MatMul (f, w1)
}
"""
UNCUT = {"partition_conversions": "disabled"}


@pytest.fixture
def ranked(tmp_path: Path) -> Path:
    """A product, an operator without an integer form, a product."""
    model, rng = onnx.parser.parse_model(RANKED), np.random.default_rng(0)
    for name, shape in {"w0": (16, 96), "w1": (80, 8)}.items():
        weight = rng.normal(0, shape[0] ** -0.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, name))
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=rng.normal(size=(32, 16)).astype(np.float32))
    return tmp_path / "m.onnx"


def cuts_of(model: Path, qconfig: dict[str, Any], dry_run: list[str]) -> dict[str, bool]:
    """Which ways to open a model cut it around what stays in float."""
    data = str(model.with_name("x.npz"))
    words = ["--model", str(model), "--calib", data, "--dry-run", "--json", *dry_run]
    plan = run(["launch", *words, "-o", str(model.with_name("run"))])
    assert plan == 0
    made = qsearch.quantize(model, data, qconfig)
    shown = qsearch.insight(model, data, qconfig=qconfig, samples=2)
    found = qsearch.doctor(model, qconfig, calib=data)
    return {
        "compile": made.pipeline is not None,
        "doctor": found.cut is not None,
        "insight": len(shown.insight.layers) == 1,
    }


def test_floats_around_the_core_are_cut_off_by_every_command(
    ranked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(cuts_of(ranked, {}, []).values()) == {True}
    assert '"cut": "none"' not in capsys.readouterr().out


def test_floats_stay_where_the_user_wants_them_by_every_command(
    ranked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(cuts_of(ranked, UNCUT, ["--allow-float"]).values()) == {False}
    assert '"cut": "none"' in capsys.readouterr().out


def test_a_search_imports_diagnoses_and_parses_once(tmp_path: Path) -> None:
    words = ["--model", "digits", "--trials", "1", "--pool", "inline", "-q"]
    with Calls() as calls:
        assert run(["launch", *words, "-o", str(tmp_path / "run")]) == 0
    once = ("imports", "diagnoses", "parses of text", "modules read")
    found = Counter({name: calls.by_caller(name).total() for name in once})
    # A worker reads the float module and the written file.
    assert found == {"imports": 1, "diagnoses": 1, "parses of text": 2, "modules read": 1}
