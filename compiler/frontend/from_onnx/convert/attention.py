"""Attention and RotaryEmbedding: the functions of onnx 1.23, for each of their opsets.

Earlier versions of onnx define is_causal with nonpad_kv_seqlen, rows without a visible key and the
place of softcap in other ways than onnxruntime computes them.
"""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.convert.matmul import product
from compiler.frontend.from_onnx.node import OnnxNode, dtype_of
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


def by_head(node: OnnxNode, stream: Expr, heads: int) -> Expr:
    """Transpose (batch, steps, heads * width) to (batch, heads, steps, width)."""
    return node.call("transpose", _parted(node, stream, heads), axes=(0, 2, 1, 3))


def _parted(node: OnnxNode, stream: Expr, heads: int) -> Expr:
    """Reshape (batch, steps, heads * width) to (batch, steps, heads, width)."""
    batch, steps, width = node.shape(stream)
    if heads < 1 or width % heads:
        raise node.error(f"{heads} heads do not divide {width} channels")
    return node.call("reshape", stream, newshape=(batch, steps, heads, width // heads))


def joined_heads(node: OnnxNode, data: Expr) -> Expr:
    """Transpose (batch, heads, steps, width) to (batch, steps, heads * width)."""
    batch, _, steps, _ = node.shape(data)
    rows = node.call("transpose", data, axes=(0, 2, 1, 3))
    return node.call("reshape", rows, newshape=(batch, steps, -1))


@from_onnx("Attention", since=23)
def attention(node: OnnxNode) -> list[Expr]:
    """softmax(softcap(Q K^T scale) + bias) V, zeros for a query without a visible key; the keys and
    values with those of earlier steps; the scores as qk_matmul_output_mode wants them."""
    query, key, value = (node.arg(place) for place in range(3))
    ranks = {node.rank(stream) for stream in (query, key, value)}
    if ranks not in ({3}, {4}):
        raise node.error(f"queries, keys and values have ranks {sorted(ranks)}, expected 3 or 4")
    if ranks == {3}:
        query = by_head(node, query, node.attr("q_num_heads"))
        key, value = (by_head(node, s, node.attr("kv_num_heads")) for s in (key, value))
    if node.has_input(4):
        key = node.joined([node.arg(4), key], 2)
        value = node.joined([node.arg(5), value], 2)
    batch, heads, steps, width = node.shape(query)
    _, groups, keys, _ = node.shape(key)
    if heads % groups:
        raise node.error(f"{heads} heads of queries are no multiple of {groups} heads of keys")
    scale = node.attr("scale", 1 / math.sqrt(width))
    if not 0 <= scale < math.inf:
        raise node.error(f"scale is {scale}, expected a number that is not negative")

    # The queries of the heads that read one head of keys are further rows of one product.
    rows = (batch, groups, heads // groups * steps, width)
    root = math.sqrt(scale)
    turned = node.call("transpose", key, axes=(0, 1, 3, 2))
    grouped = node.reshaped(query, rows)
    raw = product(node, node.times(grouped, root), node.times(turned, root))
    raw = node.reshaped(raw, (batch, heads, steps, keys))
    capped = raw
    cap = node.attr("softcap", 0.0)
    if cap > 0:
        capped = node.times(node.call("tanh", node.times(raw, 1 / cap)), cap)
    bias = _bias(node, raw, node.shape(node.arg(4))[2] if node.has_input(4) else 0)
    if bias is None:
        biased = capped
    else:
        biased = node.call("add", capped, bias)
    weights = _weights(node, biased, bias)
    result = product(node, node.reshaped(weights, (*rows[:3], keys)), value)
    result = node.reshaped(result, (batch, heads, steps, node.shape(value)[-1]))
    if ranks == {3}:
        result = joined_heads(node, result)
    shown = (raw, capped, biased, weights)[node.attr("qk_matmul_output_mode", 0) % 4]
    return [result, key, value, shown][: len(node.proto.output)]


def _weights(node: OnnxNode, scores: Expr, bias: Expr | None) -> Expr:
    """Softmax in the precision that the node names; zeros in rows that are masked as a whole."""
    dtype = scores.tensor_type.dtype
    precision = node.attr("softmax_precision", 0)
    wide = dtype_of(precision, node.label) if precision else dtype
    weights = node.cast(node.call("nn.softmax", node.cast(scores, wide), axis=-1), dtype)
    if bias is None:
        return weights
    largest = node.call("max", bias, axis=(-1,), keepdims=True)
    lost = node.call("equal", largest, node.scalar_like(-math.inf, bias))
    return node.call("where", lost, node.scalar_like(0, weights), weights)


def _bias(node: OnnxNode, scores: Expr, past: int) -> Expr | None:
    """Return the sum of the masks: floats, and 0 or minus infinity for truth values; None without.

    Args:
        past: number of keys of earlier steps.
    """
    zero, hidden = (node.scalar_like(value, scores) for value in (0, -math.inf))
    terms = [node.call("where", v, zero, hidden) for v in _visible(node, scores, past)]
    if node.has_input(3):
        mask = node.arg(3)
        if mask.tensor_type.dtype == "bool":
            mask = node.call("where", mask, zero, hidden)
        *lead, size = node.shape(mask)
        if size < (keys := node.shape(scores)[-1]):
            width = (*((0, 0) for _ in lead), (0, keys - size))
            mask = node.call("nn.pad", mask, hidden, pad_width=width)
        terms.append(mask)
    if terms:
        return reduce(partial(node.call, "add"), terms)
    return None


def _visible(node: OnnxNode, scores: Expr, past: int) -> list[Expr]:
    """Truth values (steps, keys) for causality, windows and the number of keys.

    Query i stands at key i + count - steps, where count is the number of keys that hold something.
    """
    steps, keys = node.shape(scores)[-2:]
    left, right = (node.attr(f"{side}_window_size", -1) for side in ("left", "right"))
    right = 0 if node.attr("is_causal", 0) else right
    ahead = np.arange(keys) - np.arange(steps)[:, None] + steps
    count: Expr = node.const(np.int64(past + steps))
    conditions: list[tuple[str, NDArray[np.int64]]] = []
    if node.has_input(6):
        count = node.call("reshape", node.arg(6), newshape=(-1, 1, 1, 1))
        conditions.append(("less", np.arange(keys)))
    if right >= 0:
        conditions.append(("less_equal", ahead - right))
    if left >= 0:
        conditions.append(("greater_equal", ahead + left))
    return [node.call(name, node.const(bound, "int64"), count) for name, bound in conditions]
