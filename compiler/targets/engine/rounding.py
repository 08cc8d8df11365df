"""``(x * m + rounding) >> n`` as one operator, however the quantizer spells the rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from compiler.ops.number_format import Array
from compiler.targets.engine.planner import Planner
from compiler.targets.engine.programs import shift_axis
from compiler.targets.engine.values import Item, constant, constants
from compiler.targets.engine.views import Shape

_MOST = 1 << 62
"""Beyond every product and sum that 64 bits hold for sure."""


def rounded_product(planner: Planner, data: Item, bits: Item) -> Item | None:
    """``(x * m + rounding) >> n`` as one RESCALE of x; None where it is none.

    Halves go up in RESCALE. Those that go away from zero are the same where x is not negative; all
    are the same where no ``x * m`` is a half. Else magnitudes are rounded, or the results of x and
    -x tell where halves are.
    """
    if bits.data is None or data.chain is None or data.chain.op != "ADD":
        return None
    if not 0 <= bits.low <= bits.high <= 62 or data.view is not None:
        return None
    first, second = data.chain.args
    found = _product_and_ties(first, second, bits)
    if found is None:
        return None
    product, ties = found
    if product.shape != data.shape or not -_MOST < product.low <= product.high < _MOST:
        return None
    x, factor, amounts = _factored(product, data.shape, bits.data)
    if x.low == x.high:  # without a shape that factors could vary along
        return None
    axis: int | None = None
    if factor.size > 1:
        axis = shift_axis(Item(factor.shape, 0, 0, data=factor), data.shape)
        if axis is None:
            return None
    most = largest_along(x, axis)
    if int(factor.max()) >= 1 << 31:
        return None
    apart = ties == "even" or (ties == "away" and x.low < 0)
    if apart:
        apart = _reaches_half(most, factor, amounts)
    elif factor.size == 1 and int(factor) == 1 and x.low < 0:
        return None  # an addition and a shift
    # Factors as large as those of fixed_point_multiply.
    room = 31 - np.frexp(np.maximum(factor, 1))[1].astype(np.int64)
    factor, shift = np.left_shift(factor, room).reshape(-1), (31 - amounts - room).reshape(-1)
    if int(shift.min()) < -64 or int(most.max()) * int(factor.max()) >= _MOST:
        return None
    if not apart:
        return planner.compose("RESCALE", (x,), factor, shift, axis)
    bits_of = amounts.reshape(-1)
    if ties == "even" and (factor == 1 << 30).all() and (shift == 1 - bits_of).all():
        highest = int(bits_of.max())
        if highest < 31 and max(abs(x.low), abs(x.high)) + (1 << highest) < 1 << 31:
            return planner.compose("TO_EVEN", (x,), bits_of, axis)
    return _rounded_apart(planner, x, ties, (factor, shift, axis))


def _product_and_ties(first: Item, second: Item, bits: Item) -> tuple[Item, str] | None:
    """``x * m`` of a sum that rounds it, and where halves go: "up", "away" or to "even"."""
    half = constants(np.left_shift(np.int64(1), _array(bits).astype(np.int64)) >> 1)
    below = constants(np.maximum(_array(half) - 1, 0))
    if _equal(second, half):
        return first, "up"
    if second.chain is None or second.chain.op != "SELECT":
        product = _to_even(first, second, bits, below)
        return None if product is None else (product, "even")
    sign, *sides = second.chain.args
    compared = sign.chain
    if compared is None or compared.op != "LESS" or compared.args[0] is not first:
        return None
    ends = _equal(compared.args[1], constant(0)) and _equal(sides[0], below)
    return (first, "away") if ends and _equal(sides[1], half) else None


def _factored(product: Item, shape: Shape, bits: Array) -> tuple[Item, Array, Array]:
    """x, m and n of ``x * m >> n``; powers of two belong to the shift."""
    x, factor = product, np.ones((), np.int64)
    while x.view is None and x.chain is not None and x.chain.op == "MUL":
        inner, times = x.chain.args
        if times.data is None or times.low < 0 or inner.shape != shape:
            break
        x, factor = inner, factor * times.data
    factor, amounts = np.broadcast_arrays(factor, bits.astype(np.int64))
    spare = np.where(factor >= 1 << 31, _lowest_bit(factor), 1)
    spare = np.minimum(spare, np.left_shift(np.int64(1), amounts))
    return x, factor // spare, amounts - np.log2(spare).astype(np.int64)


def _lowest_bit(factor: Array) -> Array:
    return np.where(factor > 0, factor & -factor, 1)


def _reaches_half(most: Array, factor: Array, amounts: Array) -> bool:
    """Whether ``x * m`` can be a half for some |x| up to ``most``."""
    odd = np.left_shift(np.int64(1), np.maximum(amounts, 1) - 1) // _lowest_bit(factor)
    reached = most.reshape(odd.shape if most.size > 1 else ()) >= odd
    return bool((reached & (factor > 0) & (amounts > 0)).any())


def _rounded_apart(planner: Planner, x: Item, ties: str, params: tuple[Any, ...]) -> Item:
    """The rounding by the results of x and -x, which RESCALE both rounds up."""

    def up(value: Item) -> Item:
        return planner.compose("RESCALE", (value,), *params)

    def minus(value: Item) -> Item:
        return planner.compose("SUB", (constant(0), value))

    planner.materialise(x)
    if ties == "away":
        size = up(planner.compose("MAX", (x, minus(x))))
        is_negative = planner.compose("LESS", (x, constant(0)))
        return planner.compose("SELECT", (is_negative, minus(size), size))
    upper = up(x)
    tie = planner.compose("SUB", (upper, minus(up(minus(x)))))
    is_odd = planner.compose("AND", (upper, constant(1)))
    return planner.compose("SUB", (upper, planner.compose("MUL", (tie, is_odd))))


def largest_along(item: Item, axis: int | None) -> Array:
    """Largest magnitude, one for all or one for each index of an axis."""
    whole, chain = np.array([max(abs(item.low), abs(item.high))]), item.chain
    if axis is None or item.view is not None:
        return whole
    if item.product is not None and item.product.channel_axis == axis:
        return np.maximum(np.abs(item.product.low), np.abs(item.product.high))
    if chain is None or chain.op != "ADD" or chain.args[1].data is None:
        return whole
    inner, added = chain.args
    # In an operand of another shape, the axis could be another one.
    if inner.shape != item.shape or not all(a.low > -_MOST and a.high < _MOST for a in chain.args):
        return whole
    if added.shape and shift_axis(replace(added, low=0, high=0), item.shape) != axis:
        return whole
    return np.asarray(
        largest_along(inner, axis) + np.abs(_array(added).astype(np.int64)).reshape(-1)
    )


def _to_even(first: Item, second: Item, bits: Item, below: Item) -> Item | None:
    """y of ``y + below + ((y >> n) & 1)``; 0 instead of 1 where n is 0, and nothing is rounded."""
    if first.chain is None or second.chain is None or first.view is not None:
        return None
    odd, added = second.chain, first.chain
    if (added.op, odd.op) != ("ADD", "AND"):
        return None
    if not _equal(odd.args[1], constants(np.asarray(_array(bits) > 0, np.int64))):
        return None
    product, shifted = added.args[0], odd.args[0].chain
    if not _equal(added.args[1], below) or shifted is None or shifted.args[0] is not product:
        return None
    if shifted.op == "SHIFT":
        same = bits.low == bits.high == shifted.params[0]
    else:
        same = shifted.op == "RIGHT" and _equal(shifted.args[1], bits)
    return product if same else None


def _array(item: Item) -> Array:
    assert item.data is not None
    return item.data


def _equal(item: Item, other: Item) -> bool:
    """Whether a value is a constant with the elements of another one."""
    if item.data is None:
        return False
    try:
        pair = np.broadcast_arrays(item.data, _array(other))
    except ValueError:
        return False
    return bool((pair[0] == pair[1]).all())
