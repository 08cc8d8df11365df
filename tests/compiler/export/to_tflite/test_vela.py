"""Arm's compiler for Ethos-U takes every operator of a LiteRT file: none is left to the CPU."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import qsearch
from tests.benchmarks.mlperf_tiny import MODELS
from tests.needs import missing

pytestmark = pytest.mark.slow

pytest.importorskip("ethosu", reason=missing("the Python packages of the tests"))


@pytest.fixture(scope="module")
def file_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """``file_of(model, form)``."""

    @functools.cache
    def made(name: str, form: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        model = name if name == "digits" else MODELS[name]()
        calib = None
        if name != "digits":
            shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
            calib = np.random.default_rng(0).normal(size=(8, *shape[1:])).astype(np.float32)
        module = qsearch.quantize(model, calib, f"auto,for={form},weight_rounding=nearest")
        module.save(folder / "m.qmod")
        qsearch.export(folder / "m.qmod", "tflite", folder / "m.tflite")
        return folder / "m.tflite"

    return made


@pytest.mark.parametrize(
    ("core", "form"),
    [("ethos-u55-128", "tflite"), ("ethos-u85-256", "tflite"), ("ethos-u55-128", "tflite-16x8")],
)
@pytest.mark.parametrize("name", ["digits", *MODELS])
def test_no_operator_is_left_to_the_cpu(
    name: str, core: str, form: str, file_of: Callable[[str, str], Path], tmp_path: Path
) -> None:
    program = [sys.executable, "-m", "ethosu.vela", str(file_of(name, form))]
    options = ["--accelerator-config", core, "--output-dir", str(tmp_path)]
    done = subprocess.run([*program, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    left, taken = (
        int(re.findall(rf"{kind} operators = (\d+)", done.stdout)[0]) for kind in ("CPU", "NPU")
    )
    assert (left, taken > 3) == (0, True), done.stdout
    assert list(tmp_path.glob("*_vela.tflite"))
