"""Scatter of slices by index vectors, and the older name of ScatterElements."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.frontend.from_onnx.convert.indexing import scatter_elements
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


@from_onnx("Scatter", since=9)
def scatter(node: OnnxNode) -> Expr | Sequence[Expr]:
    """What ScatterElements was called before opset 11."""
    return scatter_elements(node)


@from_onnx("ScatterND", since=11)
def scatter_nd(node: OnnxNode) -> Expr:
    """Updates by index vectors. Ours has the index vector along the first axis."""
    mode = node.attr("reduction", "none")
    indices = node.arg(1)
    rank = node.rank(indices)
    order = (rank - 1, *range(rank - 1))
    turned = node.call("transpose", indices, axes=order) if rank > 1 else indices
    return node.call(
        "scatter_nd", node.arg(0), turned, node.arg(2), mode={"none": "update"}.get(mode, mode)
    )
