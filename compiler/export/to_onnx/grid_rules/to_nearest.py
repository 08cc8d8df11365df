"""The chain of int64 operators that rounding="TONEAREST" realizes, seen as one factor.

    p = multiply(left_shift(cast(x, int64), L), M)
    right_shift(add(p, where(greater_equal(p, 0), 2^(n-1), 2^(n-1) - 1)), n)
        = x * M * 2^(L - n), half away from zero

Source: spec/quantize.md section 7.3.
"""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.dataflow import Step, Value
from compiler.export.to_onnx.grid_rules.fixed_point import Factor


def to_nearest_chain(step: Step) -> tuple[Value, Factor] | None:
    """The operand and the factor of the chain that ends in a right_shift; None for another one."""
    bits = step.args[1].data
    total = step.args[0].producer
    if bits is None or total is None or total.name != "add":
        return None
    product, addend = total.args
    choice = addend.producer
    if choice is None or choice.name != "where" or product.producer is None:
        return None
    half = np.left_shift(np.int64(1), bits.astype(np.int64) - 1)
    condition = choice.args[0].producer
    fits = (
        condition is not None
        and condition.name == "greater_equal"
        and condition.args[0] is product
        and condition.args[1].data is not None
        and not np.any(condition.args[1].data)
        and choice.args[1].data is not None
        and choice.args[2].data is not None
        and np.array_equal(choice.args[1].data, half)
        and np.array_equal(choice.args[2].data, half - 1)
    )
    scaling = product.producer
    if not fits or scaling.name != "multiply" or scaling.args[1].data is None:
        return None
    source, multiplier = scaling.args[0], scaling.args[1].data
    if np.any(multiplier < 0):
        return None
    widening = source.producer
    left = np.zeros((), np.int64)
    if widening is not None and widening.name == "left_shift" and widening.args[1].data is not None:
        source, left = widening.args[0], widening.args[1].data.astype(np.int64)
    shift = bits.astype(np.int64) - left
    if np.any(shift < 1):
        return None
    return source, Factor.of(multiplier, shift, half_away=True)
