"""Integer rules of image.resize2d and nn.upsampling: nearest moves elements, others mix them."""

from __future__ import annotations

from typing import Any

from compiler.ir.expr import Args, Call, Expr, is_op_call
from compiler.ir.op import DEFAULT_LEVEL
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.image.interpolated_integers import Weights, mixed_scale, realize_mixing
from compiler.ops.image.resampling import mixing_weights
from compiler.ops.pass_through import annotate_accumulating, realize_moving_channels
from compiler.ops.rules.annotate import FQAnnotateRewrite, QAnnotateExpr, kind_of, with_args
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, moved_scale
from compiler.ops.rules.never_negative import FNeverNegative
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

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
    if is_op_call(call, "image.resize2d"):
        coordinates, alpha = attrs.coordinate_transformation_mode, attrs.cubic_alpha
    else:
        coordinates, alpha = "align_corners" if attrs.align_corners else "asymmetric", -0.5
    axes = [attrs.layout.index(letter) for letter in "HW"]
    return tuple(
        (axis, mixing_weights(shape[axis], out[axis], attrs.method, coordinates, alpha))
        for axis in axes
        if shape[axis] != out[axis]
    )


@FQAnnotateRewrite.register(*RESIZERS, level=LEVEL)
@with_tables
def resize_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Elements are repeated or mixed: narrow ones, which are cheaper."""
    if not _moves(ref_call):
        return annotate_accumulating(ref_call, args, ctx)
    if kind_of(args[0]) is None or ctx.check_to_skip(ref_call):
        return None
    return QAnnotateExpr(with_args(ref_call, (as_input(args[0], ctx),)), QAnnotateKind.INPUT)


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
