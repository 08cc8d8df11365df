"""Rules of operators that move, repeat, select or bound elements and so keep scale and integers.

relu, clip, reshape, transpose, strided_slice, batch_flatten, stop_fusion; with the rules of pooling
by maximum, which also keeps the scale but works on narrow integers. With ``integer_tables`` those
that the reference leaves in float, too: one scale per channel becomes a single scale first, because
the channel axis may move.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr, Op, is_op_call
from compiler.ir.op import DEFAULT_LEVEL
from compiler.ops.annotation.attach_simulated_quantize import as_input, attach_simulated_quantize
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import (
    DomScale,
    FQDomScale,
    ScaleRule,
    as_scale,
    moved_scale,
    same_scale,
)
from compiler.ops.rules.integer_calls import cast, multiply
from compiler.ops.rules.never_negative import FNeverNegative, first_positive
from compiler.ops.rules.partition import FQPartitionRewrite, QPartitionExpr, inner
from compiler.ops.rules.realize import (
    WIDE_INPUT,
    FQRealizeRewrite,
    QRealizeIntExpr,
    integer_limits,
    integers,
    of_integers,
    storage_dtype,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.with_tables import LEVEL, Rule, tabulates
from compiler.ops.rules.zero_point import FQZeroPoint, kept
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind


def partition_pass_through(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Stays inside the region of its operand."""
    data, *rest = args
    if not isinstance(data, QPartitionExpr):
        return None
    return QPartitionExpr(with_args(ref_call, (data.expr, *rest)), data.dtype)


