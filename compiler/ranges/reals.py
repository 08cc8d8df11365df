"""Bounds of float arithmetic around the core, of the very operations that run.

    %0 = multiply(%x, 16f)                 anything: %x may be infinite or NaN
    %1 = clip(round(%0), -127f, 127f)      [-127, 127], with the limits as float32 holds them
    %2 = add(%1, 1.07374e+09f)             [1073741568, 1073742080]: float32 rounds both sums
    cast(%2, dtype="int32")                truncated and saturated; NaN becomes 0

Every operator here is monotone in each operand, and so is rounding to nearest; the operator applied
to the ends of its operands therefore gives the ends of its result. A sum, product or conversion
that is not exact is widened by one unit in the last place, so that an executor may round otherwise.
Any float may be NaN as well, which only a cast to an integer ends.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np

from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import TensorType, is_float
from compiler.ops.number_format import storage_dtype
from compiler.ops.rules.numpy_compute import FNumpyCompute

Number = int | float
Ends = tuple[Number, Number]
"""Lowest and highest value of a tensor: ints of an integer dtype, floats of a float dtype."""

ANYTHING: Ends = (-math.inf, math.inf)

LAYOUT = frozenset(
    (
        "annotation.cast_hint",
        "annotation.stop_fusion",
        "expand_dims",
        "reshape",
        "squeeze",
        "transpose",
    )
)
"""Operators that change no element."""
PLACES = frozenset(("argmax", "argmin", "topk"))
"""Operators that count elements: their results are bounded by how many there are."""
_EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "cast": lambda x: x,
}
"""Operators that round, and what they compute before they do."""
_MONOTONE = frozenset(("add", "subtract", "multiply", "cast", "clip", "round", "round_even"))


def constant_ends(value: Value) -> Ends:
    """The least and the greatest element of a float constant; anything where one is NaN."""
    data = value.data
    assert data is not None
    if not data.size:
        return 0.0, 0.0
    low, high = float(data.min()), float(data.max())
    if math.isnan(low) or math.isnan(high):
        return ANYTHING
    return (low, high)


def real_ends(step: Step, ends: Sequence[Ends]) -> Ends | None:
    """Bounds of the result of a step that reads or makes floats; None where nothing is known.

    Args:
        step: an operator with one result.
        ends: of its operands.
    """
    if step.name in LAYOUT or step.name == "copy":
        return ends[0]
    if step.name in PLACES:
        shape = step.args[0].type.shape
        axis = step.attrs.axis
        one = isinstance(axis, int) and not getattr(step.attrs, "exclude", False)
        sizes = [shape[axis]] if one else shape
        known = [size for size in sizes if isinstance(size, int)]
        if len(known) == len(sizes):
            return (0, math.prod(known) - 1)
        return None
    dtype = step.result.type.dtype
    if step.name not in _MONOTONE or dtype == "bool":
        return None
    corners = list(product(*ends))
    results = _computed(step, corners)
    if any(map(math.isnan, results)):
        return None
    found: list[Number] = []
    for end, toward in zip((min, max), ANYTHING):
        edge = end(results)
        at_edge = (corner for corner, result in zip(corners, results) if result == edge)
        found.append(end(_widened(step, corner, edge, toward) for corner in at_edge))
    if is_float(dtype):
        return found[0], found[1]
    # NaN passes every clip and becomes 0.
    return min(found[0], 0), max(found[1], 0)


def _computed(step: Step, corners: Sequence[Sequence[Number]]) -> list[Number]:
    """The operator on elements of its operands, in the dtypes in which it runs."""
    arrays = [
        np.asarray(numbers, storage_dtype(value.type.dtype))
        for numbers, value in zip(zip(*corners), step.args, strict=True)
    ]
    out_type = TensorType((len(corners),), step.result.type.dtype)
    with np.errstate(all="ignore"):
        (result,) = FNumpyCompute.require(step.op)(step.attrs, arrays, out_type)
    numbers: list[Number] = result.tolist()
    return numbers


def _widened(step: Step, corner: Sequence[Number], result: Number, toward: float) -> Number:
    """The result alone where it is exact, else its neighbour on one side."""
    dtype = step.result.type.dtype
    if step.name not in _EXACT or not is_float(dtype) or not all(map(math.isfinite, corner)):
        return result
    if math.isfinite(result) and _EXACT[step.name](*map(Fraction, corner)) == Fraction(result):
        return result
    kind = np.dtype(dtype).type
    with np.errstate(over="ignore"):
        return float(np.nextafter(kind(result), kind(toward)))
