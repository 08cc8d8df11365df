"""One dtype and one scale for the operands of add and its like, and for fields of a concatenate.

Two operands take the finer of their scales; with ``integer_tables`` a 256th of it where one of them
would be rounded and the sum has room, and a coarser one where the sum has none, so that the smaller
side is rounded and the larger one is not cut off. A product that may overflow the dtype is computed
in int64 and saturated. Source: Relay v0.10 quantize/realize.cc (UnifyDTypeScale), which wraps.

Narrow fields take the largest of their scales, and one zero point. Wide fields take a scale at
which every field fits. Relay scales up in the narrow dtype, which overflows, without zero points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.loops import STATE
from compiler.ir.ty import bits
from compiler.ops.annotation.attach_simulated_quantize import is_quantized_constant, point_attrs
from compiler.ops.rules.dom_scale import DomScale, as_scale, beside_constant, chosen_scale
from compiler.ops.rules.integer_calls import (
    add,
    along_axis,
    cast,
    clip,
    left_shift,
    multiply,
    scalar,
    stop_fusion,
)
from compiler.ops.rules.realize import (
    Pair,
    QRealizeIntExpr,
    can_be_stored,
    integer_limits,
    integers,
    require_fits,
    storage_dtype,
    zero_point_for,
)
from compiler.ops.rules.requantize import (
    SUM_SHIFT,
    TIES,
    exact_log2,
    multiplier_and_shift,
    requantize,
    requantized,
    tflm_multiplier,
    to_scalar,
    within_contract,
)
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

Fields = list[QRealizeIntExpr]


def unify_for_concatenate(
    ref_fields: tuple[Expr, ...], values: tuple[QRealizeIntExpr, ...], qconfig: QConfig
) -> Fields:
    """The fields, alike in dtype, scale and zero point.

    Args:
        ref_fields: as the annotated graph has them, typed.
    """
    narrow = qconfig.dtype_input
    acc = qconfig.dtype_activation
    flat = [to_scalar(v.settled(), rank_of(r), qconfig) for v, r in zip(values, ref_fields)]
    if qconfig.form.stores_values:
        flat = [stored(v, qconfig) for v in flat]
    finest = min((v.dom_scale for v in flat), key=lambda scale: float(scale.data))
    # Zeros are zeros at any scale, and none of their own coarsens the others.
    flat = [v.like(v.data, dom_scale=finest) if _is_zero(v) else v for v in flat]
    if all(v.dtype == narrow and v.zero_point == 0 for v in flat):
        return _narrow_fields(ref_fields, flat, qconfig)
    if all(v.dtype in (narrow, f"u{narrow}") for v in flat):
        return _stored_fields(ref_fields, flat, qconfig)
    room = 1 << (integer_limits(acc)[1].bit_length() - 1)
    scales = [float(v.dom_scale.data) for v in flat]
    bounds = [_step_bound(v, room, qconfig) for v in flat]
    common = max(min(scales), max(s * b / room for s, b in zip(scales, bounds)))
    scale = DomScale(chosen_scale(common, qconfig))
    fields: Fields = []
    for ref, v in zip(ref_fields, flat):
        wide = v.centred(acc)
        held = wide.like(wide.in_dtype(acc), dtype=acc)
        factor = scale_factor(v, scale)
        if factor >= 1:
            limit = integer_limits(acc)[1]
            fields.append(mul_and_div(held, factor, scale, limit, ref, rank_of(ref), qconfig))
        else:
            units = None if qconfig.is_relay else (v.scale, scale)
            data = cast(held.data, "int64")
            rank = rank_of(ref)
            factors = multiplier_and_shift(factor)
            ties = TIES[qconfig.rounding]
            product = requantized(data, *factors, None, rank, ties, "int64", units)
            fields.append(integers(cast(product, acc), scale, acc, held.bounds_of))
    return fields


def stored(value: QRealizeIntExpr, qconfig: QConfig) -> QRealizeIntExpr:
    """Narrow integers that were held wide so far, in their storage."""
    held = value.with_zero_point(qconfig)
    dtype = storage_dtype(held.low, held.high, qconfig)
    if dtype is None:
        return value
    if bits(held.dtype) == bits(dtype):
        return held
    return held.like(cast(held.data, dtype), dtype=dtype)


def _is_zero(value: QRealizeIntExpr) -> bool:
    return value.low == value.high == value.zero_point


def _step_bound(value: QRealizeIntExpr, room: int, qconfig: QConfig) -> int:
    if value.dtype == qconfig.dtype_input and value.zero_point == 0:
        return (1 << (qconfig.nbit_input - 1)) - 1
    if value.dtype == "float32":
        return value.bound
    if value.zero_point or bits(value.dtype) < bits(qconfig.dtype_activation):
        return max(abs(value.low - value.zero_point), abs(value.high - value.zero_point))
    return room


def _narrow_fields(ref_fields: tuple[Expr, ...], flat: Fields, qconfig: QConfig) -> Fields:
    scale = DomScale(as_scale(max(v.dom_scale.data for v in flat)))
    bound = float((1 << (qconfig.nbit_input - 1)) - 1)
    return [
        v
        if v.dom_scale.data == scale.values
        else requantize(v, scale, -bound, bound, rank_of(ref), qconfig)
        for ref, v in zip(ref_fields, flat)
    ]


def _stored_fields(ref_fields: tuple[Expr, ...], flat: Fields, qconfig: QConfig) -> Fields:
    """Narrow fields of several dtypes or zero points, in one storage that holds all of them."""
    kinds = {(v.dtype, v.zero_point, float(v.dom_scale.data)) for v in flat}
    if len(kinds) == 1:
        return flat
    scale, low, high = _common_storage(flat, qconfig)
    shift = zero_point_for(low, high, qconfig)
    dtype = storage_dtype(low + shift, high + shift, qconfig)
    assert dtype is not None
    acc = qconfig.dtype_activation
    fields: Fields = []
    for ref, v in zip(ref_fields, flat):
        same_scale = v.dom_scale.data == scale.values
        if same_scale and (v.dtype, v.zero_point) == (dtype, shift):
            fields.append(v)
            continue
        wide = v.centred(acc)
        moved = wide.like(wide.in_dtype(acc), dtype=acc)
        if not same_scale:
            moved = requantize(moved, scale, low, high, rank_of(ref), qconfig)
        data = add(moved.in_dtype(acc), scalar(shift, acc)) if shift else moved.data
        made = integers(cast(data, dtype), scale, dtype, v.bounds_of, zero_point=shift)
        fields.append(made)
    return fields


def _common_storage(flat: Fields, qconfig: QConfig) -> tuple[DomScale, int, int]:
    """The finest scale at which one storage holds every field, and the range of all there."""
    ends = [(float(v.dom_scale.data), v.low - v.zero_point, v.high - v.zero_point) for v in flat]
    lowest = min(0.0, *(scale * low for scale, low, _ in ends))
    highest = max(0.0, *(scale * high for scale, _, high in ends))
    bottom, top = integer_limits(qconfig.dtype_input)
    levels = top - bottom
    if lowest >= 0 or qconfig.activation_scheme == "asymmetric":
        needed = (highest - lowest) / levels
    else:
        needed = max(highest / top, lowest / bottom)
    scale = chosen_scale(max(*(scale for scale, _, _ in ends), needed), qconfig)
    low = round(lowest / float(scale))
    high = round(highest / float(scale))
    if zero_point_for(low, high, qconfig) == 0 and storage_dtype(low, high, qconfig) is None:
        # Rounding both ends has made one level too many.
        if qconfig.activation_scheme == "asymmetric":
            high = low + levels
        else:
            high = top
    return DomScale(scale), low, high


# ---- scales --------------------------------------------------------------------------------------


Factor = NDArray[np.float32]


def input_quantization(ref_arg: Expr) -> bool:
    """True when the argument of the annotated graph is directly a quantization of kind INPUT."""
    attrs = point_attrs(ref_arg)
    return attrs is not None and attrs.kind == QAnnotateKind.INPUT


def unify_for_add(
    ref_call: Call, operands: Pair, qconfig: QConfig, reach: float = math.inf
) -> tuple[Pair, DomScale]:
    """Both operands of an add in the accumulator dtype, at the smaller scale of the two.

    The coarser side is scaled up; where its static bound could leave the dtype it is saturated so
    that the sum still fits. Operands that were held in float32 are wrapped in stop_fusion.

    Args:
        reach: readers of the sum limit it to [-reach, reach], in real units; 0 of a comparison,
            which asks for the sign of a difference.
    Raises:
        IntegerOverflowError: the sum may overflow though nothing was scaled.
    """
    acc = qconfig.dtype_activation
    rank = len(ref_call.tensor_type.shape)
    lhs, rhs = (value.settled() for value in operands)
    if not lhs.scale.same_axis(rhs.scale):
        rhs = to_scalar(rhs, rank_of(ref_call.args[1]), qconfig)
    narrow = [
        input_quantization(ref_arg) or value.is_narrow(qconfig)
        for ref_arg, value in zip(ref_call.args, operands)
    ]
    if qconfig.form.rounds_twice:
        if all(narrow):
            return _rounded_apart(ref_call, (lhs, rhs), qconfig)
        kept = (
            _kept_bits(ref_arg) == WIDE_BITS and not value.scale.is_vector
            for ref_arg, value in zip(ref_call.args, (lhs, rhs))
        )
        if all(map(max, narrow, kept)):
            return _in_sixteen(ref_call, (lhs, rhs), qconfig)
    scale = lhs.scale.smaller(rhs.scale)
    pair = [
        _as_accumulator(ref_arg, value, acc, qconfig)
        for ref_arg, value in zip(ref_call.args, (lhs, rhs))
    ]
    limit = integer_limits(acc)[1]
    rooms: list[int] | None = None
    if qconfig.form.rounds_twice:
        beside = _with_constant(ref_call, operands, narrow)
    else:
        beside = None
    if beside is not None:
        scale = beside
    elif qconfig.integer_tables:
        scale, rooms = _fitting(_finer(scale, pair, limit), pair, limit, reach)
    factors = [scale_factor(value, scale) for value in pair]
    wanted = [_scaled_bound(value, factor) for value, factor in zip(pair, factors)]
    result = []
    for i, (value, factor) in enumerate(zip(pair, factors)):
        room = limit if rooms is None else rooms[i]
        if rooms is None and sum(wanted) > limit and (factor != 1).any():
            room = max(limit - wanted[1 - i], limit // 2)
        unified = mul_and_div(value, factor, scale, room, ref_call.args[i], rank, qconfig)
        wanted[i] = unified.bound
        if (lhs, rhs)[i].dtype == "float32":
            unified = unified.like(stop_fusion(unified.data))
        result.append(unified)
    require_fits(sum(wanted), acc, ref_call)
    return (result[0], result[1]), scale


def _rounded_apart(ref_call: Call, operands: Pair, qconfig: QConfig) -> tuple[Pair, DomScale]:
    """Narrow operands as TFLM's ADD and SUB bring them together: 2^20 times as fine, then each to
    2^-20 of twice the larger scale."""
    largest = max(float(value.scale.values) for value in operands)
    scale = DomScale(as_scale(2 * largest / (1 << SUM_SHIFT)), wide=True)
    acc = qconfig.dtype_activation
    result = []
    for ref_arg, operand in zip(ref_call.args, operands):
        value = _as_accumulator(ref_arg, operand, acc, qconfig)
        raised = left_shift(value.data, scalar(SUM_SHIFT, acc))
        factor = np.asarray(float(value.scale.values) / (2 * largest))
        rank = rank_of(ref_arg)
        multiplier = tflm_multiplier(factor)
        finer = DomScale(as_scale(np.ldexp(value.scale.values, -SUM_SHIFT)))
        data = requantized(raised, *multiplier, None, rank, "tflm", acc, (finer, scale))
        result.append(integers(data, scale, acc, value.bounds_of))
    require_fits(result[0].bound + result[1].bound, acc, ref_call)
    return (result[0], result[1]), scale


_WIDEST: Final = (1 << (WIDE_BITS - 1)) - 1


def _kept_bits(ref_arg: Expr) -> int | None:
    """Return the bits of a point that has its own, or of the state of a loop."""
    if is_op_call(ref_arg, STATE):
        return WIDE_BITS
    attrs = point_attrs(ref_arg)
    if attrs is None:
        return None
    return attrs.bits


def _in_sixteen(ref_call: Call, operands: Pair, qconfig: QConfig) -> tuple[Pair, DomScale]:
    """Operands of 16 bits and of 8, at one scale where 16 hold both: LiteRT files bring them there
    with QUANTIZE, and add int32."""
    reach = (float(v.scale.values) * min(v.bound, _WIDEST) / _WIDEST for v in operands)
    scale = DomScale(chosen_scale(max(reach), qconfig), wide=True)
    acc = qconfig.dtype_activation
    result = []
    for ref_arg, operand in zip(ref_call.args, operands):
        value = _as_accumulator(ref_arg, operand, acc, qconfig)
        low, high = integer_limits("int16")
        result.append(requantize(value, scale, low, high, rank_of(ref_arg), qconfig))
    return (result[0], result[1]), scale


_FINER: Final = 2.0**-8


def _with_constant(ref_call: Call, operands: Pair, narrow: Sequence[bool]) -> DomScale | None:
    """Return the scale that brings a narrow operand and a constant together without a rounding:
    LiteRT files scale no int32 to int32."""
    for place in (0, 1):
        scale = operands[place].scale
        constant = is_quantized_constant(ref_call.args[1 - place])
        if constant and narrow[place] and not scale.is_vector:
            return beside_constant(scale)
    return None


def _finer(scale: DomScale, pair: Sequence[QRealizeIntExpr], limit: int) -> DomScale:
    """A part of the scale where narrow integers of another scale would be rounded to it.

    The sum is rounded once more behind the add; 8 more bits keep both roundings from adding up.
    """
    others = [value for value in pair if (value.scale.values != scale.values).any()]
    factors = [scale_factor(value, scale) for value in others]
    if all((np.rint(factor) == factor).all() for factor in factors):
        return scale
    fine = replace(scale, values=as_scale(scale.values * np.float32(_FINER)))
    bounds = sum(_scaled_bound(value, scale_factor(value, fine)) for value in pair)
    if bounds <= limit >> 7:
        return fine
    return scale


def _fitting(
    scale: DomScale, pair: Sequence[QRealizeIntExpr], limit: int, reach: float
) -> tuple[DomScale, list[int]]:
    """The scale times a power of two, of each channel, where the sum does not fit, and how far
    each side may go.

    A side that is scaled up goes as far as readers of the sum tell it apart: the rest may be
    saturated, since the other side cannot bring it back within their reach.
    """
    factors = [scale_factor(value, scale).astype(np.float64) for value in pair]
    wanted = [np.ceil(value.bound * factor) + 1 for value, factor in zip(pair, factors)]
    most = limit - 2 * len(pair)
    if sum(float(one.max()) for one in wanted) <= most:
        return scale, [math.ceil(one.max()) for one in wanted]
    within = reach / scale.values.astype(np.float64)
    needed = [
        np.where(factor > 1, np.minimum(own, within + other + factor), own)
        for own, other, factor in zip(wanted, reversed(wanted), factors)
    ]
    more = np.maximum(np.ceil(np.log2(sum(needed) / most)), 0)
    # Channels may be largest on different sides.
    more += sum(float((one * 2.0**-more).max()) for one in needed) > most
    rooms = [math.ceil((one * 2.0**-more).max()) + 1 for one in needed]
    return replace(scale, values=as_scale(scale.values * 2.0**more)), rooms


def _as_accumulator(
    ref_arg: Expr, value: QRealizeIntExpr, acc: str, qconfig: QConfig
) -> QRealizeIntExpr:
    narrow = storage_dtype(value.low, value.high, qconfig)
    if value.dtype != acc:
        data = value.data
        stored = qconfig.form.stores_values or qconfig.layers.narrow_sums
        if value.dtype == "float32" and narrow and stored:
            data = cast(data, narrow)  # a file has one input for all its readers
        return value.like(cast(data, acc), dtype=acc).centred(acc)
    if narrow is not None and input_quantization(ref_arg):
        # Stored narrow: this is what a fused kernel writes to memory.
        data = cast(value.data, narrow)
        if qconfig.is_relay or can_be_stored(data):
            data = stop_fusion(data)
        return value.like(cast(data, acc)).centred(acc)
    return value.like(value.data)


def scale_factor(value: QRealizeIntExpr, scale: DomScale) -> Factor:
    """Old scale over new scale."""
    return as_scale(value.dom_scale.data / scale.values)


def _scaled_bound(value: QRealizeIntExpr, factor: Factor) -> int:
    top = float(factor.max())
    if top == 1.0:
        return value.bound
    return int(np.ceil(value.bound * top)) + 1


def mul_and_div(
    value: QRealizeIntExpr,
    factor: Factor,
    scale: DomScale,
    room: int,
    ref_arg: Expr,
    rank: int,
    qconfig: QConfig,
) -> QRealizeIntExpr:
    """``value`` at the scale ``scale``: data * factor, saturated to [-room, room] if needed.

    Args:
        value: integers in the accumulator dtype.
        factor: old scale over new scale, rank 0 or one per channel of ``scale``. It is below 1
            only where the other operand's scale is far coarser (see ``DomScale.smaller``).
        ref_arg: the operand as the annotated graph has it, typed.
        rank: of the result of the operator.
    """
    if (factor == 1).all() or value.bound == 0:
        held = clip(value.data, -room, room) if value.bound > room else value.data
        return integers(held, scale, value.dtype, value.bounds_of)
    trailing = scale.trailing if factor.ndim else None
    if factor.ndim:
        value, rank = _spread(value, scale, ref_arg, rank)
    top = float(factor.max())
    overflows = _scaled_bound(value, factor) > room
    dtype = value.dtype
    shifts = exact_log2(factor) if (factor >= 1).all() else None
    whole = np.rint(factor)
    work = "int64" if overflows else dtype
    data: Expr = cast(value.data, work) if overflows else value.data
    scales = None if qconfig.is_relay else (value.scale, scale)
    if shifts is not None and (not overflows or int(shifts.max()) + value.bound.bit_length() < 63):
        powers = np.full_like(shifts, POWER_OF_TWO)
        data = requantized(data, powers, 1 + shifts, trailing, rank, "up", work, scales)
    elif (whole == factor).all() and value.bound * top < 2.0**62:
        data = multiply(data, along_axis(whole.astype(np.int64), trailing, work))
    else:
        data = value.data
        if overflows or not within_contract(value.bound, factor):
            # Clipping first keeps the product inside 32 bits.
            reach = max(int(room / top), 1)
            data = clip(data, -reach, reach)
        if value.bound > integer_limits(dtype)[1] >> 1:
            data = cast(data, "int64")  # a power of two is a shift, with half added in this dtype
            work = "int64"
        else:
            work = dtype
        factors = multiplier_and_shift(factor)
        ties = TIES[qconfig.rounding]
        data = requantized(data, *factors, trailing, rank, ties, work, scales)
        data = cast(data, dtype)
        return integers(data, scale, dtype, value.bounds_of)
    if overflows:
        data = cast(clip(data, -room, room), dtype)
    return integers(data, scale, dtype, value.bounds_of)


def _spread(
    value: QRealizeIntExpr, scale: DomScale, ref_arg: Expr, rank: int
) -> tuple[QRealizeIntExpr, int]:
    """The operand with its channel axis at full length, and its rank."""
    assert scale.trailing is not None
    shape = getattr(ref_arg.checked_type, "shape", ())
    axis = len(shape) - scale.trailing - 1
    if axis >= 0 and shape[axis] == scale.values.size:
        return value, len(shape)
    zeros = along_axis(np.zeros(scale.values.size), scale.trailing, value.dtype)
    return value.like(add(value.data, zeros)), max(len(shape), scale.trailing + 1)


def rank_of(ref_arg: Expr) -> int:
    """Axes of a typed operand."""
    return len(ref_arg.tensor_type.shape)
