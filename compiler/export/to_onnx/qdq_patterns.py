"""What QDQ rules recognise: identities, and what a requantization multiplies by.

    fixed_point_multiply(x, M, s)                                                x * M * 2^(s - 31)
    right_shift(add(x, 2^(n-1)), n)                                              x * 2^-n
    p = multiply(left_shift(cast(x, int64), L), M)
    right_shift(add(p, where(greater_equal(p, 0), 2^(n-1), 2^(n-1) - 1)), n)     x * M * 2^(L - n)
    right_shift(add(add(p, 2^(n-1) - 1), bitwise_and(right_shift(p, n), 1)), n)  the same

All of them round to nearest; the way ties go is lost in a QDQ graph. Factors are float64 and
broadcast against x.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_onnx.integer_rules.fixed_point import fixed_point_factors
from compiler.ir.dataflow import Step, Value
from compiler.ops.number_format import Array

Floats = NDArray[np.float64]

IDENTITIES: Final = (
    "annotation.stop_fusion",
    "annotation.cast_hint",
    "on_device",
    "device_copy",
    "copy",
    "round",
    "round_even",
    "floor",
    "ceil",
    "trunc",
)
"""The value itself; roundings change nothing on integers."""


def fixed_point_factor(step: Step) -> Floats | None:
    """What a fixed-point multiplication multiplies by; None for others and what is not constant."""
    found = fixed_point_factors(step)
    if found is None:
        return None
    factor = _scaled(found[0], found[1] - 31)
    return factor.reshape(factor.shape[step.attrs.axis % factor.ndim :]) if factor.ndim else factor


def _scaled(numbers: Array | int, power: Any) -> Floats:
    return np.ldexp(np.asarray(numbers, np.float64), np.asarray(power).astype(np.int32))


def half_up_chain(step: Step) -> tuple[Value, Floats] | None:
    """x and 2^-n of right_shift(add(x, 2^(n-1)), n); None for other steps."""
    bits, total = _sum_shifted(step)
    if bits is None or total is None or bits.min() < 1:
        return None
    half = total.args[1].data
    same = half is not None and np.array_equal(half, np.left_shift(np.int64(1), bits - 1))
    return (total.args[0], _scaled(1, -bits)) if same else None


def nearest_chain(step: Step) -> tuple[Value, Floats] | None:
    """Operand and factor of a chain that ends in a right_shift and rounds ties away from zero or to
    the even neighbour; None for other steps."""
    bits, total = _sum_shifted(step)
    if bits is None or total is None:
        return None
    lhs, rhs = (value.producer for value in total.args)
    if rhs is not None and rhs.name == "where" and _away(rhs, total.args[0], bits):
        return _product(total.args[0], bits)
    if lhs is None or rhs is None or (lhs.name, rhs.name) != ("add", "bitwise_and"):
        return None
    if not _even(lhs, rhs, bits):
        return None
    return _product(lhs.args[0], bits) or (lhs.args[0], _scaled(1, -bits))


def _sum_shifted(step: Step) -> tuple[Array | None, Step | None]:
    """The numbers of bits, and the sum, that a right_shift shifts."""
    if step.name != "right_shift" or step.args[1].data is None:
        return None, None
    total = step.args[0].producer
    return step.args[1].data.astype(np.int64), total if total and total.name == "add" else None


def _holds(value: Value, wanted: Array) -> bool:
    return value.data is not None and np.array_equal(value.data, wanted)


def _away(choice: Step, product: Value, bits: Array) -> bool:
    """Whether a ``where`` adds half, or one less below 0."""
    condition = choice.args[0].producer
    if condition is None or condition.name != "greater_equal" or condition.args[0] is not product:
        return False
    zero, half = condition.args[1].data, np.left_shift(np.int64(1), np.maximum(bits - 1, 0))
    not_negative = zero is not None and not np.any(zero)
    return not_negative and _holds(choice.args[1], half) and _holds(choice.args[2], half - 1)


def _even(raised: Step, odd: Step, bits: Array) -> bool:
    """Whether one less than half is added, and one where the quotient is odd."""
    down = odd.args[0].producer
    if down is None or down.name != "right_shift" or down.args[0] is not raised.args[0]:
        return False
    below = np.where(bits > 0, np.left_shift(np.int64(1), np.maximum(bits, 1) - 1) - 1, 0)
    same = _holds(down.args[1], bits) and _holds(odd.args[1], bits > 0)
    return same and _holds(raised.args[1], below)


def _product(product: Value, bits: Array) -> tuple[Value, Floats] | None:
    """The operand and the factor of a product by constants that is shifted by ``bits``."""
    scaling = product.producer
    if scaling is None or scaling.name != "multiply" or scaling.args[1].data is None:
        return None
    source, multiplier = scaling.args[0], scaling.args[1].data
    widening = source.producer
    left = np.zeros((), np.int64)
    if widening is not None and widening.name == "left_shift" and widening.args[1].data is not None:
        source, left = widening.args[0], widening.args[1].data.astype(np.int64)
    if np.any(multiplier < 0) or np.any(bits - left < 1):
        return None
    return source, _scaled(multiplier, left - bits)
