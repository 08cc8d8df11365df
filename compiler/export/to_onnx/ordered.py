"""The larger and the smaller of two tensors, and limits.

Max, Min and Clip of onnxruntime compare only the low 32 bits of some int64 operands (1.31, machines
with AVX-512; seen with tensors of 8 elements and more), while Greater and Where are right.
"""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.emitter import Emitter


def larger(e: Emitter, a: str, b: str, dtype: str) -> str:
    """Element by element, broadcast."""
    if dtype != "int64":
        return e.node("Max", [a, b])
    return e.node("Where", [e.node("Greater", [a, b]), a, b])


def smaller(e: Emitter, a: str, b: str, dtype: str) -> str:
    """Element by element, broadcast."""
    if dtype != "int64":
        return e.node("Min", [a, b])
    return e.node("Where", [e.node("Less", [a, b]), a, b])


def limited(e: Emitter, name: str, low: int, high: int, dtype: str) -> str:
    """max(min(x, high), low), also where low > high."""
    top, bottom = (e.writer.constant(np.asarray(bound, dtype)) for bound in (high, low))
    return larger(e, smaller(e, name, top, dtype), bottom, dtype)
