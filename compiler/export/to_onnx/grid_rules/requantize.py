"""Shifts and fixed-point multiplication: how an accumulator becomes a narrow integer again.

All of them are f(x) = floor(x * M * 2^-n + 1/2) or floor((x + c) * 2^-n), which never decrease. So
a limit before f is the same as a limit by f(bounds) behind it, where it often vanishes in the next
clip; and a power of two goes exactly into the weights of the product before it:

    before                                                  after
    right_shift(clip(conv2d(x, W) + b, 0, h) + c, n)        Floor(Conv(x, W 2^-n, (b + c) 2^-n))

A general factor is one product in float32, right except next to ties; in double (``exact``) it is
the definition, because M has at most 24 significant bits when it comes from a float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_onnx.convert.tensor import rounded_half_away
from compiler.export.to_onnx.dataflow import Step, Value
from compiler.export.to_onnx.grid_emitter import (
    FLOAT_LIMIT,
    Array,
    Bound,
    Carried,
    FToGrid,
    GridEmitter,
    clamped,
    narrowed,
)
from compiler.ops.tensor.clip import integer_bound

DOUBLE_BITS = 53
POWER_OF_TWO = 1 << 30

# Arrays of Python integers: numpy types their elements as object.
Objects = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Factor:
    """x → round(x * multiplier * 2^-shift), per channel; ``half_away`` rounds ties from zero.

    Arrays broadcast against the tensor; they hold Python integers, so that nothing overflows here.
    """

    multiplier: Objects
    shift: Objects
    half_away: bool = False

    def apply(self, x: Array) -> Bound:
        """f of whole numbers, in exact arithmetic."""
        product = x.astype(object) * self.multiplier
        results = np.frompyfunc(self._one, 2, 1)(product, self.shift)
        return np.asarray(results, dtype=object)

    def _one(self, product: int, shift: int) -> int:
        if shift <= 0:
            return int(product << -shift)
        half = 1 << (shift - 1)
        if self.half_away and product < 0:
            return -((-product + half) >> shift)
        return (product + half) >> shift

    @property
    def significant_bits(self) -> int:
        """Largest width of an odd part of a multiplier."""
        return max((_odd(m).bit_length() for m in self.multiplier.flat), default=0)

    def may_tie(self, magnitude: int) -> bool:
        """True when x * multiplier * 2^-shift can end in exactly one half for |x| <= magnitude."""
        for m, n in np.broadcast(self.multiplier, self.shift):
            if not m:
                continue
            zeros = (m & -m).bit_length() - 1
            if n - 1 >= zeros and magnitude >= 1 << (n - 1 - zeros):
                return True
        return False

    def real(self) -> NDArray[np.float64]:
        """The factors as double."""
        scale = np.frompyfunc(lambda m, n: float(m) * 2.0 ** float(-n), 2, 1)
        return np.asarray(scale(self.multiplier, self.shift), dtype="float64")


def _odd(number: int) -> int:
    return number // (number & -number) if number else 0


def _objects(array: Array | int, shape: tuple[int, ...] = ()) -> Objects:
    converted = np.empty(np.shape(array), dtype=object)
    converted[...] = np.asarray(array).astype(object)
    return converted.reshape(shape) if shape else converted


@FToGrid.register("fixed_point_multiply")
def fixed_point_multiply(step: Step, grid: GridEmitter) -> Carried:
    """One factor for the whole tensor."""
    factor = Factor(_objects(step.attrs.multiplier), _objects(31 - step.attrs.shift))
    return _requantized(step.args[0], factor, step, grid)


@FToGrid.register("fixed_point_multiply_per_axis")
def fixed_point_multiply_per_axis(step: Step, grid: GridEmitter) -> Carried:
    """One factor per channel."""
    data, multiplier, shift = step.args
    if multiplier.data is None or shift.data is None:
        raise grid.refuse(step, "its multipliers are not constant")
    rank = len(data.type.shape)
    # Leading axes of size 1 are left out, so that bounds and biases keep the shape (C, 1, 1).
    shape = (-1, *([1] * (rank - 1 - step.attrs.axis % rank)))
    factor = Factor(
        _objects(multiplier.data, shape), _objects(31 - shift.data.astype(np.int64), shape)
    )
    return _requantized(data, factor, step, grid)


def _requantized(value: Value, factor: Factor, step: Step, grid: GridEmitter) -> Carried:
    source = grid.carried(value)
    if source.clamp is None:
        return _scaled(source, factor, step, grid)
    inner, low, high = source.clamp
    wide = inner.carrier != "float32"
    if wide:
        return _scaled(source, factor, step, grid)
    result = _scaled(inner, factor, step, grid)
    bounds = [np.asarray(factor.apply(b), dtype="int64") for b in (low, high)]
    return clamped(result, bounds[0], bounds[1], grid)


def _scaled(source: Carried, factor: Factor, step: Step, grid: GridEmitter) -> Carried:
    """f(source) without looking at limits."""
    ends = factor.apply(
        np.asarray([source.low, source.high]).reshape((2, *([1] * factor.shift.ndim)))
    )
    low, high = int(ends.min()), int(ends.max())
    if all(_odd(m) <= 1 for m in factor.multiplier.flat) and not factor.half_away:
        shifted = _by_powers_of_two(source, factor, low, high, grid)
        if shifted is not None:
            return shifted
    exact_in_double = source.magnitude.bit_length() + factor.significant_bits <= DOUBLE_BITS
    if source.carrier == "float32" and not grid.exact and max(abs(low), abs(high)) < FLOAT_LIMIT:
        product = grid.node("Mul", [source.name, grid.float_constant(factor.real())])
        return Carried(_rounded(product, factor, source, "float32", grid), "float32", low, high)
    if exact_in_double:
        constant = grid.writer.constant(factor.real())
        product = grid.node("Mul", [grid.as_double(source), constant])
        name = _rounded(product, factor, source, "float64", grid)
        name, low, high = _early_clip(name, "float64", low, high, step, grid)
        return narrowed(name, "float64", low, high, grid)
    return _in_int64(source, factor, low, high, step, grid)


def _rounded(product: str, factor: Factor, source: Carried, dtype: str, grid: GridEmitter) -> str:
    """Nearest integer; the way ties go matters only where one can occur."""
    if not factor.may_tie(source.magnitude):
        return grid.node("Round", [product])
    if factor.half_away:
        # 0.5 is safe in double: the product has at most 53 bits there.
        if dtype == "float64":
            return rounded_half_away(product, grid, 0.5, "float64")
        return rounded_half_away(product, grid)
    half = grid.writer.constant(np.asarray(0.5, dtype))
    return grid.node("Floor", [grid.node("Add", [product, half])])


def _early_clip(
    name: str, dtype: str, low: int, high: int, step: Step, grid: GridEmitter
) -> tuple[str, int, int]:
    """Apply the clip that follows at once where the wide result would not fit in float32."""
    user = step.result.only_user
    if max(abs(low), abs(high)) < FLOAT_LIMIT or user is None or user.name != "clip":
        return name, low, high
    kind = step.result.type.dtype
    floor, ceiling = (integer_bound(b, kind) for b in (user.attrs.a_min, user.attrs.a_max))
    bounds = [grid.writer.constant(np.asarray(b, dtype)) for b in (floor, ceiling)]
    clipped = grid.node("Clip", [name, *bounds])
    return clipped, min(max(low, floor), ceiling), max(min(high, ceiling), floor)


def _in_int64(
    source: Carried, factor: Factor, low: int, high: int, step: Step, grid: GridEmitter
) -> Carried:
    """The definition, on int64."""
    if any(n <= 0 or n > 62 for n in factor.shift.flat):
        raise grid.refuse(step, f"shift {factor.shift.tolist()} is out of range")
    if source.magnitude * max(factor.multiplier.flat) >= 1 << 62:
        raise grid.refuse(step, "its product leaves 64 bits")
    multiplier = grid.writer.constant(factor.multiplier.astype("int64"))
    product = grid.node("Mul", [grid.as_int64(source), multiplier])
    half = (np.int64(1) << (factor.shift.astype("int64") - 1)).astype("int64")
    addend = grid.writer.constant(half)
    if factor.half_away:
        positive = grid.node("GreaterOrEqual", [product, grid.ints([0])])
        addend = grid.node("Where", [positive, addend, grid.writer.constant(half - 1)])
    name = _floor_divided(grid.node("Add", [product, addend]), half * 2, grid)
    name, low, high = _early_clip(name, "int64", low, high, step, grid)
    return narrowed(name, "int64", low, high, grid)


def _floor_divided(name: str, divisor: NDArray[np.int64], grid: GridEmitter) -> str:
    """floor(name / divisor): integer Div truncates, the remainder of a floor is never negative."""
    below = grid.writer.constant(divisor)
    rest = grid.node("Mod", [name, below], fmod=0)
    return grid.node("Div", [grid.node("Sub", [name, rest]), below])


def _by_powers_of_two(
    source: Carried, factor: Factor, low: int, high: int, grid: GridEmitter
) -> Carried | None:
    """Every factor is 2^-k: half is added before the scaling, both exact."""
    zeros = _objects(
        np.asarray([[(m & -m).bit_length() - 1 if m else 0] for m in factor.multiplier.flat])
    )
    bits = np.asarray(factor.shift - zeros.reshape(factor.multiplier.shape), dtype="int64")
    if any(not m for m in factor.multiplier.flat) or bits.min() < 0:
        return None
    half = np.where(bits > 0, np.int64(1) << np.maximum(bits - 1, 0), 0)
    return shifted_right(source, half, bits, low, high, grid)


def shifted_right(
    source: Carried, addend: Bound, bits: Bound, low: int, high: int, grid: GridEmitter
) -> Carried | None:
    """floor((source + addend) * 2^-bits); None where the sum does not fit in float32."""
    if source.carrier != "float32":
        return None
    scale = np.ldexp(1.0, -bits.astype("int32"))
    if source.product is not None:
        product = source.product.with_addend(np.asarray(addend))
        factors = source.product.with_addend(bits)
        if product is not None and factors is not None:
            per_channel = np.broadcast_to(bits, product.channel_shape).reshape(-1)
            shrink = np.ldexp(1.0, -per_channel.astype("int32"))
            assert product.bias is not None
            weight = product.weight * shrink.reshape(-1, *([1] * (product.weight.ndim - 1)))
            name = grid.node("Floor", [product.emit(weight, product.bias * shrink)])
            return Carried(name, "float32", low, high)
    if source.magnitude + int(np.abs(addend).max(initial=0)) >= FLOAT_LIMIT:
        return None
    name = source.name
    if np.any(addend):
        name = grid.node("Add", [name, grid.float_constant(addend)])
    scaled = grid.node("Mul", [name, grid.float_constant(scale)])
    return Carried(grid.node("Floor", [scaled]), "float32", low, high)


@FToGrid.register("right_shift")
def right_shift(step: Step, grid: GridEmitter) -> Carried:
    """floor(x * 2^-n) for constant n; the TONEAREST chain of section 7.3 is seen as a whole."""
    to_nearest = _to_nearest_chain(step)
    if to_nearest is not None:
        value, factor = to_nearest
        return _requantized(value, factor, step, grid)
    amount = step.args[1].data
    if amount is None:
        raise grid.refuse(step, "its shift amount is not constant")
    bits = amount.astype(np.int64)
    source = grid.carried(step.args[0])
    base, addend = (source, np.zeros((), np.int64)) if source.offset is None else source.offset
    inner, limits = base, None
    if base.clamp is not None and base.carrier == "float32" and base.clamp[0].carrier == "float32":
        inner, *limits = base.clamp
    ends = [(end + addend) >> bits for end in (inner.low, inner.high)]
    low, high = int(ends[0].min()), int(ends[1].max())
    result = shifted_right(inner, addend, bits, low, high, grid)
    if result is None:
        low, high = int((source.low >> bits).min()), int((source.high >> bits).max())
        divided = _floor_divided(grid.as_int64(source), np.int64(1) << bits, grid)
        return narrowed(divided, "int64", low, high, grid)
    if limits is None:
        return result
    return clamped(result, (limits[0] + addend) >> bits, (limits[1] + addend) >> bits, grid)


def _to_nearest_chain(step: Step) -> tuple[Value, Factor] | None:
    """(x, factor) of right_shift(p + where(p >= 0, 2^(n-1), 2^(n-1) - 1), n), p = (x << L) * M."""
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
    return source, Factor(_objects(multiplier), _objects(shift), half_away=True)


@FToGrid.register("left_shift")
def left_shift(step: Step, grid: GridEmitter) -> Carried:
    """x * 2^n for constant n."""
    amount = step.args[1].data
    if amount is None:
        raise grid.refuse(step, "its shift amount is not constant")
    source = grid.carried(step.args[0])
    factor = np.left_shift(np.int64(1), amount.astype(np.int64))
    largest = int(factor.max(initial=1))
    low, high = min(source.low * largest, source.low), max(source.high * largest, source.high)
    if max(abs(low), abs(high)) < FLOAT_LIMIT:
        name = grid.node("Mul", [grid.as_float(source), grid.float_constant(factor)])
        return Carried(name, "float32", low, high)
    name = grid.node("Mul", [grid.as_int64(source), grid.writer.constant(factor)])
    return Carried(name, "int64", low, high)
