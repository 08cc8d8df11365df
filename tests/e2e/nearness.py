"""Small networks, quantized by what ``compile`` chooses alone, against their float models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import qsearch
from compiler.runtime.artifact import QModule
from qsearch.modules.verification import verify
from tests.benchmarks.scores import decibels

Draw = Callable[[np.random.Generator], NDArray[np.float64]]
"""Eight samples of the input ``x``, along a new axis in front."""


def quantized(
    model: onnx.ModelProto, draw: Draw, folder: Path, seed: int = 0
) -> tuple[QModule, float]:
    """The module, and dB of its first output on data that calibration has not seen."""
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    rng = np.random.default_rng(seed)
    calib, judged = (draw(rng).astype(np.float32) for _ in range(2))
    module = qsearch.quantize(path, {"x": calib})
    session = onnxruntime.InferenceSession(path)
    wanted = np.stack([session.run(None, {"x": one[None]})[0] for one in judged])
    found = np.stack([module.run({"x": one[None]})[0] for one in judged])
    noise = float(np.square(np.subtract(found, wanted, dtype=np.float64)).sum())
    return module, decibels(float(np.square(wanted, dtype=np.float64).sum()), noise)


def assert_proved(module: QModule, folder: Path) -> None:
    """No input overflows, and all forms give the same bits."""
    module.save(folder / "m.qmod")
    found = verify(folder / "m.qmod")
    assert [str(finding) for finding in (*found.findings, *found.record_findings)] == []
    assert found.record == "agrees"
