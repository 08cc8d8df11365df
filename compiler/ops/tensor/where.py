"""where(condition, x, y): x where the condition holds, else y; all three broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Var, describe
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import result_rel
from compiler.lir.scalars import Bin, Scalar, Select
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.arg_types import same_dtype, tensor
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.integer_calls import scalar
from compiler.ops.rules.lower import FLower, elementwise, like_first
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    cast_if_needed,
    integer_limits,
    integers,
    like,
    storage_dtype,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.tensor.broadcast import broadcast_shape
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.kind import QAnnotateKind


def where_infer(types: Sequence[Any], attrs: Any) -> Type:
    """Broadcast shape of the three, dtype of x and y; any dtype may be the condition (not zero)."""
    condition = tensor("where", types, 0, "condition")
    x = tensor("where", types, 1, "x")
    y = tensor("where", types, 2, "y")
    dtype = same_dtype("where", x, y)
    branches = broadcast_shape("where", x.shape, y.shape)
    return TensorType(broadcast_shape("where", condition.shape, branches), dtype)


where = register_op(
    "where",
    arg_names=("condition", "x", "y"),
    rel=result_rel(where_infer),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(where)
def where_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Element by element."""
    return [np.where(args[0], args[1], args[2])]


@FQAnnotateRewrite.register(where)
@with_tables
def where_annotate(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
    """Chooses between two accumulators, or between narrow integers and one number.

    A condition that is computed from real values stays float, and so does the choice.
    """
    condition, x, y = args
    if not isinstance(condition, (Constant, Var)) or ctx.check_to_skip(ref_call):
        return None
    if kind_of(x) is None and kind_of(y) is None:
        return None
    place = _number(args)
    if place is not None:
        sides = [condition, as_input(x, ctx), as_input(y, ctx)]
        sides[place] = args[place]
        return QAnnotateExpr(with_args(ref_call, tuple(sides)), QAnnotateKind.INPUT)
    both = kind_of(x) == kind_of(y) == QAnnotateKind.ACTIVATION
    left = unannotated(x) if kind_of(x) is not None else as_input(x, ctx)
    right = unannotated(y) if kind_of(y) is not None and not both else as_input(y, ctx)
    return QAnnotateExpr(with_args(ref_call, (condition, left, right)), QAnnotateKind.ACTIVATION)


def _number(args: tuple[Expr, ...]) -> int | None:
    """Which of the branches is one number."""
    for place in (1, 2):
        branch = args[place]
        if isinstance(branch, Constant) and branch.data.size == 1:
            return place
    return None


@FQRealizeRewrite.register(where)
@with_tables
def where_realize(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
    """Both branches at one scale; float where a number lies outside what the other one holds."""
    condition, x, y = args
    place = _number(args)
    if place is not None:
        return _beside_number(ref_call, args, place, ctx)
    if not isinstance(x, QRealizeIntExpr) or not isinstance(y, QRealizeIntExpr):
        return None
    branches = with_args(ref_call, ref_call.args[1:])
    branches.set_checked_type(ref_call.checked_type)
    (lhs, rhs), scale = unify_for_add(branches, (x, y), ctx.qconfig)
    call = with_args(ref_call, (condition, lhs.data, rhs.data))
    low, high = min(lhs.low, rhs.low), max(lhs.high, rhs.high)
    return integers(call, scale, ctx.qconfig.dtype_activation, low, high)


def _beside_number(
    ref_call: Call, args: tuple[Expr, ...], place: int, ctx: QuantizeContext
) -> Expr | None:
    data, number = args[3 - place], args[place]
    if not isinstance(data, QRealizeIntExpr) or not isinstance(number, Constant):
        return None
    data = to_scalar(data, len(ref_call.args[3 - place].tensor_type.shape), ctx.qconfig)
    narrow = storage_dtype(data.low, data.high, ctx.qconfig)
    if narrow is not None:
        data = like(data, cast_if_needed(data, narrow), dtype=narrow)
    units = float(np.rint(number.data.reshape(()) / np.float64(data.dom_scale.data)))
    low, high = integer_limits(data.dtype)
    if not low <= units <= high:
        ctx.report.diagnostics.append(
            f"{describe(ref_call)} runs in float: {float(number.data.reshape(())):g} lies outside "
            f"the range of its other branch, whose step is {float(data.dom_scale.data):g}"
        )
        return None
    sides: list[Expr] = [args[0], data.data, data.data]
    sides[place] = scalar(int(units), data.dtype)
    low, high = min(data.low, int(units)), max(data.high, int(units))
    return like(data, with_args(ref_call, tuple(sides)), low=low, high=high)


@FLower.register(where)
@elementwise
def where_lower(attrs: Any, condition: Scalar, x: Scalar, y: Scalar) -> Scalar:
    """Any number but zero holds."""
    if condition.dtype != "bool":
        condition = Bin("!=", condition, like_first(0, condition))
    return Select(condition, x, y)
