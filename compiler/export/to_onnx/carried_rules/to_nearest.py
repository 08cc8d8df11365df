"""The chains of operators that round to nearest, seen as one factor.

    p = multiply(left_shift(cast(x, int64), L), M)
    right_shift(add(p, where(greater_equal(p, 0), 2^(n-1), 2^(n-1) - 1)), n)         TONEAREST
        = x * M * 2^(L - n), half away from zero
    right_shift(add(add(p, 2^(n-1) - 1), bitwise_and(right_shift(p, n), 1)), n)      TONEAREST_EVEN
        = the same, half to the even neighbour; also where p is no product

``fixed_point_multiply`` writes the same product as one operator, rounded UPWARD.
"""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.carried_rules.fixed_point import Factor
from compiler.ir.dataflow import Step, Value
from compiler.ops.number_format import Array
from compiler.ops.rules.float_product import Ties


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
    return _scaling(product, bits, "away") if fits else None


def to_even_chain(step: Step) -> tuple[Value, Factor] | None:
    """The operand and the factor of the chain that ends in a right_shift; None for another one."""
    bits = step.args[1].data
    total = step.args[0].producer
    if bits is None or total is None or total.name != "add":
        return None
    raised, odd = (value.producer for value in total.args)
    if raised is None or odd is None or (raised.name, odd.name) != ("add", "bitwise_and"):
        return None
    (whole, mask), (product, addend) = odd.args, raised.args
    down = whole.producer
    if down is None or down.name != "right_shift" or down.args[0] is not product:
        return None
    n = bits.astype(np.int64)
    below_half = np.where(n > 0, np.left_shift(np.int64(1), np.maximum(n, 1) - 1) - 1, 0)
    fits = (
        down.args[1].data is not None
        and np.array_equal(down.args[1].data, bits)
        and mask.data is not None
        and np.array_equal(mask.data, n > 0)
        and addend.data is not None
        and np.array_equal(addend.data, below_half)
    )
    if not fits:
        return None
    return _scaling(product, bits, "even") or (product, Factor.of(np.ones_like(n), n, "even"))


def _scaling(product: Value, bits: Array, ties: Ties) -> tuple[Value, Factor] | None:
    """The operand and the factor of a product by constants that is shifted by ``bits``."""
    scaling = product.producer
    if scaling is None or scaling.name != "multiply" or scaling.args[1].data is None:
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
    return source, Factor.of(multiplier, shift, ties)
