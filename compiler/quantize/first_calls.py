"""The first operators of a model: they read its inputs, or conversions of its inputs.

    before                                  after annotation
    %0 = image.resize2d(%x);                %0 = simulated_quantize(%x, …);
    nn.conv2d(%0, w)                        nn.conv2d(image.resize2d(%0), …)

An operator that keeps the scale of its operand has an integer form if the operand is quantized. The
result of a convolution is quantized; an input is not. So the input gets a quantize point in front
of the first operator that is not a conversion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from compiler.ir.expr import Call, Constant, Expr, Tuple, Var, is_op_call
from compiler.quantize.conversions.operators import converts_one, is_conversion, is_real, rounds


def first_calls(nodes: Sequence[Expr], stored: bool) -> Mapping[Expr, frozenset[Expr]]:
    """Calls on float inputs, each with the operands that need a quantize point.

    Args:
        nodes: of a function body, operands before users. Fields of tuples count as operands.
        stored: inputs themselves are quantized, each by one scale; what scales and moves them is
            done in integers.
    """
    converted = converted_inputs(nodes, casts_only=stored)
    if not stored:  # an output that is converted alone is computed from integers, too
        body = nodes[-1]
        outputs = body.fields if isinstance(body, Tuple) else (body,)
        converted.difference_update(one for one in outputs if isinstance(one, Call))
    found: dict[Expr, frozenset[Expr]] = {}
    for node in nodes:
        if (
            isinstance(node, Call)
            and node not in converted
            and (
                stored
                or not is_conversion(node)
                or all(_over_inputs(arg, converted) for arg in node.args)
            )
        ):
            read = frozenset(x for x in operands_of(node) if x in converted and is_real(x))
            if read:
                found[node] = read
    return found


def converted_inputs(nodes: Sequence[Expr], casts_only: bool = False) -> set[Expr]:
    """Inputs, and what conversions make of inputs and constants alone.

    Args:
        nodes: of a function body, operands before users.
        casts_only: no other conversion counts.
    """
    converted: set[Expr] = set()
    rounded: set[Expr] = set()
    for node in nodes:
        over_inputs = isinstance(node, Var)
        counts = not casts_only or is_op_call(node, "cast")
        if counts and isinstance(node, Call) and converts_one(node, rounded):
            over_inputs = all(_over_inputs(arg, converted) for arg in node.args)
            if rounds(node) or any(arg in rounded for arg in node.args):
                rounded.add(node)
        if over_inputs:
            converted.add(node)
    return converted


def _over_inputs(value: Expr, converted: Set[Expr]) -> bool:
    return isinstance(value, Constant) or value in converted


def operands_of(call: Call) -> tuple[Expr, ...]:
    """Arguments, and fields in place of a tuple."""
    return tuple(
        operand
        for arg in call.args
        for operand in (arg.fields if isinstance(arg, Tuple) else (arg,))
    )
