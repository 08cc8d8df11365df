"""Arm's compiler for Ethos-U takes every operator of a LiteRT file: none is left to the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qsearch
from tests.benchmarks.mlperf_tiny import MODELS
from tests.needs import missing

pytestmark = pytest.mark.slow

pytest.importorskip("ethosu", reason=missing("the Python packages of the tests"))


@pytest.mark.parametrize(
    ("core", "form"),
    [("ethos-u55-128", "tflite"), ("ethos-u85-256", "tflite"), ("ethos-u55-128", "tflite-16x8")],
)
@pytest.mark.parametrize("name", ["digits", *MODELS])
def test_no_operator_is_left_to_the_cpu(name: str, core: str, form: str, tmp_path: Path) -> None:
    model = name if name == "digits" else MODELS[name]()
    calib = None
    if name != "digits":
        shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
        calib = np.random.default_rng(0).normal(size=(8, *shape[1:])).astype(np.float32)
    module = qsearch.quantize(model, calib, f"auto,for={form},weight_rounding=nearest")
    module.save(tmp_path / "m.qmod")
    file = tmp_path / "m.tflite"
    qsearch.export(tmp_path / "m.qmod", "tflite", file)
    program = [sys.executable, "-m", "ethosu.vela", str(file), "--accelerator-config", core]
    done = subprocess.run(
        [*program, "--output-dir", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    left, taken = (
        int(re.findall(rf"{kind} operators = (\d+)", done.stdout)[0]) for kind in ("CPU", "NPU")
    )
    assert (left, taken > 3) == (0, True), done.stdout
    assert list(tmp_path.glob("*_vela.tflite"))
