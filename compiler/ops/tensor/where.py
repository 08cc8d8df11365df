"""where(condition, x, y): x where the condition holds, else y; all three broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr, Op
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type, holds_float
from compiler.lir.scalars import Bin, Scalar, Select
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.annotation.minus_infinity import mask_point
from compiler.ops.arg_types import Types, same_dtype, tensor
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.lower import FLower, elementwise, like_first
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.rules.realize import FQRealizeRewrite, both_realized, integers
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.tensor.broadcast import broadcast_shape
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind


@define_op("where", arg_names=("condition", "x", "y"), pattern=OpPattern.BROADCAST)
def where(types: Types, attrs: Any) -> Type:
    """Broadcast shape of the three, dtype of x and y; any dtype may be the condition (not zero)."""
    condition = tensor("where", types, 0, "condition")
    x = tensor("where", types, 1, "x")
    y = tensor("where", types, 2, "y")
    dtype = same_dtype("where", x, y)
    branches = broadcast_shape("where", x.shape, y.shape)
    return TensorType(broadcast_shape("where", condition.shape, branches), dtype)


FNumpyCompute.register(where)(of_arrays(np.where))


@FQAnnotateRewrite.register(where, needs_tables=True)
def where_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Chooses between two values at one scale; a constant one is quantized as a weight.

    A condition that stays float leaves the choice there as well.
    """
    condition, x, y = args
    if not _is_whole(ref_call.args[0], ctx) or ctx.check_to_skip(ref_call):
        return None
    constant = isinstance(x, Constant) and isinstance(y, Constant)
    if kind_of(x) is None and kind_of(y) is None and not constant:
        return None
    masks = ref_call in ctx.facts.masks
    point = mask_point if masks and not constant else as_input
    sides = [point(side, ctx) if kind_of(side) is None else unannotated(side) for side in (x, y)]
    if kind_of(x) == kind_of(y) == QAnnotateKind.ACTIVATION and not masks:
        sides[1] = as_input(y, ctx)
    return annotated(ref_call, (condition, *sides))


def _is_whole(condition: Expr, ctx: QuantizeContext) -> bool:
    """True for what is computed from truth values and what is or will be integers."""
    seen: set[Expr] = set()
    stack = [condition]
    while stack:
        node = stack.pop()
        if node in seen or node in ctx.integer_masks or isinstance(node, Op):
            continue
        seen.add(node)
        if holds_float(node.checked_type):
            return False
        stack.extend(node.operands())
    return True


@FQRealizeRewrite.register(where, needs_tables=True)
def where_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Both branches at the smaller of their scales."""
    condition, *sides = args
    pair = both_realized((sides[0], sides[1]))
    if pair is None:
        return None
    branches = with_args(ref_call, ref_call.args[1:])
    branches.set_checked_type(ref_call.checked_type)
    (lhs, rhs), scale = unify_for_add(branches, pair, ctx.qconfig, ctx.reach_of(ref_call))
    call = with_args(ref_call, (condition, lhs.data, rhs.data))
    return integers(call, scale, ctx.qconfig.dtype_activation, ctx.bounds_of)


@FLower.register(where)
@elementwise
def where_lower(attrs: Any, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Any number but zero holds."""
    if condition.dtype != "bool":
        condition = Bin("!=", condition, like_first(0, condition))
    return Select(condition, x, y)


@FBody.register("where")
def where_body(step: Step, words: Words) -> Value | None:
    """A number is a condition where it is not 0."""
    condition, a, b = step.args
    if condition.type.dtype == "bool":
        return None
    return words.where(words.cast(condition, "bool"), a, b)
