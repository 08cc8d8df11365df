"""The larger and the smaller of two tensors, limits, extremes and sums along axes.

Max, Min, Clip, ReduceMax and ReduceMin of onnxruntime compare only the low 32 bits of some int64
operands (1.31, machines with AVX-512; seen with tensors of 8 elements and more), while Greater and
Where are right. ReduceSum adds int64 in double.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from compiler.export.to_onnx.emitter import Emitter
from compiler.ir.dataflow import Step

_EXACT_SUMS = 1 << 53
_HALF = 1 << 32


def extreme(e: Emitter, largest: bool, a: str, b: str, dtype: str) -> str:
    """The larger or the smaller one element by element, broadcast."""
    if dtype != "int64":
        return e.node("Max" if largest else "Min", [a, b])
    return e.node("Where", [e.node("Greater" if largest else "Less", [a, b]), a, b])


def extreme_along(
    e: Emitter,
    largest: bool,
    name: str,
    shape: Sequence[int],
    axes: Sequence[int],
    keepdims: bool,
    dtype: str,
) -> str:
    """The largest or smallest element along axes of a tensor of a known shape; at least one axis.

    In int64 the first half of an axis against its last, which may overlap, until one is left.
    """
    if dtype != "int64":
        op_type = "ReduceMax" if largest else "ReduceMin"
        return e.node(op_type, [name], axes=list(axes), keepdims=int(keepdims))
    for axis in axes:
        count = shape[axis]
        while count > 1:
            half = (count + 1) // 2
            first = e.node("Slice", [name, e.ints([0]), e.ints([half]), e.ints([axis])])
            last = e.node("Slice", [name, e.ints([count - half]), e.ints([count]), e.ints([axis])])
            name = extreme(e, largest, first, last, dtype)
            count = half
    if keepdims:
        return name
    return e.node("Squeeze", [name, e.ints(axes)])


def limited(e: Emitter, name: str, low: ArrayLike, high: ArrayLike, dtype: str) -> str:
    """max(min(x, high), low), also where low > high; the limits are numbers, or broadcast."""
    top, bottom = (e.writer.constant(np.asarray(bound, dtype)) for bound in (high, low))
    return extreme(e, True, extreme(e, False, name, top, dtype), bottom, dtype)


def summed_along(
    step: Step, e: Emitter, name: str, axes: Sequence[int], keepdims: bool, reach: int
) -> str:
    """The sum along axes, modulo 2^64; the tensor itself along none.

    onnxruntime adds int64 in double, so what may reach 2^53 is added in halves of 32 bits.

    Args:
        step: a reduction, whose operand has the shape of the tensor.
        name: float32 tensor of whole numbers whose sums are exact, or int64 tensor.
        reach: bound on the magnitude of an element.
    Raises:
        OnnxExportError: too many elements for the halves.
    """

    def summed(part: str) -> str:
        return e.node("ReduceSum", [part, e.ints(axes)], keepdims=int(keepdims))

    # ONNX reads "no axes" as all of them.
    if not axes:
        return name
    count = math.prod(step.args[0].type.concrete_shape[axis] for axis in axes)
    if reach * count <= _EXACT_SUMS:
        return summed(name)
    if _HALF * count > _EXACT_SUMS:
        raise e.refuse(step, f"sums of {count} integers beyond 32 bits")
    base = e.writer.constant(np.asarray(_HALF, np.int64))
    low = e.node("Mod", [name, base], fmod=0)
    high = e.node("Div", [e.node("Sub", [name, low]), base])
    return e.node("Add", [e.node("Mul", [summed(high), base]), summed(low)])