def partition_inside(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Takes its operands from inside the region: a border would round accumulators to 8 bits."""
    sides = tuple(map(inner, args))
    if sides == args:
        return None
    return with_args(ref_call, sides)


def annotate_pass_through(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The result has the kind of the operand."""
    if ctx.check_to_skip(ref_call):
        return None
    kind = kind_of(args[0])
    if kind is None:
        return None
    data, kind = moved_operand(ref_call, args[0], kind, ctx)
    return annotated(ref_call, (data, *args[1:]), kind)


def moved_operand(
    ref_call: Call, arg: Expr, kind: QAnnotateKind, ctx: QuantizeContext
) -> tuple[Expr, QAnnotateKind]:
    """The operand of a move, and its kind: narrow in front of those of ``narrow_moves``."""
    if ref_call in ctx.facts.narrow_moves:
        return as_input(arg, ctx), QAnnotateKind.INPUT
    return unannotated(arg), kind


@of_integers
def realize_keeping_channels(
    ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext
) -> Expr | None:
    """The operator itself on the integers; one scale per channel stays one scale per channel."""
    return data.like(with_args(ref_call, (data.data,)), channel_clip=data.channel_clip)


@of_integers
def realize_relu(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """max(x, 0) on the integers."""
    data = in_integers(data, ctx)
    return data.like(with_args(ref_call, (data.data,)))


def in_integers(data: QRealizeIntExpr, ctx: QuantizeContext) -> QRealizeIntExpr:
    """The value in an integer dtype: an input of the model that was just quantized is in float32
    still, and only conversions may read it there."""
    if data.dtype != "float32":
        return data
    if data.fits(WIDE_INPUT):
        wide = WIDE_INPUT
    else:
        wide = ctx.qconfig.dtype_activation
    dtype = storage_dtype(data.low, data.high, ctx.qconfig) or wide
    return data.like(cast(data.data, dtype), dtype=dtype)


def realize_moving_channels(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The operator itself on the integers; scales per channel become one scale first."""
    data = args[0]
    if not isinstance(data, QRealizeIntExpr):
        return None
    data = movable(data, ref_call, ctx)
    return data.like(with_args(ref_call, (data.data, *args[1:])))


def movable(data: QRealizeIntExpr, ref_call: Call, ctx: QuantizeContext) -> QRealizeIntExpr:
    """The first operand of a call at one scale and, where it fits, in its narrow dtype."""
    data = to_scalar(data, len(ref_call.args[0].tensor_type.shape), ctx.qconfig)
    if not ctx.qconfig.integer_tables:
        return data
    data = in_integers(data, ctx)
    narrow = storage_dtype(data.low, data.high, ctx.qconfig)
    if narrow is None or data.dtype == narrow:
        return data
    return data.like(cast(data.data, narrow), dtype=narrow)


def _of_narrow(kind: QAnnotateKind) -> Rule:
    """Works on narrow integers: an accumulator is quantized first, and data in float stay so.

    Args:
        kind: of the result.
    """

    def annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
        if ctx.check_to_skip(ref_call) or kind_of(args[0]) is None:
            return None
        return annotated(ref_call, (as_input(args[0], ctx),), kind)

    return annotate


annotate_accumulating = _of_narrow(QAnnotateKind.ACTIVATION)
annotate_max_pool = _of_narrow(QAnnotateKind.INPUT)


def annotate_tabulated(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Looks narrow integers up in a table; the result is an accumulator, as fine as it needs.

    A table of bytes gives narrow integers, too.
    """
    if ctx.check_to_skip(ref_call) or not tabulates(ctx):
        return None
    found = annotated(ref_call, (as_input(args[0], ctx),))
    if ctx.qconfig.form.byte_tables:
        return QAnnotateExpr(as_input(found, ctx), QAnnotateKind.INPUT)
    return found


@of_integers
def realize_max_pool(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """The maximum of narrow integers; of wide integers when no quantize point clipped the data."""
    dtype = storage_dtype(data.low, data.high, ctx.qconfig)
    if dtype is None or (dtype == data.dtype and not ctx.qconfig.is_relay):
        return data.like(with_args(ref_call, (data.data,)))
    return data.like(with_args(ref_call, (cast(data.data, dtype),)), dtype=dtype)


def moves_elements(*ops: Op | str, level: int = DEFAULT_LEVEL, needs_tables: bool = False) -> None:
    """Register the rules of operators that only move elements: scale, sign and integers stay.

    Args:
        ops: the operators.
        level: of the rules.
        needs_tables: the operators stay in float without ``integer_tables``.
    """
    FQPartitionRewrite.register(*ops, level=level, needs_tables=True)(partition_pass_through)
    for table, rule in (
        (FQAnnotateRewrite, annotate_pass_through),
        (FQRealizeRewrite, realize_moving_channels),
    ):
        table.register(*ops, level=level, needs_tables=needs_tables)(rule)
    keeps_integers(*ops, level=level)


def keeps_integers(
    *ops: Op | str, scale: ScaleRule = moved_scale, level: int = DEFAULT_LEVEL
) -> None:
    """State that results are integers of the first operand, at its scale by this rule."""
    FQDomScale.register(*ops)(scale)
    FQZeroPoint.register(*ops, level=level)(kept)
    FNeverNegative.register(*ops)(first_positive)


# ---- moves of integers ---------------------------------------------------------------------------


MOVES = (
    "broadcast_to",
    "expand_dims",
    "nn.depth_to_space",
    "nn.space_to_depth",
    "repeat",
    "reverse",
    "squeeze",
    "tile",
)
PICKED = ("max", "min", "nn.global_max_pool2d")
PICKS = ("take", "gather", "gather_nd")

moves_elements(*MOVES, level=LEVEL, needs_tables=True)


@FQAnnotateRewrite.register(*PICKED, level=LEVEL, needs_tables=True)
def picked_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Read narrow integers; keep accumulators for values that may be masked with -inf."""
    masks = ref_call.args[0] in ctx.facts.masks
    return (annotate_pass_through if masks else annotate_max_pool)(ref_call, args, ctx)


FQRealizeRewrite.register(*PICKED, level=LEVEL, needs_tables=True)(realize_max_pool)
keeps_integers(*PICKED, scale=same_scale, level=LEVEL)
keeps_integers(*PICKS, level=LEVEL)


@FQAnnotateRewrite.register(*PICKS, level=LEVEL, needs_tables=True)
def pick_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Elements of computed data stay as they are; a constant table that computed indices pick from
    (an embedding) is stored in integers.

    A table whose rows are added up for a layer norm keeps 16 bits, as such sums do; one that is a
    weight as well has its integers.
    """
    table, indices = (unannotated(arg) for arg in args)
    if not isinstance(table, Constant):
        return annotate_pass_through(ref_call, args, ctx)
    if isinstance(indices, Constant) or ctx.check_to_skip(ref_call):
        return None
    wide = ref_call in ctx.facts.wide_values
    tied = table in ctx.facts.tied_tables
    nbit = WIDE_BITS if wide and not tied else None
    point = attach_simulated_quantize(table, QAnnotateKind.WEIGHT, context=ctx, bits=nbit)
    if wide or tied:
        kind = QAnnotateKind.ACTIVATION
    else:
        kind = QAnnotateKind.INPUT
    return annotated(ref_call, (point, indices), kind)


@FQRealizeRewrite.register(*PICKS, level=LEVEL, needs_tables=True)
def pick_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The elements; rows that have a scale each are multiplied by it, at one scale as fine as the
    accumulator holds."""
    table, indices = args
    rank = len(ref_call.args[0].tensor_type.shape)
    attrs: Any = ref_call.attrs
    if not isinstance(table, QRealizeIntExpr) or not picks_along(ref_call, table.trailing):
        return realize_moving_channels(ref_call, args, ctx)
    acc = ctx.qconfig.dtype_activation
    scales = table.dom_scale.data
    finer = ((integer_limits(acc)[1] >> 2) // max(table.bound, 1)).bit_length() - 1
    scale = as_scale(np.ldexp(scales.max(), -finer))
    factors = Constant(np.rint(scales / scale).astype(acc))
    narrow = storage_dtype(table.low, table.high, ctx.qconfig)
    held = cast(table.data, narrow or table.dtype)
    rows = cast(with_args(ref_call, (held, indices)), acc)
    own = op_call("take", factors, indices, axis=0, mode=attrs.mode)
    behind = len(ref_call.args[1].tensor_type.shape)
    own = op_call("expand_dims", own, axis=behind, num_newaxis=rank - 1 - attrs.axis % rank)
    return integers(multiply(rows, own), DomScale(scale, wide=True), acc, ctx.bounds_of)


def picks_along(call: Call, trailing: int | None) -> bool:
    """Return whether indices pick along the axis with ``trailing`` axes behind it."""
    attrs: Any = call.attrs
    if trailing is None or not is_op_call(call, "take") or attrs.axis is None or attrs.batch_dims:
        return False
    rank = len(call.args[0].tensor_type.shape)
    return bool(attrs.axis % rank == rank - 1 - trailing)
