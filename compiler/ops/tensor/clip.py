"""clip(a_min, a_max): out = max(min(x, a_max), a_min).

On integers the bounds are truncated toward zero and saturated to the dtype.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type, integer_range
from compiler.lir.scalars import Bin, Scalar
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules import integer_calls
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale, same_scale
from compiler.ops.rules.lower import FLower, elementwise, like_first
from compiler.ops.rules.never_negative import FNeverNegative
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import annotate_pass_through, partition_pass_through
from compiler.ops.rules.realize import (
    ChannelClip,
    FQRealizeRewrite,
    QRealizeIntExpr,
    integer_limits,
    of_integers,
)
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.ops.tensor.number_rel import number_rel
from compiler.qtypes.context import QuantizeContext


class ClipAttrs(OpAttrs):
    """Bounds in the units of the data."""

    a_min: float
    a_max: float


clip = register_op("clip", attrs_type=ClipAttrs, rel=number_rel("clip"), pattern=OpPattern.ELEMWISE)


def integer_bound(value: float, dtype: str) -> int:
    """A clip bound as the integer kernels use it: truncated, then saturated to ``dtype``."""
    low, high = integer_range(dtype)
    if value == value:
        return int(min(max(value, low), high))
    return 0


@FNumpyCompute.register(clip)
def clip_numpy(attrs: ClipAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """NaN stays NaN."""
    data = args[0]
    if data.dtype.kind == "f":
        low, high = attrs.a_min, attrs.a_max
    else:
        dtype = str(data.dtype)
        low = integer_bound(attrs.a_min, dtype)
        high = integer_bound(attrs.a_max, dtype)
    held = np.asarray(np.minimum(data, data.dtype.type(high)))
    return [np.maximum(held, data.dtype.type(low), out=held)]


FQPartitionRewrite.register(clip)(partition_pass_through)
FQAnnotateRewrite.register(clip)(annotate_pass_through)
FQDomScale.register(clip)(same_scale)
FQZeroPoint.register(clip)(centred)


@FQRealizeRewrite.register(clip)
@of_integers
def clip_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """Bounds in units of the integers, per channel where scales are: rounded to the nearest, under
    Relay's QConfig truncated as its kernels do."""
    attrs = ClipAttrs.of(ref_call)
    if data.dtype == "float32":  # as wide as the bounds may lie
        acc = ctx.qconfig.dtype_activation
        data = data.like(data.in_dtype(acc), dtype=acc)
    scale = data.dom_scale.data.astype(np.float64)
    limits = integer_limits(data.dtype)
    whole = np.trunc if ctx.qconfig.is_relay else np.rint
    floor = whole(np.clip(attrs.a_min / scale, *limits)).astype(np.int64)
    ceiling = whole(np.clip(attrs.a_max / scale, *limits)).astype(np.int64)
    if data.trailing is None:
        return data.like(integer_calls.clip(data.data, int(floor), int(ceiling)))
    upper = integer_calls.along_axis(ceiling, data.trailing, data.dtype)
    lower = integer_calls.along_axis(floor, data.trailing, data.dtype)
    held = integer_calls.maximum(integer_calls.minimum(data.data, upper), lower)
    return data.like(held, channel_clip=ChannelClip(data, floor, ceiling))


@FLower.register(clip)
@elementwise
def clip_lower(attrs: ClipAttrs, x: Scalar) -> Scalar:
    """Two comparisons."""
    low, high = attrs.a_min, attrs.a_max
    if not x.dtype.startswith("float"):
        low = integer_bound(low, x.dtype)
        high = integer_bound(high, x.dtype)
    return Bin("max", Bin("min", x, like_first(high, x)), like_first(low, x))


@FNeverNegative.register(clip)
def clip_sign(call: Call, operands: tuple[bool, ...]) -> bool:
    """A lower bound of 0 or more, or a clip of values >= 0 that does not end below 0."""
    attrs = ClipAttrs.of(call)
    return attrs.a_min >= 0 or (operands[0] and attrs.a_max >= 0)


@FBody.register("clip")
def clip_body(step: Step, words: Words) -> Value:
    """Below the one and above the other bound, as the integers take them."""
    (x,) = step.args
    low, high = (integer_bound(b, x.type.dtype) for b in (step.attrs.a_min, step.attrs.a_max))
    return words.clip(x, low, high)
