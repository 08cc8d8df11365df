"""annotation.cast_hint(dtype): the identity; asks that the value cross a border in ``dtype``.
annotation.stop_fusion: the identity; FuseOps does not look through it.
"""

from __future__ import annotations

from compiler.ir.expr import Args, Call, Expr
from compiler.ir.ty import is_float
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.identity import identity_op
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import same_scale
from compiler.ops.rules.integer_calls import cast
from compiler.ops.rules.pass_through import (
    annotate_pass_through,
    keeps_integers,
)
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    can_be_stored,
    of_integers,
    storage_dtype,
)
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind


class CastHintAttrs(OpAttrs):
    """The storage dtype the quantizer should choose."""

    dtype: str


cast_hint = identity_op("annotation.cast_hint", CastHintAttrs)


@FQAnnotateRewrite.register(cast_hint)
def cast_hint_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr:
    """Quantizes an accumulator; disappears where nothing is quantized."""
    (data,) = args
    if ctx.check_to_skip(ref_call) or kind_of(data) is None:
        return unannotated(data)
    if ref_call in ctx.facts.wide_values and kind_of(data) == QAnnotateKind.ACTIVATION:
        return data
    return annotated(ref_call, (as_input(data, ctx),), QAnnotateKind.INPUT)


@FQRealizeRewrite.register(cast_hint)
@of_integers
def cast_hint_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """A cast to the dtype of the hint, which may be float; none for values that do not fit, or that
    have the dtype already; Relay has it all the same.

    Values do not fit behind an operator without quantize points (``debug_enabled_ops``).
    """
    attrs = CastHintAttrs.of(ref_call)
    if is_float(attrs.dtype):
        return data.realize()
    dtype = attrs.dtype if data.fits(attrs.dtype) else None
    dtype = dtype or storage_dtype(data.low, data.high, ctx.qconfig)
    if dtype is None:
        return data.like(data.data)
    if dtype == data.dtype and not ctx.qconfig.is_relay:
        return data
    return data.like(cast(data.data, dtype), dtype=dtype)


# ---- stop_fusion -------------------------------------------------------------------------------

stop_fusion = identity_op("annotation.stop_fusion")


FQAnnotateRewrite.register(stop_fusion)(annotate_pass_through)


@FQRealizeRewrite.register(stop_fusion)
@of_integers
def stop_fusion_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """The mark, behind a requantization, which takes it in as ``stored``; Relay has it always."""
    if ctx.qconfig.is_relay or can_be_stored(data.data):
        return data.like(with_args(ref_call, (data.data,)), channel_clip=data.channel_clip)
    return data


keeps_integers(cast_hint, stop_fusion, scale=same_scale)
