"""Binary operators before opset 7, where broadcasting was asked for and aligned by attributes.

With ``broadcast=1`` the second operand's axes lie along the first operand's axes from ``axis`` on
(without ``axis``: the last axes); without ``broadcast`` both shapes are equal.
"""

from __future__ import annotations

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

_OPERATORS = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Pow": "power",
    "Equal": "equal",
    "Less": "less",
    "Greater": "greater",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
}


def _aligned(node: OnnxNode) -> Expr:
    """The second operand with trailing axes of size 1, so that numpy's rule aligns it."""
    data, other = node.arg(0), node.arg(1)
    axis = node.attr("axis", None)
    if not node.attr("broadcast", 0) or axis is None:
        return other
    rank, other_rank = node.rank(data), node.rank(other)
    missing = rank - other_rank - node.axis(axis, rank)
    if missing < 0:
        raise node.error(f"axis {axis} leaves no room for rank {other_rank} in rank {rank}")
    if missing == 0:
        return other
    return node.call("expand_dims", other, axis=other_rank, num_newaxis=missing)


def _register(op_type: str, op: str) -> None:
    @from_onnx(op_type)
    def convert(node: OnnxNode) -> Expr:
        return node.call(op, node.arg(0), _aligned(node))

    convert.__doc__ = f"{op_type} is {op}."


for _op_type, _op in _OPERATORS.items():
    _register(_op_type, _op)


@from_onnx("PRelu")
def prelu(node: OnnxNode) -> Expr:
    """One slope, or one per channel of axis 1."""
    data, slope = node.arg(0), node.arg(1)
    rank = node.rank(data)
    if node.rank(slope) == 1 and node.shape(slope) != (1,) and rank > 2:
        slope = node.call("expand_dims", slope, axis=1, num_newaxis=rank - 2)
    positive = node.call("greater", data, node.scalar_like(0, data))
    return node.call("where", positive, data, node.call("multiply", data, slope))


def _fold(op_type: str, op: str) -> None:
    @from_onnx(op_type)
    def convert(node: OnnxNode) -> Expr:
        result = node.arg(0)
        for index in range(1, node.num_inputs):
            result = node.call(op, result, node.arg(index))
        return result

    convert.__doc__ = f"{op_type} of tensors of one shape."


for _op_type, _op in {"Sum": "add", "Max": "maximum", "Min": "minimum"}.items():
    _fold(_op_type, _op)
