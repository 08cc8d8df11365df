"""Bounds of what is computed of a variable whose bounds a test gives."""

from __future__ import annotations

from compiler.ir.dataflow import Value
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_expr
from compiler.qtypes.context import BoundsOf
from compiler.ranges.expressions import ExpressionRanges
from compiler.ranges.interval import constant_interval


def bounds_with(var: Expr, low: int, high: int) -> BoundsOf:
    """``QuantizeContext.bounds_of`` where low <= var <= high."""
    ranges, value = ExpressionRanges(), Value(infer_expr(var).tensor_type)
    ranges._values[var] = (value,)
    ranges._ctx.set(value, constant_interval(low, high, 0))
    return ranges.of
