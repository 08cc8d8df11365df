"""Operators that onnxruntime's optimizer fuses others into; Optimum writes them from -O1 on.

Source: onnxruntime, docs/ContribOperators.md (domain com.microsoft).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from operator import itemgetter
from typing import Final

import numpy as np

from compiler.frontend.from_onnx.convert.activation import gelu_of
from compiler.frontend.from_onnx.convert.attention import by_head, joined_heads
from compiler.frontend.from_onnx.convert.conv import convolution
from compiler.frontend.from_onnx.convert.matmul import dense, gemm, matmul, product
from compiler.frontend.from_onnx.convert.normalization import layer_normalized, rms_normalized
from compiler.frontend.from_onnx.convert.recurrent import ACTIVATIONS, activation
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.signature import Input, by_signature
from compiler.ir.expr import Expr

_fused: Final = partial(from_onnx, since=1, domain="com.microsoft")


@_fused("FusedConv")
def fused_conv(node: OnnxNode) -> Expr:
    """Conv, what is added to it, and an activation."""
    result = convolution(node, node.arg(0), None)
    if node.has_input(3):
        result = node.call("add", result, node.arg(3))
    return _activated(node, result, node.attr("activation_params", ()))


@_fused("FusedGemm")
def fused_gemm(node: OnnxNode) -> Expr:
    """Gemm and an activation."""
    factors = [node.attr(f"activation_{kind}", None) for kind in ("alpha", "beta")]
    result = by_signature(gemm)(node)
    assert isinstance(result, Expr)
    return _activated(node, result, [f for f in factors if f is not None])


def _activated(node: OnnxNode, data: Expr, factors: Sequence[float]) -> Expr:
    name = node.attr("activation", "")
    if not name:
        return data
    if name == "Clip":
        low, high = factors
        return node.call("clip", data, a_min=low, a_max=high)
    if name not in ACTIVATIONS:
        raise node.error(f"activation {name!r} is not one of Clip, {', '.join(ACTIVATIONS)}")
    given = dict(zip(ACTIVATIONS[name], factors))
    return activation(node, name, ACTIVATIONS[name] | given)(data)


@_fused("FusedMatMul")
@_fused("TransposeMatMul")
def fused_matmul(node: OnnxNode) -> Expr:
    """alpha A B, each transposed before: its last two axes, its first axis behind the batches."""
    alpha = node.attr("alpha", 1.0)
    transposed = bool(node.attr("transB", 0))
    lhs = _turned(node, 0, "A")
    known = node.known(1)
    if known is not None and known.ndim == 2:
        weight = node.weight(
            1,
            f"dense_{transposed:d}_{alpha}",
            lambda b: (b if transposed else b.T) * b.dtype.type(alpha),
        )
        assert weight is not None
        return dense(node, lhs, weight)
    return node.times(product(node, lhs, _turned(node, 1, "B")), alpha)


def _turned(node: OnnxNode, index: int, side: str) -> Expr:
    data = node.arg(index)
    axes = list(range(node.rank(data)))
    if node.attr(f"transBatch{side}", 0):
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if node.attr(f"trans{side}", 0) and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    turned = axes != sorted(axes)
    if turned:
        return node.call("transpose", data, axes=tuple(axes))
    return data


@_fused("BiasGelu")
def bias_gelu(node: OnnxNode, data: Expr, bias: Expr) -> Expr:
    """Gelu of a sum."""
    return gelu_of(node, node.call("add", data, bias), tanh=False)


@_fused("FastGelu")
def fast_gelu(node: OnnxNode, data: Expr, bias: Expr | None = None) -> Expr:
    """Gelu by tanh, of a sum where there is a bias."""
    return gelu_of(node, _sum(node, data, bias), tanh=True)


@_fused("SkipLayerNormalization")
def skip_layer_normalization(
    node: OnnxNode,
    data: Expr,
    skip: Expr,
    gamma: Expr,
    beta: Expr | None = None,
    bias: Expr | None = None,
    *,
    epsilon: float = 1e-12,
) -> list[Expr]:
    """Layer norm of a sum; output 3 is the sum."""
    total = _sum(node, data, skip, bias)
    return _with_sum(node, layer_normalized(node, total, gamma, beta, epsilon), total)


@_fused("SkipSimplifiedLayerNormalization")
def skip_rms_normalization(
    node: OnnxNode,
    data: Expr,
    skip: Expr,
    gamma: Expr,
    bias: Expr | None = None,
    *,
    epsilon: float = 1e-5,
) -> list[Expr]:
    """RMS norm of a sum; output 3 is the sum."""
    total = _sum(node, data, skip, bias)
    last = (node.rank(total) - 1,)
    return _with_sum(node, rms_normalized(node, total, gamma, last, epsilon), total)


def _sum(node: OnnxNode, *terms: Expr | None) -> Expr:
    return reduce(partial(node.call, "add"), [term for term in terms if term is not None])


def _with_sum(node: OnnxNode, result: Expr, total: Expr) -> list[Expr]:
    if any(node.proto.output[1:3]):
        raise node.error("mean and deviation of the rows are not given")
    return [result, result, result, total][: len(node.proto.output)]


@_fused("EmbedLayerNormalization")
def embed_layer_normalization(node: OnnxNode) -> list[Expr]:
    """Layer norm of the sum of a token's embeddings; output 1 counts the tokens of a row's mask."""
    tokens = node.arg(0)
    rows, length = node.shape(tokens)
    if node.has_input(8):
        places = node.arg(8)
    else:
        places = node.const(np.arange(length, dtype=np.int32))
    total = node.call(
        "add",
        node.call("take", node.arg(2), tokens, axis=0),
        node.call("take", node.arg(3), places, axis=0),
    )
    if node.has_input(1) and node.has_input(4):
        total = node.call("add", total, node.call("take", node.arg(4), node.arg(1), axis=0))
    if node.has_input(7):
        count = node.call("sum", node.arg(7), axis=(1,))
    else:
        count = node.const(np.zeros(rows, np.int32))
    normalized = layer_normalized(
        node, total, node.arg(5), node.arg(6), node.attr("epsilon", 1e-12)
    )
    return [normalized, count, total][: len(node.proto.output)]


@_fused("Attention")
def attention(node: OnnxNode) -> Expr:
    """Convert an attention of one stream, whose three products are one."""
    joined = matmul(node, node.arg(0), Input(node, 1))
    if node.has_input(2):
        joined = node.call("add", joined, node.arg(2))
    width = node.shape(joined)[-1] // 3
    sizes = node.attr("qkv_hidden_sizes", None) or [width] * 3
    parts = node.call("split", joined, indices_or_sections=(sizes[0], sum(sizes[:2])), axis=-1)
    _refuse(node, (4, 6))
    return _attended(node, [node.field(parts, part) for part in range(3)], mask=3, bias=5)


@_fused("MultiHeadAttention")
def multi_head_attention(node: OnnxNode) -> Expr:
    """Convert an attention of queries, keys and values of three axes."""
    _refuse(node, (6, 7, 8, 9))
    if not (node.has_input(1) and node.has_input(2)) or node.rank(node.arg(1)) != 3:
        raise node.error("packed queries, keys and values are not read")
    streams = [node.arg(part) for part in range(3)]
    if node.has_input(3):
        ends = np.cumsum([0, *(node.shape(stream)[-1] for stream in streams)])
        for part, stream in enumerate(streams):
            begin, end = ends[part : part + 2]
            bias = node.weight(3, f"{begin}_{end}", itemgetter(slice(begin, end)))
            if bias is None:
                raise node.error("the bias is not constant")
            streams[part] = node.call("add", stream, bias)
    return _attended(node, streams, mask=4, bias=5)


def _refuse(node: OnnxNode, places: Sequence[int]) -> None:
    if any(map(node.has_input, places)) or any(node.proto.output[1:]):
        raise node.error(
            "keys and values of earlier steps are not read", fix="export the model without a cache"
        )
    if node.attr("do_rotary", 0):
        raise node.error("rotary embeddings inside are not read")


def _attended(node: OnnxNode, streams: Sequence[Expr], mask: int, bias: int) -> Expr:
    """softmax(Q K^T scale + masks) V of streams (batch, steps, width), head by head."""
    query, key, value = (by_head(node, stream, node.attr("num_heads")) for stream in streams)
    scale = node.attr("scale", 0.0) or 1 / math.sqrt(node.shape(query)[-1])
    turned = node.call("transpose", key, axes=(0, 1, 3, 2))
    scores = node.times(product(node, query, turned), scale)
    if node.has_input(bias):
        scores = node.call("add", scores, node.arg(bias))
    hidden = node.attr("mask_filter_value", -10000.0)
    if node.has_input(mask):
        scores = node.call("add", scores, _mask(node, mask, hidden, scores))
    if node.attr("unidirectional", 0):
        later = np.triu(np.ones(node.shape(scores)[-2:], np.float32), 1)
        scores = node.call("add", scores, node.const(later * np.float32(hidden)))
    shares = node.call("nn.softmax", scores, axis=-1)
    return joined_heads(node, product(node, shares, value))


def _mask(node: OnnxNode, index: int, hidden: float, scores: Expr) -> Expr:
    """Return the addend of a mask of ones for tokens that count: 0 for these, ``hidden`` for
    others."""
    held = node.arg(index)
    if node.rank(held) not in (2, 3) or node.shape(held)[-1] != node.shape(scores)[-1]:
        raise node.error(
            f"a mask of shape {node.shape(held)} is not read",
            fix="give a 0 or 1 for each token: (batch, tokens), or (batch, tokens, tokens)",
        )
    flags = node.call("cast", held, dtype="float32")
    absent = node.call("subtract", node.scalar_like(1, flags), flags)
    added = node.times(absent, hidden)
    return node.call("expand_dims", added, axis=1, num_newaxis=4 - node.rank(held))
