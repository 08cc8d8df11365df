"""Integer rules of operators that move, repeat or pick elements, with ``integer_tables``.

Scale and integers stay; one scale per channel becomes a single scale first, because the channel
axis may move. Operators that the reference quantizes have their rules in their own files.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr, is_op_call
from compiler.ops.annotation.attach_simulated_quantize import attach_simulated_quantize
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite, annotated, unannotated, with_args
from compiler.ops.rules.dom_scale import DomScale, as_scale, same_scale
from compiler.ops.rules.integer_calls import cast, multiply
from compiler.ops.rules.pass_through import (
    annotate_max_pool,
    annotate_pass_through,
    keeps_integers,
    moves_elements,
    realize_max_pool,
    realize_moving_channels,
)
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    integer_limits,
    integers,
    storage_dtype,
)
from compiler.ops.rules.with_tables import LEVEL
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind

MOVES = (
    "broadcast_to",
    "expand_dims",
    "nn.depth_to_space",
    "nn.mirror_pad",
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
    wide, tied = ref_call in ctx.facts.wide_values, table in ctx.facts.tied_tables
    nbit = WIDE_BITS if wide and not tied else None
    point = attach_simulated_quantize(table, QAnnotateKind.WEIGHT, context=ctx, bits=nbit)
    kind = QAnnotateKind.ACTIVATION if wide or tied else QAnnotateKind.INPUT
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
    acc, scales = ctx.qconfig.dtype_activation, table.dom_scale.data
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
