"""SimplifyExpr of arithmetic: operands that change nothing, and cheaper forms of the same value."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Op, is_op_call
from compiler.ir.ty import TensorType, is_dynamic, is_float
from compiler.ops.number_format import convert
from compiler.ops.op_call import op_call
from compiler.ops.rules.simplify import FSimplifyExpr, TypeOf

_NEUTRAL = {
    "add": 0,
    "subtract": 0,
    "multiply": 1,
    "divide": 1,
    "maximum": -math.inf,
    "minimum": math.inf,
}
_COMMUTATIVE = ("add", "multiply", "maximum", "minimum")


def _is_all(expr: Expr, value: float) -> bool:
    return isinstance(expr, Constant) and bool(np.all(expr.data == value))


def _same_static_type(expr: Expr, call: Call, type_of: TypeOf) -> bool:
    return type_of(expr) == type_of(call) and not is_dynamic(type_of(call))


@FSimplifyExpr.register("add", "subtract", "multiply", "maximum", "minimum")
def without_neutral(call: Call, type_of: TypeOf) -> Expr | None:
    """x + 0, x - 0, x * 1, max(x, -inf), min(x, inf): x, unless broadcasting made it larger."""
    lhs, rhs = call.args
    assert isinstance(call.op, Op)
    name = call.op.name
    value = _NEUTRAL[name]
    if _is_all(rhs, value) and _same_static_type(lhs, call, type_of):
        return lhs
    commutes = name in _COMMUTATIVE
    if commutes and _is_all(lhs, value) and _same_static_type(rhs, call, type_of):
        return rhs
    return None


@FSimplifyExpr.register("divide")
def simplify_divide(call: Call, type_of: TypeOf) -> Expr | None:
    """x / 1: x; x / c for a float constant c: x * (1/c), where 1/c is finite."""
    same = without_neutral(call, type_of)
    if same is not None:
        return same
    data, divisor = call.args
    if not isinstance(divisor, Constant) or isinstance(data, Constant):
        return None
    values = divisor.data
    if not is_float(str(values.dtype)):
        return None
    with np.errstate(all="ignore"):
        reciprocal = np.asarray(1 / values).astype(values.dtype)
    if not np.isfinite(reciprocal).all():
        return None
    return op_call("multiply", data, Constant(reciprocal, span=divisor.span), span=call.span)


@FSimplifyExpr.register("cast")
def simplify_cast(call: Call, type_of: TypeOf) -> Expr | None:
    """The data, when it has the dtype already; elements of a table of integers that are cast to
    float are elements of the table as float."""
    data, ty = call.args[0], type_of(call)
    if type_of(data) == ty:
        return data
    if not is_op_call(data, "take", "gather") or not isinstance(ty, TensorType):
        return None
    assert isinstance(data, Call)
    table, indices = data.args
    if not isinstance(table, Constant) or not is_float(ty.dtype) or is_float(str(table.data.dtype)):
        return None
    floats = Constant(convert(table.data, ty.dtype), span=table.span)
    return Call(data.op, (floats, indices), data.attrs, span=data.span)


@FSimplifyExpr.register("clip")
def simplify_clip(call: Call, type_of: TypeOf) -> Expr | None:
    """clip(clip(x, a, b), c, d): one clip, to [a, b] clipped to [c, d]."""
    inner = call.args[0]
    if not is_op_call(inner, "clip"):
        return None
    assert isinstance(inner, Call)
    first: Any = inner.attrs
    second: Any = call.attrs
    if not (first.a_min <= first.a_max and second.a_min <= second.a_max):
        return None
    low = min(max(first.a_min, second.a_min), second.a_max)
    high = max(min(first.a_max, second.a_max), second.a_min)
    ty = type_of(call)
    assert isinstance(ty, TensorType)
    bounds = (first.a_min, first.a_max, second.a_min, second.a_max)
    # On integers a fractional bound is rounded, the lower one and the upper one differently.
    if not is_float(ty.dtype) and not all(float(b).is_integer() for b in bounds):
        return None
    return op_call("clip", inner.args[0], a_min=low, a_max=high, span=call.span)


@FSimplifyExpr.register("where")
def simplify_where(call: Call, type_of: TypeOf) -> Expr | None:
    """The branch a constant condition chooses everywhere, unless broadcasting made it larger."""
    condition, if_true, if_false = call.args
    if not isinstance(condition, Constant) or not condition.data.size:
        return None
    truth = condition.data.astype(bool)
    if not truth.all() and truth.any():
        return None
    chosen = if_true if truth.all() else if_false
    return chosen if _same_static_type(chosen, call, type_of) else None
