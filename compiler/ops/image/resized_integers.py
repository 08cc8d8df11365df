"""Integer rules of image.resize2d and nn.upsampling: nearest moves elements, others mix them."""

from __future__ import annotations

from typing import Any

from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import DEFAULT_LEVEL
from compiler.ops.image.interpolated_integers import Weights, mixed_scale, realize_mixing
from compiler.ops.image.resampling import mixing_weights
from compiler.ops.pass_through import (
    annotate_accumulating,
    annotate_max_pool,
    realize_moving_channels,
)
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, moved_scale
from compiler.ops.rules.never_negative import FNeverNegative
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

RESIZERS = ("image.resize2d", "nn.upsampling")
# Below the default level, so that a registration of one's own takes the place of these rules.
LEVEL = DEFAULT_LEVEL - 5


def _moves(call: Call) -> bool:
    attrs: Any = call.attrs
    return bool(attrs.method == "nearest_neighbor")


def _weights(call: Call) -> tuple[Weights, ...]:
    """Of the axes whose size changes."""
    attrs: Any = call.attrs
    shape = call.args[0].tensor_type.concrete_shape
    out = call.tensor_type.concrete_shape
    return tuple(
        (axis, mixing_weights(shape[axis], out[axis], attrs.interpolation))
        for axis in (attrs.layout.index(letter) for letter in "HW")
        if shape[axis] != out[axis]
    )


@FQAnnotateRewrite.register(*RESIZERS, level=LEVEL)
@with_tables
def resize_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Elements are repeated or mixed: narrow ones, which are cheaper."""
    annotate = annotate_max_pool if _moves(ref_call) else annotate_accumulating
    return annotate(ref_call, args, ctx)


@FQRealizeRewrite.register(*RESIZERS, level=LEVEL)
@with_tables
def resize_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The operator itself, or sums of weighted neighbours."""
    if _moves(ref_call):
        return realize_moving_channels(ref_call, args, ctx)
    return realize_mixing(ref_call, args, _weights(ref_call), ctx)


@FQDomScale.register(*RESIZERS)
def resize_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The scale of the data, over the denominators of the weights."""
    if _moves(call):
        return moved_scale(call, scales, qconfig)
    return mixed_scale(scales[0], _weights(call))


@FQZeroPoint.register(*RESIZERS, level=LEVEL)
def resize_zero_point(call: Call, place: int) -> ZeroPoint:
    """Picking elements keeps it; interpolation computes with them."""
    return ZeroPoint.KEEPS if _moves(call) else ZeroPoint.CENTRES


@FNeverNegative.register(*RESIZERS)
def resize_sign(call: Call, operands: tuple[bool, ...]) -> bool:
    """Picked elements and linear mixtures keep it; cubic ones overshoot."""
    attrs: Any = call.attrs
    return operands[0] and attrs.method in ("nearest_neighbor", "linear", "bilinear")
