"""Trigonometric and hyperbolic functions: one of our unary operators each."""

from __future__ import annotations

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

_FUNCTIONS = {
    "Tan": "tan",
    "Asin": "asin",
    "Acos": "acos",
    "Atan": "atan",
    "Sinh": "sinh",
    "Cosh": "cosh",
    "Asinh": "asinh",
    "Acosh": "acosh",
    "Atanh": "atanh",
}


def _register(op_type: str, op: str) -> None:
    @from_onnx(op_type)
    def convert(node: OnnxNode) -> Expr:
        return node.call(op, node.arg(0))

    convert.__doc__ = f"{op_type} is {op}."


for _op_type, _op in _FUNCTIONS.items():
    _register(_op_type, _op)
