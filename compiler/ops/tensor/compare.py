"""equal, not_equal, less, less_equal, greater, greater_equal: broadcast, bool result.

Bools are equal or not; they have no order, as in ONNX. Quantized: accumulators are compared as wide
as they are, with each other at one scale, or with the integer that a constant lies at or next to.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr, is_op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite, kind_of, unannotated, with_args
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import partition_inside
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    both_realized,
    integer_limits,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.ops.tensor.broadcast import binary_op
from compiler.qtypes.context import QuantizeContext

_OPS: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")

for _name, _function, _symbol, _numbers in (
    ("equal", np.equal, "==", "any"),
    ("not_equal", np.not_equal, "!=", "any"),
    ("less", np.less, "<", "number"),
    ("less_equal", np.less_equal, "<=", "number"),
    ("greater", np.greater, ">", "number"),
    ("greater_equal", np.greater_equal, ">=", "number"),
):
    binary_op(_name, _function, _symbol, dtype="bool", numbers=_numbers)


@FBody.register("not_equal", "less_equal", "greater", "greater_equal")
def comparison_body(step: Step, words: Words) -> Value:
    """By equal and less, of exchanged operands or denied."""
    a, b = step.args
    if step.name == "not_equal":
        return words.negation(words.equal(a, b))
    found = words.less(a, b) if step.name == "greater_equal" else words.less(b, a)
    return found if step.name == "greater" else words.negation(found)


FQPartitionRewrite.register(*_OPS, needs_tables=True)(partition_inside)


@FQAnnotateRewrite.register(*_OPS, needs_tables=True)
def comparison_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Of values that will be integers, or of one and a constant; truth values have no scale."""
    known = [isinstance(arg, Constant) and not np.isnan(arg.data).any() for arg in args]
    either = (one or kind_of(arg) is not None for one, arg in zip(known, args))
    if ctx.check_to_skip(ref_call) or all(known) or not all(either):
        return None
    ctx.integer_masks.add(ref_call)
    return with_args(ref_call, tuple(map(unannotated, args)))


@FQRealizeRewrite.register(*_OPS, needs_tables=True)
def comparison_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Integers with integers."""
    pair = both_realized(args)
    if pair is not None:
        (lhs, rhs), _ = unify_for_add(ref_call, pair, ctx.qconfig, reach=0.0)
        return with_args(ref_call, (lhs.data, rhs.data))
    place = int(isinstance(args[0], Constant))
    value, bound = args[place], args[1 - place]
    if not isinstance(value, QRealizeIntExpr) or not isinstance(bound, Constant):
        return None
    acc = ctx.qconfig.dtype_activation
    value = to_scalar(value, len(ref_call.args[place].tensor_type.shape), ctx.qconfig)
    beyond = value.high + 1.0  # equal to none of the data
    if not is_op_call(ref_call, "equal", "not_equal"):
        beyond = np.inf if is_op_call(ref_call, *_UP[place]) else -np.inf
    steps = _in_steps(bound, value, beyond)
    low, high = integer_limits(acc)
    steps = np.clip(steps, max(low, value.low - 1), min(high, value.high + 1))
    sides = (value.in_dtype(acc), Constant(steps.astype(acc)))
    return with_args(ref_call, sides[::-1] if place else sides)


_UP: Final = (("less", "greater_equal"), ("greater", "less_equal"))
"""Comparisons of a value with a bound, and of a bound with a value, that a bound between two
integers answers as the upper one does."""


def _in_steps(bound: Constant, value: QRealizeIntExpr, beyond: float) -> NDArray[np.float64]:
    """The integers that compare with the data as the bound does with the real values.

    Args:
        beyond: what stands for a bound between two integers; an infinity: the one on that side.
    """
    scale = np.float32(value.dom_scale.data)
    steps = bound.data.astype(np.float64) / np.float64(scale)
    near = np.rint(steps)
    between = np.full_like(steps, beyond)
    if np.isinf(beyond):
        between = np.ceil(steps) if beyond > 0 else np.floor(steps)
    return np.where(near.astype(np.float32) * scale == bound.data, near, between)
