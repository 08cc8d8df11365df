"""Small networks, quantized by what ``compile`` chooses alone, against their float models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import qsearch
from compiler.runtime.artifact import QModule
from qsearch.commands.verification import verify
from tests.benchmarks.scores import decibels

Draw = Callable[[np.random.Generator], Mapping[str, NDArray[np.float64]]]
"""Some samples of every input, along axis 0."""


def quantized(
    model: onnx.ModelProto, draw: Draw, folder: Path, seed: int = 0
) -> tuple[QModule, float]:
    """The module, and dB of its first output on data that calibration has not seen."""
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    rng = np.random.default_rng(seed)
    calib, judged = ({k: v.astype(np.float32) for k, v in draw(rng).items()} for _ in range(2))
    module = qsearch.quantize(path, calib)
    session = onnxruntime.InferenceSession(path)
    count = len(next(iter(judged.values())))
    samples = [{name: held[k : k + 1] for name, held in judged.items()} for k in range(count)]
    wanted = np.stack([session.run(None, one)[0] for one in samples])
    found = np.stack([module.run(one)[0] for one in samples])
    noise = float(np.square(np.subtract(found, wanted, dtype=np.float64)).sum())
    return module, decibels(float(np.square(wanted, dtype=np.float64).sum()), noise)


def assert_proved(module: QModule, folder: Path) -> None:
    """No input overflows, and all forms give the same bits."""
    module.save(folder / "m.qmod")
    found = verify(folder / "m.qmod")
    assert [str(finding) for finding in (*found.findings, *found.record_findings)] == []
    assert found.record == "agrees"
