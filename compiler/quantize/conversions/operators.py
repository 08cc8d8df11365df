"""Operators that may stand between real values and the integers of quantized_main."""

from __future__ import annotations

from collections.abc import Collection

from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.ty import TensorType, Type, holds_float, is_dynamic, is_float
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


def converts_one(call: Call, rounded: Collection[Expr] = ()) -> bool:
    """True for a conversion of one value, element by element, as ``compiler.proof`` allows it.

    It reads one value beside constants. It scales only what is not rounded, by a number or a factor
    per channel, which repeats the value where that has one element.

    Args:
        rounded: values that a conversion rounded.
    """
    read = [arg for arg in call.args if not isinstance(arg, Constant)]
    if not is_conversion(call) or len(read) != 1:
        return False
    (value,) = read
    of = value.checked_type
    made = call.checked_type
    if not isinstance(of, TensorType) or not isinstance(made, TensorType):
        return False
    if not is_op_call(call, "multiply"):
        return is_dynamic(made) or made.num_elements == of.num_elements
    factors = [arg.data.shape for arg in call.args if isinstance(arg, Constant)]
    long = [size for shape in factors for size in shape if size > 1]
    return value not in rounded and len(long) <= 1


def rounds(call: Call) -> bool:
    """True for a conversion whose results are whole numbers."""
    if is_op_call(call, "cast"):
        return not holds_float(call.checked_type) and holds_float(call.args[0].checked_type)
    return is_op_call(call, "round") or is_op_call(call, "round_even")


def has_only_conversion_ops(func: Function) -> bool:
    """True when every call in the function is a conversion; let, tuples and constants are free."""
    return all(is_conversion(node) for node in nodes_of(func) if isinstance(node, Call))


def is_integer_tensor(ty: Type) -> bool:
    """True for a tensor that is not floating point."""
    return isinstance(ty, TensorType) and not is_float(ty.dtype)


def is_real(value: Expr) -> bool:
    """True for a value that is a tensor of floating point."""
    ty = value.checked_type
    return isinstance(ty, TensorType) and is_float(ty.dtype)
