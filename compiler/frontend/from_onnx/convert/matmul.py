"""Gemm, MatMul and DFT: dense where the right side is constant, batch_matmul otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.signature import Input
from compiler.ir.expr import Expr


@from_onnx("Gemm")
def gemm(
    node: OnnxNode,
    data: Expr,
    weight: Input,
    bias: Input | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
) -> Expr:
    """alpha * A B + beta * C; factors are folded into the weights where these are constant."""
    if transA:
        data = node.call("transpose", data, axes=(1, 0))
    stored = weight.is_stored
    rows = None
    # nn.dense wants (units, in_features), which is B already when transB is set.
    if stored and not (transB and alpha == 1.0):
        rows = weight.weight(
            "dense" if alpha == 1.0 else f"dense_{alpha:g}",
            lambda b: np.ascontiguousarray(b if transB else b.T) * b.dtype.type(alpha),
        )
    if rows is None:  # as it is, computed, or behind nodes that run when weights are bound
        rows = weight.expr
        if transB != stored:
            rows = node.call("transpose", rows, axes=(1, 0))
        rows = node.times(rows, alpha) if stored else rows
    if stored:
        result = node.call("nn.dense", data, rows, units=node.shape(rows)[0])
    else:
        result = node.times(node.call("nn.matmul", data, rows), alpha)
    if bias is None or beta == 0.0:
        return result
    addend = None
    if beta != 1.0:
        addend = bias.weight(f"times_{beta:g}", lambda c: c * c.dtype.type(beta))
    return node.call("add", result, addend or node.times(bias.expr, beta))


@from_onnx("MatMul")
def matmul(node: OnnxNode, lhs: Expr, rhs: Input) -> Expr:
    """numpy's matmul; leading axes broadcast."""
    known = rhs.known
    if known is not None and known.ndim == 2 and node.rank(lhs) >= 1:
        weight = rhs.weight("dense", lambda b: b.T)
        assert weight is not None
        return dense(node, lhs, weight)
    return product(node, lhs, rhs.expr)


def dense(node: OnnxNode, data: Expr, weight: Expr) -> Expr:
    """The data, of any rank from 1 on, by a weight of (units, features)."""
    units = node.shape(weight)[0]
    if node.rank(data) == 1:
        row = node.call("expand_dims", data, axis=0)
        return node.call("squeeze", node.call("nn.dense", row, weight, units=units), axis=(0,))
    return node.call("nn.dense", data, weight, units=units)


def product(node: OnnxNode, lhs: Expr, rhs: Expr) -> Expr:
    """numpy's matmul of any two operands."""
    vector_lhs = node.rank(lhs) == 1
    vector_rhs = node.rank(rhs) == 1
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
    left = node.shape(lhs)
    right = node.shape(rhs)
    lead = np.broadcast_shapes(left[:-2], right[:-2])
    count = math.prod(lead)

    def flat(side: Expr, shape: Sequence[int]) -> Expr:
        if math.prod(shape[:-2]) not in (1, count) or (
            math.prod(shape[:-2]) == count and tuple(shape[:-2]) != lead and count != 1
        ):
            side = node.call("broadcast_to", side, shape=(*lead, *shape[-2:]))
            shape = (*lead, *shape[-2:])
        return node.reshaped(side, (math.prod(shape[:-2]), *shape[-2:]))

    result = node.call(
        "nn.batch_matmul", flat(lhs, left), flat(rhs, right), transpose_a=False, transpose_b=False
    )
    return node.reshaped(result, (*lead, left[-2], right[-1]))


@from_onnx("DFT", since=17)
def dft_before_opset_20(
    node: OnnxNode,
    data: Expr,
    dft_length: int | None = None,
    *,
    axis: int = 1,
    inverse: bool = False,
    onesided: bool = False,
) -> Expr:
    """The axis is an attribute."""
    return dft(node, data, dft_length, axis, inverse=inverse, onesided=onesided)


@from_onnx("DFT", since=20)
def dft(
    node: OnnxNode,
    data: Expr,
    dft_length: int | None = None,
    axis: int | None = None,
    *,
    inverse: bool = False,
    onesided: bool = False,
) -> Expr:
    """A product with a constant matrix of cosines and sines over (samples, parts)."""
    shape = node.shape(data)
    rank = node.rank(data)
    axis = node.axis(-2 if axis is None else axis, rank)
    samples = shape[axis]
    parts = shape[-1]
    mirrored = inverse and onesided
    length = 2 * (samples - 1) if mirrored else samples
    if dft_length is not None:
        length = dft_length
    count = length // 2 + 1 if onesided and not inverse else length
    if 4 * count * samples > MAX_CONSTANT:
        raise node.error(f"a transform of {samples} samples is a product of {4 * count * samples}")
    # exp(-2 pi i k j / length): a sample behind the length counts nothing.
    turns = np.outer(np.arange(count), np.arange(samples)) % length / length
    wave = np.exp((2j if inverse else -2j) * np.pi * turns) / (length if inverse else 1)
    wave[:, length // 2 + 1 if mirrored else length :] = 0
    if mirrored:  # the other side is the conjugate of this one, and the result is real
        wave[:, 1 : (length + 1) // 2] *= 2
    # (a + ib)(c + is): rows are real and imaginary results, columns real and imaginary samples.
    blocks = [[wave.real, -wave.imag], [wave.imag, wave.real]][: 1 if mirrored else 2]
    results = len(blocks) * count
    weight = np.array(blocks).transpose(2, 0, 3, 1)[..., :parts].reshape(results, -1)
    last = [*(a for a in range(rank - 1) if a != axis), axis, rank - 1]
    others = [shape[a] for a in last[:-2]]
    rows = node.call("transpose", data, axes=tuple(last))
    rows = node.call("reshape", rows, newshape=(-1, samples * parts))
    dtype = data.tensor_type.dtype
    result = node.call("nn.dense", rows, node.const(weight, dtype), units=results)
    result = node.call("reshape", result, newshape=(*others, count, len(blocks)))
    return node.call("transpose", result, axes=tuple(last.index(a) for a in range(rank)))
