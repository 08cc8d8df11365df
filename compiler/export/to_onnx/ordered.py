"""The larger and the smaller of two tensors, limits, and extremes along axes.

Max, Min, Clip, ReduceMax and ReduceMin of onnxruntime compare only the low 32 bits of some int64
operands (1.31, machines with AVX-512; seen with tensors of 8 elements and more), while Greater and
Where are right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


def largest_along(
    e: Emitter, name: str, shape: Sequence[int], axes: Sequence[int], keepdims: bool, dtype: str
) -> str:
    """The largest element along axes of a tensor of a known shape; at least one axis."""
    if dtype != "int64":
        return e.node("ReduceMax", [name], axes=list(axes), keepdims=int(keepdims))
    return _halved(e, name, shape, axes, keepdims, larger)


def smallest_along(
    e: Emitter, name: str, shape: Sequence[int], axes: Sequence[int], keepdims: bool, dtype: str
) -> str:
    """The smallest element along axes of a tensor of a known shape; at least one axis."""
    if dtype != "int64":
        return e.node("ReduceMin", [name], axes=list(axes), keepdims=int(keepdims))
    return _halved(e, name, shape, axes, keepdims, smaller)


def _halved(
    e: Emitter,
    name: str,
    shape: Sequence[int],
    axes: Sequence[int],
    keepdims: bool,
    pick: Callable[[Emitter, str, str, str], str],
) -> str:
    """The first half of an axis against its last, until one element is left; they may overlap."""
    for axis in axes:
        count = shape[axis]
        while count > 1:
            half = (count + 1) // 2
            first = e.node("Slice", [name, e.ints([0]), e.ints([half]), e.ints([axis])])
            last = e.node("Slice", [name, e.ints([count - half]), e.ints([count]), e.ints([axis])])
            name, count = pick(e, first, last, "int64"), half
    return name if keepdims else e.node("Squeeze", [name, e.ints(axes)])


def limited(e: Emitter, name: str, low: int, high: int, dtype: str) -> str:
    """max(min(x, high), low), also where low > high."""
    top, bottom = (e.writer.constant(np.asarray(bound, dtype)) for bound in (high, low))
    return larger(e, smaller(e, name, top, dtype), bottom, dtype)
