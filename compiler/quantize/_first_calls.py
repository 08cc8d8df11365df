"""The first operators of a model: they read its inputs, or conversions of its inputs.

    before                                  after annotation
    %0 = image.resize2d(%x);                %0 = simulated_quantize(%x, …);
    nn.conv2d(%0, w)                        nn.conv2d(image.resize2d(%0), …)

An operator that keeps the scale of its operand has an integer form if the operand is quantized. The
result of a convolution is quantized; an input is not. So the input gets a quantize point in front
of the first operator that is not a conversion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.ir.expr import Call, Constant, Expr, Tuple, Var
from compiler.ir.ty import TensorType, is_float
from compiler.quantize._conversion_ops import is_conversion


def first_calls(nodes: Sequence[Expr]) -> Mapping[Expr, frozenset[Expr]]:
    """Calls on float inputs, each with the operands that need a quantize point.

    Args:
        nodes: of a function body, operands before users. Fields of tuples count as operands.
    """
    converted = converted_inputs(nodes)
    found: dict[Expr, frozenset[Expr]] = {}
    for node in nodes:
        if isinstance(node, Call) and not is_conversion(node):
            read = frozenset(x for x in operands_of(node) if x in converted and _is_real(x))
            if read:
                found[node] = read
    return found


def converted_inputs(nodes: Sequence[Expr]) -> set[Expr]:
    """Inputs, and what conversions make of inputs and constants alone.

    Args:
        nodes: of a function body, operands before users.
    """
    converted: set[Expr] = set()
    for node in nodes:
        if isinstance(node, Call) and is_conversion(node):
            over_inputs = all(isinstance(a, Constant) or a in converted for a in node.args)
        else:
            over_inputs = isinstance(node, Var)
        if over_inputs:
            converted.add(node)
    return converted


def operands_of(call: Call) -> tuple[Expr, ...]:
    """Arguments, and fields in place of a tuple."""
    return tuple(
        operand
        for arg in call.args
        for operand in (arg.fields if isinstance(arg, Tuple) else (arg,))
    )


def _is_real(value: Expr) -> bool:
    ty = value.checked_type
    return isinstance(ty, TensorType) and is_float(ty.dtype)
