"""Pools; one spatial axis is imported as two with height 1."""

from __future__ import annotations

from compiler.frontend.from_onnx.convert.window import read_window
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


def _pool(node: OnnxNode, op: str, **extra: bool) -> Expr:
    data = node.arg(0)
    rank = node.rank(data)
    if rank not in (3, 4):
        raise node.error(f"{rank - 2} spatial axes; one or two are supported")
    one_d = rank == 3
    window = read_window(node, node.attr("kernel_shape"), node.shape(data)[2:])
    if one_d:
        data = node.call("expand_dims", data, axis=2)
    lead = (1,) if one_d else ()
    zero = (0,) if one_d else ()
    result = node.call(
        op,
        data,
        pool_size=lead + window.kernel,
        strides=lead + window.strides,
        dilation=lead + window.dilations,
        padding=zero + window.begins + zero + window.ends,
        ceil_mode=bool(node.attr("ceil_mode", 0)),
        **extra,
    )
    return node.call("squeeze", result, axis=(2,)) if one_d else result


@from_onnx("MaxPool")
def max_pool(node: OnnxNode) -> Expr:
    """MaxPool; the second output (indices) is refused by the importer's output check."""
    if node.attr("storage_order", 0):
        raise node.error("storage_order 1 is not supported")
    return _pool(node, "nn.max_pool2d")


@from_onnx("AveragePool")
def average_pool(node: OnnxNode) -> Expr:
    """AveragePool."""
    return _pool(
        node, "nn.avg_pool2d", count_include_pad=bool(node.attr("count_include_pad", 0))
    )


def _global_pool(node: OnnxNode, op: str, reduction: str) -> Expr:
    data = node.arg(0)
    rank = node.rank(data)
    if rank == 4:
        return node.call(op, data)
    return node.call(reduction, data, axis=tuple(range(2, rank)), keepdims=True)


@from_onnx("GlobalAveragePool")
def global_average_pool(node: OnnxNode) -> Expr:
    """GlobalAveragePool of any rank."""
    return _global_pool(node, "nn.global_avg_pool2d", "mean")


@from_onnx("GlobalMaxPool")
def global_max_pool(node: OnnxNode) -> Expr:
    """GlobalMaxPool of any rank."""
    return _global_pool(node, "nn.global_max_pool2d", "max")
