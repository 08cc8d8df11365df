"""Operators that may stand between real values and the integers of quantized_main."""

from __future__ import annotations

from compiler.ir.expr import Call, Expr, Function, Op
from compiler.ir.ty import TensorType, Type, is_float
from compiler.ir.walk import nodes_of

CONVERSION_OPS = frozenset(
    {
        "add",
        "annotation.cast_hint",
        "annotation.stop_fusion",
        "cast",
        "clip",
        "expand_dims",
        "fixed_point_multiply",
        "left_shift",
        "multiply",
        "reshape",
        "right_shift",
        "round",
        "round_even",
        "squeeze",
        "subtract",
        "transpose",
    }
)
"""Relay's short list, and operators that only move or bound the values of an input or output."""


def is_conversion(expr: Expr) -> bool:
    """True for a call of one of ``CONVERSION_OPS``."""
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name in CONVERSION_OPS


def has_only_conversion_ops(func: Function) -> bool:
    """True when every call in the function is a conversion; let, tuples and constants are free."""
    return all(is_conversion(node) for node in nodes_of(func) if isinstance(node, Call))


def is_integer_tensor(ty: Type) -> bool:
    """True for a tensor that is not floating point."""
    return isinstance(ty, TensorType) and not is_float(ty.dtype)
