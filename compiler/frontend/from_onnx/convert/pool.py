"""Pools; one spatial axis is imported as two with height 1, three in two steps."""

from __future__ import annotations

import math

from compiler.frontend.from_onnx.convert.pool_indices import max_pool_with_indices
from compiler.frontend.from_onnx.convert.volume import pool_volume
from compiler.frontend.from_onnx.convert.window import Window, read_window
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


def _pool(node: OnnxNode, op: str, data: Expr, **extra: bool) -> Expr:
    rank = node.rank(data)
    if rank not in (3, 4, 5):
        raise node.error(f"{rank - 2} spatial axes; one to three are supported")
    window = read_window(node, node.attr("kernel_shape"), data)

    def pool_planes(planes: Expr, part: Window) -> Expr:
        return node.call(
            op,
            planes,
            pool_size=part.kernel,
            strides=part.strides,
            dilation=part.dilations,
            padding=part.padding,
            ceil_mode=bool(node.attr("ceil_mode", 0)),
            **extra,
        )

    if rank == 5:
        return pool_volume(node, data, window, pool_planes)
    if rank == 4:
        return pool_planes(data, window)
    row = node.call("expand_dims", data, axis=2)
    return node.call("squeeze", pool_planes(row, window.with_height_one()), axis=(2,))


@from_onnx("MaxPool")
def max_pool(node: OnnxNode) -> Expr | list[Expr]:
    """MaxPool, and where asked for the index of each maximum in the flattened data."""
    if len(node.proto.output) > 1 and node.proto.output[1]:
        return max_pool_with_indices(node)
    return _pool(node, "nn.max_pool2d", node.arg(0))


@from_onnx("AveragePool")
def average_pool(node: OnnxNode) -> Expr:
    """AveragePool."""
    padded = bool(node.attr("count_include_pad", 0))
    return _pool(node, "nn.avg_pool2d", node.arg(0), count_include_pad=padded)


@from_onnx("LpPool", since=2)
def lp_pool(node: OnnxNode) -> Expr:
    """The p-th root of a sum of |x| ** p: a mean that counts the padding, times its count."""
    if node.attr("ceil_mode", 0):
        raise node.error("windows beyond the padding (ceil_mode)", fix="export with ceil_mode=0")
    data, p = node.arg(0), node.attr("p", 2)
    if p == 2:
        powers = node.call("multiply", data, data)
    else:
        powers = node.call("power", node.call("abs", data), node.scalar_like(p, data))
    mean = _pool(node, "nn.avg_pool2d", powers, count_include_pad=True)
    count = node.scalar_like(math.prod(node.attr("kernel_shape")), data)
    total = node.call("multiply", mean, count)
    return (
        node.call("sqrt", total)
        if p == 2
        else node.call("power", total, node.scalar_like(1 / p, data))
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
