"""Slices, gathers, scatters and ordering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ir.ty import is_float


def _slice(
    node: OnnxNode,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Expr:
    """Only the sliced axes get bounds; the other axes stay whole."""
    data = node.arg(0)
    rank = node.rank(data)
    axes = list(range(len(starts))) if axes is None else [node.axis(a, rank) for a in axes]
    steps = [1] * len(starts) if steps is None else list(steps)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise node.error(
            f"starts {starts}, ends {ends}, axes {axes}, steps {steps} differ in length"
        )
    if any(s == 0 for s in steps):
        raise node.error("a step of 0 is not possible")
    shape = node.shape(data)
    begin: list[int] = []
    stop: list[int] = []
    for start, end, axis, step in zip(starts, ends, axes, steps):
        first, last, _ = slice(start, end, step).indices(shape[axis])
        begin.append(first)
        # Our end counts from the back when negative, so "before the first element" is -size - 1.
        stop.append(last if last >= 0 else -shape[axis] - 1)
    return node.call(
        "strided_slice",
        data,
        begin=tuple(begin),
        end=tuple(stop),
        strides=tuple(steps),
        axes=tuple(axes),
    )


@from_onnx("ArrayFeatureExtractor", since=1, domain="ai.onnx.ml")
def array_feature_extractor(node: OnnxNode) -> Expr:
    """Columns at constant or computed places, such as the label of the best class."""
    data, places = node.arg(0), node.call("reshape", node.arg(1), newshape=(-1,))
    if node.rank(data) == 1:
        data = node.call("expand_dims", data, axis=0)
    return node.call("take", data, places, axis=-1)


@from_onnx("Slice")
def slice_attributes(node: OnnxNode) -> Expr:
    """Bounds as attributes."""
    return _slice(node, node.attr("starts"), node.attr("ends"), node.attr("axes", None), None)


@from_onnx("Slice", since=10)
def slice_inputs(node: OnnxNode) -> Expr:
    """Bounds as constant inputs."""
    return _slice(
        node,
        node.ints(1, "the starts"),
        node.ints(2, "the ends"),
        node.ints(3, "the axes") if node.has_input(3) else None,
        node.ints(4, "the steps") if node.has_input(4) else None,
    )


def _wrapped_indices(node: OnnxNode, index: int, size: int) -> Expr:
    """Indices with negative ones counted from the end."""
    known = node.known(index)
    if known is not None:
        if np.any((known < -size) | (known >= size)):
            raise node.error(f"an index is outside [-{size}, {size - 1}]")
        if np.all(known >= 0):
            return node.arg(index)
        derived = node.weight(index, "wrapped", lambda i: np.where(i < 0, i + size, i))
        assert derived is not None
        return derived
    indices = node.arg(index)
    moved = node.call("add", indices, node.scalar_like(size, indices))
    negative = node.call("less", indices, node.scalar_like(0, indices))
    return node.call("where", negative, moved, indices)


@from_onnx("Gather")
def gather(node: OnnxNode) -> Expr:
    """Rows by index along one axis."""
    data = node.arg(0)
    axis = node.axis(node.attr("axis", 0), node.rank(data))
    if node.known(1) is None:
        # Counting around is what negative indices mean, and nothing can overflow on the way.
        return node.call("take", data, node.arg(1), axis=axis, mode="wrap")
    return node.call("take", data, _wrapped_indices(node, 1, node.size(data, axis)), axis=axis)


@from_onnx("GatherElements", since=11)
def gather_elements(node: OnnxNode) -> Expr:
    """Elements by index along one axis."""
    data = node.arg(0)
    axis = node.axis(node.attr("axis", 0), node.rank(data))
    return node.call("gather", data, _wrapped_indices(node, 1, node.size(data, axis)), axis=axis)


@from_onnx("GatherND", since=11)
def gather_nd(node: OnnxNode) -> Expr:
    """Slices by index vectors. Ours has the index vector along the first axis."""
    indices = node.arg(1)
    rank = node.rank(indices)
    batch_dims = node.attr("batch_dims", 0)
    order = (rank - 1, *range(rank - 1))
    turned = node.call("transpose", indices, axes=order) if rank > 1 else indices
    return node.call(
        "gather_nd", node.arg(0), turned, batch_dims=batch_dims, index_rank=node.shape(indices)[-1]
    )


@from_onnx("ScatterElements", since=11)
def scatter_elements(node: OnnxNode) -> Expr:
    """Updates by index along one axis."""
    reduction = node.attr("reduction", "none")
    data = node.arg(0)
    axis = node.axis(node.attr("axis", 0), node.rank(data))
    mode = {"none": "update"}.get(reduction, reduction)
    known = node.known(1)
    if known is not None:
        at: list[Any] = list(np.indices(known.shape, sparse=True))
        at[axis] = known
        rows = _written_rows(node, tuple(np.broadcast_arrays(*at)), mode)
        if rows is not None:
            return rows
    indices = _wrapped_indices(node, 1, node.size(data, axis))
    return node.call("scatter_elements", data, indices, node.arg(2), axis=axis, reduction=mode)


_MOST_RUNS = 8
"""Slices that a tensor with written rows is joined of; else it is gathered."""


def _written_rows(node: OnnxNode, at: tuple[NDArray[Any], ...], mode: str) -> Expr | None:
    """The data with updates at known places: rows of both, end to end, or sums of such.

    Args:
        at: an index array for each of the first axes; one update a place, in row-major order.
    Returns:
        None where places or the reduction have no such form.
    """
    data, updates = node.arg(0), node.arg(2)
    shape = node.shape(data)
    sizes = shape[: len(at)]
    if mode not in ("update", "add") or not math.prod(shape) or not at[0].size:
        return None
    places = np.ravel_multi_index([a.reshape(-1) % n for a, n in zip(at, sizes)], sizes)
    count, width = math.prod(sizes), math.prod(shape[len(at) :])
    rows = node.call("reshape", data, newshape=(count, width))
    news = node.call("reshape", updates, newshape=(len(places), width))
    if mode == "update":
        order = np.arange(count)
        order[places] = count + np.arange(len(places))
        return node.call("reshape", _rows_of(node, rows, news, order), newshape=shape)
    turn = np.zeros(len(places), np.int64)  # how many updates of the same place came before
    sort = np.argsort(places, kind="stable")
    first = np.searchsorted(places[sort], places[sort])
    turn[sort] = np.arange(len(places)) - first
    if turn.max() >= _MOST_RUNS:
        return None
    zeros = node.const(np.zeros((1, width)), data.tensor_type.dtype)
    for number in range(int(turn.max()) + 1):
        order = np.full(count, len(places))
        order[places[turn == number]] = np.flatnonzero(turn == number)
        rows = node.call("add", rows, _rows_of(node, news, zeros, order))
    return node.call("reshape", rows, newshape=shape)


def _rows_of(node: OnnxNode, first: Expr, second: Expr, order: NDArray[np.int64]) -> Expr:
    """Rows of two matrices, numbered through."""
    count = node.size(first, 0)
    runs = np.split(order, np.flatnonzero((np.diff(order) != 1) | (order[1:] == count)) + 1)
    if len(runs) > _MOST_RUNS:
        both = node.call("concatenate", node.tuple([first, second]), axis=0)
        return node.call("take", both, node.const(order), axis=0)
    parts = []
    for run in runs:
        side, begin = (first, int(run[0])) if run[0] < count else (second, int(run[0]) - count)
        end = begin + len(run)
        cut = {"begin": (begin,), "end": (end,), "strides": (1,), "axes": (0,)}
        whole = len(run) == node.size(side, 0)
        parts.append(side if whole else node.call("strided_slice", side, **cut))
    return parts[0] if len(parts) == 1 else node.call("concatenate", node.tuple(parts), axis=0)


@from_onnx("OneHot", since=9)
def one_hot(node: OnnxNode) -> Expr:
    """One value at the index, another elsewhere."""
    depth = int(node.require_known(1, "the depth").reshape(()))
    off, on = node.require_known(2, "the values").reshape(-1)
    indices = node.arg(0)
    if is_float(indices.tensor_type.dtype):
        indices = node.call("cast", indices, dtype="int64")
    moved = node.call("add", indices, node.scalar_like(depth, indices))
    negative = node.call("less", indices, node.scalar_like(0, indices))
    indices = node.call("where", negative, moved, indices)
    return node.call(
        "one_hot",
        indices,
        node.const(on),
        node.const(off),
        depth=depth,
        axis=node.attr("axis", -1),
        dtype=str(on.dtype),
    )


def _arg_reduce(node: OnnxNode, op: str) -> Expr:
    return node.call(
        op,
        node.arg(0),
        axis=(node.axis(node.attr("axis", 0), node.rank(node.arg(0))),),
        keepdims=bool(node.attr("keepdims", 1)),
        select_last_index=bool(node.attr("select_last_index", 0)),
        dtype="int64",
    )


@from_onnx("ArgMax")
def argmax(node: OnnxNode) -> Expr:
    """Index of the largest element."""
    return _arg_reduce(node, "argmax")


@from_onnx("ArgMin")
def argmin(node: OnnxNode) -> Expr:
    """Index of the smallest element."""
    return _arg_reduce(node, "argmin")


@from_onnx("TopK", since=10)
def top_k(node: OnnxNode) -> list[Expr]:
    """Values and indices of the k largest (or smallest)."""
    count = int(node.require_known(1, "k").reshape(()))
    pair = node.call(
        "topk",
        node.arg(0),
        k=count,
        axis=node.attr("axis", -1),
        ret_type="both",
        is_ascend=not node.attr("largest", 1),
        dtype="int64",
    )
    return [node.field(pair, 0), node.field(pair, 1)]


@from_onnx("Scatter", since=9)
def scatter(node: OnnxNode) -> Expr | Sequence[Expr]:
    """What ScatterElements was called before opset 11."""
    return scatter_elements(node)


@from_onnx("ScatterND", since=11)
def scatter_nd(node: OnnxNode) -> Expr:
    """Updates by index vectors. Ours has the index vector along the first axis."""
    reduction = node.attr("reduction", "none")
    mode = {"none": "update"}.get(reduction, reduction)
    known = node.known(1)
    if known is not None:
        rows = _written_rows(node, tuple(np.moveaxis(known, -1, 0)), mode)
        if rows is not None:
            return rows
    indices = node.arg(1)
    rank = node.rank(indices)
    order = (rank - 1, *range(rank - 1))
    turned = node.call("transpose", indices, axes=order) if rank > 1 else indices
    return node.call("scatter_nd", node.arg(0), turned, node.arg(2), mode=mode)
