"""onnxruntime's opinion of a file that was imported: the same numbers, others, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

import compiler
from compiler.errors import CompilerError
from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.targets.ort.session import OrtExecutor

LARGEST_INPUT = 1_000_000
# Two right answers of a deep float32 network differ by the order of their sums.
TOLERANCE = 1e-3


def disagreement(path: Path, mod: IRModule, params: dict[str, NDArray[Any]]) -> str:
    """What differs from onnxruntime on one random input; "" when nothing does or it has no answer.

    onnxruntime is stricter about some files and has no kernels for others: no answer.
    """
    main = mod["main"]
    assert isinstance(main, Function)
    rng = np.random.default_rng(0)
    feeds: dict[str, NDArray[Any]] = {}
    for param in main.params:
        ty = param.type_annotation
        assert isinstance(ty, TensorType)
        if param.name_hint in params:
            continue
        if ty.num_elements > LARGEST_INPUT:
            return ""
        real = ty.dtype.startswith("float")
        shape = ty.concrete_shape
        value = rng.standard_normal(shape) if real else rng.integers(0, 2, shape)
        feeds[param.name_hint] = np.asarray(value).astype(ty.dtype)
    wanted = _run(path, feeds)
    if wanted is None:
        return ""
    found = compiler.evaluate(mod, {**feeds, **params})
    if len(found) != len(wanted):
        return f"{len(found)} outputs, onnxruntime has {len(wanted)}"
    for index, (ours, theirs) in enumerate(zip(found, wanted)):
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            return f"output {index}: {ours.shape} {ours.dtype}, {theirs.shape} {theirs.dtype}"
        a, b = ours.astype(np.float64), theirs.astype(np.float64)
        scale = float(np.nanmax(np.abs(b), initial=1e-6)) if b.size else 1.0
        if not np.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * scale, equal_nan=True):
            return f"output {index}: values differ"
    return ""


def _run(path: Path, feeds: dict[str, NDArray[Any]]) -> list[NDArray[Any]] | None:
    try:
        session = OrtExecutor(onnx.load(path))
        names = {name for name, _, _ in session.inputs}
        return session.run({k: v for k, v in feeds.items() if k in names})
    except CompilerError:
        return None
