"""One dtype, one scale and one zero point for the fields of a concatenate.

Narrow fields take the largest of their scales. Wide fields take a scale at which every field fits.
Relay scales up in the narrow dtype, which overflows, and has no zero points.
"""

from __future__ import annotations

from compiler.ir.expr import Expr
from compiler.ir.ty import bits
from compiler.ops.rules.dom_scale import DomScale, as_scale, chosen_scale
from compiler.ops.rules.fixed_point import scaled
from compiler.ops.rules.integer_calls import add, cast, scalar
from compiler.ops.rules.realize import (
    QRealizeIntExpr,
    integer_limits,
    integers,
    storage_dtype,
    zero_point_for,
)
from compiler.ops.rules.requantize import requantize, to_scalar
from compiler.ops.rules.unify_scales import mul_and_div, rank_of, scale_factor
from compiler.qtypes.qconfig import QConfig

Fields = list[QRealizeIntExpr]


def unify_for_concatenate(
    ref_fields: tuple[Expr, ...], values: tuple[QRealizeIntExpr, ...], qconfig: QConfig
) -> Fields:
    """The fields, alike in dtype, scale and zero point.

    Args:
        ref_fields: as the annotated graph has them, typed.
    """
    narrow, acc = qconfig.dtype_input, qconfig.dtype_activation
    flat = [to_scalar(v.settled(), rank_of(r), qconfig) for v, r in zip(values, ref_fields)]
    if qconfig.for_tflm:
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
            data, rank = cast(held.data, "int64"), rank_of(ref)
            product = scaled(data, factor, None, rank, qconfig.rounding, "int64", units)
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
        data = add(moved.data, scalar(shift, acc)) if shift else moved.data
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
    low, high = round(lowest / float(scale)), round(highest / float(scale))
    if zero_point_for(low, high, qconfig) == 0 and storage_dtype(low, high, qconfig) is None:
        # Rounding both ends has made one level too many.
        high = low + levels if qconfig.activation_scheme == "asymmetric" else top
    return DomScale(scale), low, high
