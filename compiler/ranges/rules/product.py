"""Convolutions and matrix products: sums bounded per output channel with the actual weights.

    out[o] = sum_k w[o,k] x[k]        high[o] = sum_k max(w, 0) high[k] + min(w, 0) low[k]

A partial sum may hold any subset of the terms, so its bound counts only terms of one sign:

    partial[o] = sum_k max(w, 0) max(high[k], 0) + min(w, 0) min(low[k], 0)

Padding reads 0 in place of some x[k], which is one of these subsets.
"""

from __future__ import annotations

import math

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ops.number_format import Array
from compiler.ranges.analysis import FRange, RangeContext, dtype_range
from compiler.ranges.interval import Bound, Interval, constant_interval, exact, interval

_INT64_ROOM = 1 << 62
_FLOAT64_ROOM = 1 << 53
_BLOCK = 1 << 20
"""Weights that are looked at together."""


def weighted_sums(
    positive: Array, negative: Array, on_positive: Bound, on_negative: Bound
) -> tuple[Bound, ...]:
    """sum_k positive[g,o,k] * on_positive[g,k,e] + negative[g,o,k] * on_negative[g,k,e], exactly.

    The sums are of float64 or int64 only where none can leave what that holds exactly, else of
    Python integers.

    Args:
        positive: (G, O, K), sums of the weights above 0.
        negative: the same of the values below 0.
        on_positive: (G, K, E), the bounds that each positive weight meets.
        on_negative: (G, K, E), the bounds that each negative weight meets.
    Returns:
        E arrays of (G, O) Python integers.
    """
    reach = max(map(abs, (*on_positive.flat, *on_negative.flat)), default=0)
    weight = (largest(positive) + largest(negative)) * positive.shape[2]
    room = max(reach, 1) * max(weight, 1)
    kind = object if room >= _INT64_ROOM else np.int64 if room >= _FLOAT64_ROOM else np.float64
    total = positive.astype(kind) @ on_positive.astype(kind)
    total = total + negative.astype(kind) @ on_negative.astype(kind)
    ends = exact(total if kind is object else total.astype(np.int64))
    return tuple(np.moveaxis(ends, -1, 0))


def largest(weight: Array) -> int:
    """The largest absolute value, which for the least int64 is no int64."""
    return max(abs(int(weight.min())), abs(int(weight.max()))) if weight.size else 0


def signed_sums(weight: Array) -> tuple[Array, Array]:
    """Sums of the positive and of the negative weights over the last axis; never wrapped."""
    fits = largest(weight) * max(weight.shape[-1], 1) < _INT64_ROOM
    wide = weight.astype(np.int64 if fits else object)
    parts = np.maximum(wide, 0), np.minimum(wide, 0)
    if weight.shape[-1] == 1:  # numpy takes longer to add up one number than many
        return parts[0][..., 0], parts[1][..., 0]
    return parts[0].sum(axis=-1), parts[1].sum(axis=-1)


def _bounded(
    step: Step, ctx: RangeContext, weight: Array, low: Bound, high: Bound, padded: bool
) -> tuple[Bound, Bound]:
    """Bounds per output channel; weight is (G, O, K, taps), low and high are (G, K)."""
    groups, outputs, *rest = weight.shape
    rows = max(1, _BLOCK // max(1, groups * math.prod(rest)))
    bottom, top = np.minimum(low, 0), np.maximum(high, 0)
    on_positive = np.stack([bottom, top, low, high], axis=-1)
    on_negative = np.stack([top, bottom, high, low], axis=-1)
    blocks = [
        weighted_sums(*signed_sums(weight[:, start : start + rows]), on_positive, on_negative)
        for start in range(0, max(outputs, 1), rows)
    ]
    ends = [np.concatenate(parts, axis=1).reshape(-1) for parts in zip(*blocks)]
    partial, whole = (ends[0], ends[1]), (ends[2], ends[3])
    _check_widened(step, ctx)
    ctx.fits(step, "the accumulator", Interval(*partial), step.result.type.dtype)
    return partial if padded else whole


@FRange.register("nn.conv2d")
def conv2d(step: Step, ctx: RangeContext) -> Interval:
    """Per output channel; spatial positions share their bounds."""
    data, kernel = step.args
    padded, groups = any(step.attrs.padding), step.attrs.groups
    outputs, inputs, *size = kernel.type.concrete_shape
    if kernel.data is None:
        return _of_two(step, ctx, inputs * math.prod(size), padded)
    weight = kernel.data.reshape(groups, outputs // groups, inputs, -1)
    low, high = (end.reshape(groups, inputs) for end in ctx.of(data).per(1, groups * inputs))
    bottom, top = _bounded(step, ctx, weight, low, high, padded)
    return interval(bottom.reshape(1, -1, 1, 1), top.reshape(1, -1, 1, 1))


@FRange.register("nn.matmul", "nn.batch_matmul")
def matmul(step: Step, ctx: RangeContext) -> Interval:
    """Per column of a constant on the right, per row of one on the left, for each matrix of it;
    else every product at its worst."""
    left = step.args[1].data is None
    computed, known = reversed(step.args) if left else step.args
    if known.data is None or known.data.ndim < 2:
        return _of_two(step, ctx, step.args[0].type.concrete_shape[-1])
    weight = known.data if left else np.swapaxes(known.data, -1, -2)
    *lead, units, terms = weight.shape
    weight = weight.reshape(math.prod(lead), units, terms, 1)
    ends = ctx.of(computed).per(-2 if left else -1, terms)
    low, high = (np.broadcast_to(end, (len(weight), terms)) for end in ends)
    bottom, top = _bounded(step, ctx, weight, low, high, False)
    shape = (*lead, units, 1) if left else (*lead, 1, units)
    return interval(bottom.reshape(shape), top.reshape(shape))


def _of_two(step: Step, ctx: RangeContext, terms: int, padded: bool = False) -> Interval:
    """Sums of products of two computed tensors."""
    a, b = (ctx.of(v) for v in step.args)
    ends = [x * y for x in (a.lowest, a.highest) for y in (b.lowest, b.highest)]
    rank = len(step.result.type.shape)
    partial = constant_interval(terms * min(*ends, 0), terms * max(*ends, 0), rank)
    _check_widened(step, ctx)
    ctx.fits(step, "the accumulator", partial, step.result.type.dtype)
    return partial if padded else constant_interval(terms * min(ends), terms * max(ends), rank)


def _check_widened(step: Step, ctx: RangeContext) -> None:
    """Operands are converted to the dtype of the result first, which must hold them."""
    dtype = step.result.type.dtype
    low, high = dtype_range(dtype)
    for value in step.args:
        own = dtype_range(value.type.dtype)
        if own[0] < low or own[1] > high:
            ctx.fits(step, "an operand", ctx.of(value), dtype)
