"""Shifts and fixed-point multiplication: how an accumulator becomes a narrow integer again.

All of them are f(x) = floor(x * M * 2^-n + 1/2) or floor((x + c) * 2^-n), which never decrease. So
a limit before f is the same as a limit by f(bounds) behind it, where it often vanishes in the next
clip; and a power of two goes exactly into the weights of the product before it:

    before                                                  after
    right_shift(clip(conv2d(x, W) + b, 0, h) + c, n)        Floor(Conv(x, W 2^-n, (b + c) 2^-n))

A general factor is a float32 product where ``fixed_point`` proves it equal to the definition, else
a product in double, which is exact because M has at most 24 significant bits when it comes from a
float32; else int64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_onnx.carried_emitter import (
    FLOAT_LIMIT,
    Bound,
    Carried,
    CarriedEmitter,
    FToCarried,
    clamped,
    narrowed,
)
from compiler.export.to_onnx.carried_rules.fixed_point import (
    DOUBLE_BITS,
    Factor,
    plain_product_holds,
)
from compiler.export.to_onnx.carried_rules.to_nearest import to_even_chain, to_nearest_chain
from compiler.export.to_onnx.convert.tensor import low_bits, rounded_half_away
from compiler.export.to_onnx.ordered import limited
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import bits, integer_range, is_integer
from compiler.ops.number_format import Array
from compiler.ops.tensor.clip import integer_bound
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO

_FAR = 1 << 30
_MOST_BITS = 62
_TAKES_UP_FACTORS = ("Conv", "Gemm", "MatMul")


@FToCarried.register("fixed_point_multiply")
def fixed_point_multiply(step: Step, graph: CarriedEmitter) -> Carried:
    """One factor for the whole tensor."""
    multiplier, shift = np.asarray(step.attrs.multiplier), np.asarray(step.attrs.shift)
    return _requantized(step.args[0], _factor(step, multiplier, shift), step, graph)


@FToCarried.register("fixed_point_multiply_per_axis")
def fixed_point_multiply_per_axis(step: Step, graph: CarriedEmitter) -> Carried:
    """One factor per channel."""
    data, multiplier, shift = step.args
    if multiplier.data is None or shift.data is None:
        raise graph.refuse(step, "its multipliers are not constant")
    rank = len(data.type.shape)
    # Leading axes of size 1 are left out, so that bounds and biases keep the shape (C, 1, 1).
    shape = (-1, *([1] * (rank - 1 - step.attrs.axis % rank)))
    factor = _factor(step, multiplier.data.reshape(shape), shift.data.reshape(shape))
    return _requantized(data, factor, step, graph)


def _factor(step: Step, multiplier: Array, shift: Array) -> Factor:
    """multiplier * 2^(shift - 31), which is 0 where the operator shifts all bits out."""
    width = bits(step.args[0].type.dtype)
    vanishes = shift < np.where(multiplier == POWER_OF_TWO, 2 - width, -32)
    kept = np.where(vanishes, 0, multiplier)
    return Factor.of(kept, np.where(vanishes, 31, 31 - shift.astype(np.int64)))


def _requantized(value: Value, factor: Factor, step: Step, graph: CarriedEmitter) -> Carried:
    """f(clamp(x)) as clamp(f(x)), which the next clip often makes unnecessary."""
    source = graph.carried(value)
    if source.magnitude * int(np.abs(factor.multiplier).max(initial=0)) >= 1 << 62:
        what = f"its product leaves 64 bits for operands up to {source.magnitude}"
        raise graph.refuse(step, what)
    falling = factor.multiplier.min(initial=0) < 0  # f exchanges the limits
    if falling or source.clamp is None or source.clamp[0].carrier != "float32":
        limits = factor.bounds(source.low, source.high)
        return _scaled(source, factor, _next_clip(step, *limits), step, graph)
    inner, low, high = source.clamp
    # Limits far outside the float32 carrier bind nothing, and their products would overflow.
    low, high = np.clip(low, -_FAR, _FAR), np.clip(high, -_FAR, _FAR)
    reach = factor.bounds(inner.low, inner.high)
    floor, ceiling = _mapped(factor.apply(low), factor.apply(high), low, high, inner, reach)
    limits = _next_clip(step, int(floor.min()), int(ceiling.max()))
    result = _scaled(inner, factor, limits, step, graph)
    return clamped(result, floor, ceiling, graph)


def _mapped(
    floor: Bound, ceiling: Bound, low: Bound, high: Bound, inner: Carried, reach: tuple[int, int]
) -> tuple[Bound, Bound]:
    """Limits behind f; one that did not bind before f does not bind behind it in any channel."""
    if int(low.max()) <= inner.low:
        floor = np.asarray(min(reach[0], int(ceiling.min())))
    if int(high.min()) >= inner.high:
        ceiling = np.asarray(max(reach[1], int(floor.max())))
    return floor, ceiling


def _scaled(
    source: Carried, factor: Factor, limits: tuple[int, int], step: Step, graph: CarriedEmitter
) -> Carried:
    """f(source), of which only what lies within ``limits`` is told apart later."""
    low, high = factor.bounds(source.low, source.high)
    bits = factor.powers_of_two
    if bits is not None:
        # Every factor is 2^-k: half is added before the scaling, both exact; Round is to even.
        half = np.where(bits > 0, np.left_shift(1, np.maximum(bits - 1, 0)), 0)
        to_even = factor.ties == "even"
        addend = np.zeros_like(half) if to_even else half
        rounding = "Round" if to_even else "Floor"
        shifted = shifted_right(source, addend, bits, low, high, graph, rounding)
        if shifted is not None:
            return shifted
    if source.carrier == "float32" and max(abs(low), abs(high)) < FLOAT_LIMIT:
        # No clip follows where a limit is an end of the definition: no form may go beyond.
        held = limits[0] - (limits[0] <= low), limits[1] + (limits[1] >= high)
        if plain_product_holds(factor, *_operand_bounds(source, factor), *held):
            constant = graph.float_constant(factor.real())
            name = graph.node("Mul", [_unmoved(source, graph), constant])
            return Carried(graph.node("Round", [name]), "float32", low, high)
    if source.magnitude.bit_length() + factor.significant_bits <= DOUBLE_BITS:
        constant = graph.writer.constant(factor.real())
        product = graph.node("Mul", [graph.as_double(source), constant])
        name = _rounded_double(product, factor, source, graph)
        name, low, high = _early_clip(name, "float64", low, high, step, graph)
        return narrowed(name, "float64", low, high, graph)
    return _in_int64(source, factor, low, high, step, graph)


def _operand_bounds(source: Carried, factor: Factor) -> tuple[Bound, Bound]:
    """Bounds per channel of the factor where they are known, else of the whole tensor."""
    if source.channels is not None and source.channels[0].shape == _trailing(factor.multiplier):
        return source.channels
    return np.asarray(source.low), np.asarray(source.high)


def _trailing(values: Bound) -> tuple[int, ...]:
    """The shape without axes of one element in front."""
    sizes = list(values.shape)
    while sizes and sizes[0] == 1:
        sizes.pop(0)
    return tuple(sizes)


def _unmoved(source: Carried, graph: CarriedEmitter) -> str:
    """The tensor, behind a Clip that binds nothing where a product computes it.

    onnxruntime's ConvMulFusion and MatMulScaleFusion would move the factor that follows into the
    product and round there, also past sums and factors, which they take up first. They do not look
    past a Clip, which becomes part of the convolution.
    """
    if graph.writer.op_type_before_scaling(source.name) not in _TAKES_UP_FACTORS:
        return source.name
    bounds = [graph.float_constant(bound) for bound in (source.low, source.high)]
    return graph.node("Clip", [source.name, *bounds])


def _next_clip(step: Step, low: int, high: int) -> tuple[int, int]:
    """[low, high] cut down to the clip that is the only reader of the result, if there is one."""
    user = step.result.only_user
    while user is not None and user.name == "cast" and is_integer(user.result.type.dtype):
        held = integer_range(user.result.type.dtype)
        if low < held[0] or held[1] < high:
            break
        step, user = user, user.result.only_user
    if user is None or user.name != "clip":
        return low, high
    kind = step.result.type.dtype
    floor, ceiling = (integer_bound(b, kind) for b in (user.attrs.a_min, user.attrs.a_max))
    return min(max(low, floor), ceiling), max(min(high, ceiling), floor)


def _rounded_double(product: str, factor: Factor, source: Carried, graph: CarriedEmitter) -> str:
    """Nearest integer; the way ties go matters only where one can occur."""
    if not factor.may_tie(source.magnitude):
        return graph.node("Round", [product])
    if factor.ties == "even":
        return graph.node("Round", [product])
    if factor.ties == "away":
        # 0.5 is safe in double: the product has at most 53 bits there.
        return rounded_half_away(product, graph, 0.5, "float64")
    half = graph.writer.constant(np.asarray(0.5, "float64"))
    return graph.node("Floor", [graph.node("Add", [product, half])])


def _early_clip(
    name: str, dtype: str, low: int, high: int, step: Step, graph: CarriedEmitter
) -> tuple[str, int, int]:
    """Apply the clip that follows at once where the wide result would not fit in float32."""
    floor, ceiling = _next_clip(step, low, high)
    if max(abs(low), abs(high)) < FLOAT_LIMIT or (floor, ceiling) == (low, high):
        return name, low, high
    if dtype == "int64":
        return limited(graph, name, floor, ceiling, dtype), floor, ceiling
    bounds = [graph.writer.constant(np.asarray(b, dtype)) for b in (floor, ceiling)]
    return graph.node("Clip", [name, *bounds]), floor, ceiling


def _in_int64(
    source: Carried, factor: Factor, low: int, high: int, step: Step, graph: CarriedEmitter
) -> Carried:
    """The definition, on int64."""
    if factor.shift.min() <= 0 or factor.shift.max() > 62:
        raise graph.refuse(step, f"shift {factor.shift.tolist()} is out of range")
    multiplier = graph.writer.constant(factor.multiplier)
    product = graph.node("Mul", [graph.as_int64(source), multiplier])
    half = np.left_shift(np.int64(1), factor.shift - 1)
    addend = graph.writer.constant(half)
    if factor.ties == "even":
        whole = _floor_divided(product, half * 2, graph)
        odd = graph.node("Mod", [whole, graph.ints([2])], fmod=0)
        addend = graph.node("Add", [graph.writer.constant(half - 1), odd])
    if factor.ties == "away":
        positive = graph.node("GreaterOrEqual", [product, graph.ints([0])])
        addend = graph.node("Where", [positive, addend, graph.writer.constant(half - 1)])
    name = _floor_divided(graph.node("Add", [product, addend]), half * 2, graph)
    name, low, high = _early_clip(name, "int64", low, high, step, graph)
    return narrowed(name, "int64", low, high, graph)


def _floor_divided(name: str, divisor: NDArray[np.int64], graph: CarriedEmitter) -> str:
    """floor(name / divisor): integer Div truncates, the remainder of a floor is never negative."""
    below = graph.writer.constant(divisor)
    rest = graph.node("Mod", [name, below], fmod=0)
    return graph.node("Div", [graph.node("Sub", [name, rest]), below])


def shifted_right(
    source: Carried,
    addend: Bound,
    bits: Bound,
    low: int,
    high: int,
    graph: CarriedEmitter,
    rounding: str = "Floor",
) -> Carried | None:
    """(source + addend) * 2^-bits by Floor or Round; None where float32 does not hold the sum."""
    if source.carrier != "float32":
        return None
    scale = np.ldexp(1.0, -bits.astype("int32"))
    if source.product is not None:
        product = source.product.with_addend(np.asarray(addend))
        factors = source.product.with_addend(bits)
        if product is not None and factors is not None:
            shape = product.channel_shape
            trailing = bits.reshape(bits.shape[-len(shape) :])
            per_channel = np.broadcast_to(trailing, shape).reshape(-1)
            shrink = np.ldexp(1.0, -per_channel.astype("int32"))
            assert product.bias is not None
            weight = product.weight * shrink.reshape(-1, *([1] * (product.weight.ndim - 1)))
            name = graph.node(rounding, [product.emit(weight, product.bias * shrink)])
            return Carried(name, "float32", low, high)
    if source.magnitude + int(np.abs(addend).max(initial=0)) >= FLOAT_LIMIT:
        return None
    name = source.name
    if np.any(addend):
        name = graph.node("Add", [name, graph.float_constant(addend)])
    # Powers of two may go anywhere: they round nothing.
    scaled = graph.node("Mul", [name, graph.float_constant(scale)])
    return Carried(graph.node(rounding, [scaled]), "float32", low, high)


@FToCarried.register("bitwise_and")
def bitwise_and(step: Step, graph: CarriedEmitter) -> Carried:
    """x & (2^n - 1) = x modulo 2^n."""
    rest = low_bits(step, graph, graph.as_int64(graph.carried(step.args[0])))
    mask = step.args[1].data
    return narrowed(rest, "int64", 0, 0 if mask is None else int(mask.max(initial=0)), graph)


def _constant_shift(step: Step, graph: CarriedEmitter) -> Bound:
    """The numbers of bits; 2^n of each is an int64."""
    amount = step.args[1].data
    if amount is None or np.any(amount > _MOST_BITS):
        raise graph.refuse(step, f"its shift amount is not constant, or above {_MOST_BITS}")
    return amount.astype(np.int64)


@FToCarried.register("right_shift")
def right_shift(step: Step, graph: CarriedEmitter) -> Carried:
    """floor(x * 2^-n) for constant n; the chains that round to nearest are seen as a whole."""
    to_nearest = to_nearest_chain(step) or to_even_chain(step)
    if to_nearest is not None:
        value, factor = to_nearest
        return _requantized(value, factor, step, graph)
    bits = _constant_shift(step, graph)
    source = graph.carried(step.args[0])
    base, addend = (source, np.zeros((), np.int64)) if source.offset is None else source.offset
    inner, limits = base, None
    if base.clamp is not None and base.carrier == "float32" and base.clamp[0].carrier == "float32":
        inner, *limits = base.clamp
    ends = [(end + addend) >> bits for end in (inner.low, inner.high)]
    low, high = int(ends[0].min()), int(ends[1].max())
    result = shifted_right(inner, addend, bits, low, high, graph)
    if result is None:
        low, high = int((source.low >> bits).min()), int((source.high >> bits).max())
        divided = _floor_divided(graph.as_int64(source), np.int64(1) << bits, graph)
        return narrowed(divided, "int64", low, high, graph)
    if limits is None:
        return result
    low_limit, high_limit = limits
    mapped = (low_limit + addend) >> bits, (high_limit + addend) >> bits
    floor, ceiling = _mapped(*mapped, low_limit, high_limit, inner, (low, high))
    return clamped(result, floor, ceiling, graph)


@FToCarried.register("left_shift")
def left_shift(step: Step, graph: CarriedEmitter) -> Carried:
    """x * 2^n for constant n."""
    source = graph.carried(step.args[0])
    factor = np.left_shift(np.int64(1), _constant_shift(step, graph))
    largest = int(factor.max(initial=1))
    low, high = min(source.low * largest, source.low), max(source.high * largest, source.high)
    if max(abs(low), abs(high)) < FLOAT_LIMIT:
        name = graph.node("Mul", [graph.as_float(source), graph.float_constant(factor)])
        return Carried(name, "float32", low, high)
    name = graph.node("Mul", [graph.as_int64(source), graph.writer.constant(factor)])
    return Carried(name, "int64", low, high)
