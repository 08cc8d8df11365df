"""Gemm, MatMul and Einsum: dense where the right side is constant, batch_matmul otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


@from_onnx("Gemm")
def gemm(node: OnnxNode) -> Expr:
    """alpha * A B + beta * C; factors are folded into the weights where these are constant."""
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    data = node.arg(0)
    if node.attr("transA", 0):
        data = node.call("transpose", data, axes=(1, 0))
    transposed = bool(node.attr("transB", 0))
    # nn.dense wants (units, in_features), which is B already when transB is set.
    if transposed and alpha == 1.0:
        weight: Expr | None = node.arg(1)
    else:
        weight = node.weight(
            1,
            "dense" if alpha == 1.0 else f"dense_{alpha:g}",
            lambda b: np.ascontiguousarray(b if transposed else b.T) * b.dtype.type(alpha),
        )
    if weight is None:
        weight = node.arg(1)
        weight = weight if transposed else node.call("transpose", weight, axes=(1, 0))
        if alpha != 1.0:
            data = node.call("multiply", data, node.scalar_like(alpha, data))
    result = node.call("nn.dense", data, weight, units=node.shape(weight)[0])
    if not node.has_input(2) or beta == 0.0:
        return result
    if beta == 1.0:
        return node.call("add", result, node.arg(2))
    bias = node.weight(2, f"times_{beta:g}", lambda c: c * c.dtype.type(beta))
    if bias is None:
        bias = node.call("multiply", node.arg(2), node.scalar_like(beta, node.arg(2)))
    return node.call("add", result, bias)


@from_onnx("MatMul")
def matmul(node: OnnxNode) -> Expr:
    """numpy's matmul; leading axes broadcast."""
    known = node.known(1)
    if known is not None and known.ndim == 2 and node.rank(node.arg(0)) >= 1:
        weight = node.weight(1, "dense", lambda b: np.ascontiguousarray(b.T))
        assert weight is not None
        return _dense(node, node.arg(0), weight)
    return product(node, node.arg(0), node.arg(1))


def _dense(node: OnnxNode, data: Expr, weight: Expr) -> Expr:
    units = node.shape(weight)[0]
    if node.rank(data) == 1:
        row = node.call("expand_dims", data, axis=0)
        return node.call("squeeze", node.call("nn.dense", row, weight, units=units), axis=(0,))
    return node.call("nn.dense", data, weight, units=units)


def product(node: OnnxNode, lhs: Expr, rhs: Expr) -> Expr:
    """numpy's matmul of any two operands."""
    vector_lhs, vector_rhs = node.rank(lhs) == 1, node.rank(rhs) == 1
    if vector_lhs:
        lhs = node.call("expand_dims", lhs, axis=0)
    if vector_rhs:
        rhs = node.call("expand_dims", rhs, axis=1)
    if node.rank(lhs) == 2 and node.rank(rhs) == 2:
        result = node.call("nn.matmul", lhs, rhs)
    else:
        result = _batched(node, lhs, rhs)
    if vector_lhs:
        result = node.call("squeeze", result, axis=(node.rank(result) - 2,))
    if vector_rhs:
        result = node.call("squeeze", result, axis=(node.rank(result) - 1,))
    return result


def _batched(node: OnnxNode, lhs: Expr, rhs: Expr) -> Expr:
    """Rank >= 3 on at least one side: leading axes broadcast, then flattened to one."""
    left, right = node.shape(lhs), node.shape(rhs)
    lead = np.broadcast_shapes(left[:-2], right[:-2])
    count = math.prod(lead)

    def flat(side: Expr, shape: Sequence[int]) -> Expr:
        if math.prod(shape[:-2]) not in (1, count) or (
            math.prod(shape[:-2]) == count and tuple(shape[:-2]) != lead and count != 1
        ):
            side = node.call("broadcast_to", side, shape=(*lead, *shape[-2:]))
            shape = (*lead, *shape[-2:])
        if len(shape) == 3:
            return side
        return node.call("reshape", side, newshape=(math.prod(shape[:-2]), *shape[-2:]))

    result = node.call(
        "nn.batch_matmul", flat(lhs, left), flat(rhs, right), transpose_a=False, transpose_b=False
    )
    if len(lead) == 1:
        return result
    return node.call("reshape", result, newshape=(*lead, left[-2], right[-1]))
