"""Slices, gathers, scatters and ordering."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx, sized_by_data
from compiler.ir.expr import Constant, Expr, is_op_call
from compiler.ir.structural import structural_equal
from compiler.ir.ty import is_float
from compiler.ops.annotation.minus_infinity import INFINITE
from compiler.ops.transform.scatter import ScatterNDAttrs

_TO_THE_END = (2**31 - 1, 2**63 - 1)
"""Ends that stand for the last element of the direction, backwards too."""


@from_onnx("Slice")
@from_onnx("Slice", since=10)
def slice_of(node: OnnxNode) -> Expr:
    """Only the sliced axes get bounds; the other axes stay whole."""
    data = node.arg(0)
    rank = node.rank(data)
    if node.opset < 10:
        starts = node.attr("starts")
        ends = node.attr("ends")
    else:
        starts = node.ints(1, "the starts")
        ends = node.ints(2, "the ends")
    given = node.ints_since(10, 3, "axes", "the axes")
    if given is None:
        axes = list(range(len(starts)))
    else:
        axes = [node.axis(a, rank) for a in given]
    if node.has_input(4):
        steps = node.ints(4, "the steps")
    else:
        steps = [1] * len(starts)
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
        size = shape[axis]
        first, last, _ = slice(start, None if end in _TO_THE_END else end, step).indices(size)
        first = max(first, 0)  # where Python has nothing, ONNX begins with the first element
        begin.append(first)
        # Our end counts from the back when negative, so "before the first element" is -size - 1.
        stop.append(last if last >= 0 else -size - 1)
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
    labels = node.known(0)
    places = node.call("reshape", node.arg(1), newshape=(-1,))
    data = node.arg(0) if labels is None else node.const(labels)
    if node.rank(data) == 1:
        data = node.call("expand_dims", data, axis=0)
    return node.call("take", data, places, axis=-1)


def _wrapped_indices(node: OnnxNode, index: int, size: int | NDArray[np.int64]) -> Expr:
    """Indices with negative ones counted from the end; of vectors ``size`` has one per element."""
    known = node.known(index)
    if known is not None:
        if np.any((known < -size) | (known >= size)):
            raise node.error(f"an index is outside [{-size}, {size - 1}]")
        if np.all(known >= 0):
            return node.arg(index)
        derived = node.weight(index, "wrapped", lambda i: np.where(i < 0, i + size, i))
        assert derived is not None
        return derived
    return _places(node, node.arg(index), size)


def _places(node: OnnxNode, indices: Expr, size: int | NDArray[np.int64]) -> Expr:
    """Computed indices as positions; limited to the longest axis, so that no sum of them
    overflows."""
    most = int(np.max(size))
    inside = node.call("clip", indices, a_min=float(-most), a_max=float(most - 1))
    return _counted_from_start(node, inside, size)


def _counted_from_start(node: OnnxNode, indices: Expr, size: int | NDArray[np.int64]) -> Expr:
    moved = node.call("add", indices, node.const(size, indices.tensor_type.dtype))
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
    """Slices by index vectors."""
    batch_dims = node.attr("batch_dims", 0)
    shape = node.shape(node.arg(1))
    sizes = np.array(node.shape(node.arg(0))[batch_dims : batch_dims + shape[-1]])
    turned = node.moved(_wrapped_indices(node, 1, sizes), len(shape) - 1, 0)
    return node.call("gather_nd", node.arg(0), turned, batch_dims=batch_dims, index_rank=shape[-1])


@from_onnx("Scatter", since=9)
@from_onnx("ScatterElements", since=11)
def scatter_elements(node: OnnxNode) -> Expr:
    """Updates by index along one axis; before opset 11 the operator was called Scatter.

    Indices that are alike along the last axes, which they cover, are indices of rows.
    """
    shape = node.shape(node.arg(0))
    counts = node.shape(node.arg(1))
    axis = node.axis(node.attr("axis", 0), len(shape))
    known = node.known(1)
    source = node.arg(1)
    if known is None and is_op_call(source, "broadcast_to"):
        source = source.args[0]
    own = node.shape(source) if known is None else counts
    own = (1,) * (len(counts) - len(own)) + own
    lead = len(shape)
    while lead > axis + 1 and 0 < counts[lead - 1] == shape[lead - 1]:
        if known is None and own[lead - 1] != 1:
            break
        if known is not None and np.any(known != known[(slice(None),) * (lead - 1) + (slice(1),)]):
            break
        lead -= 1
    at: list[Expr | NDArray[Any]] = list(np.indices(counts[:lead], sparse=True))
    if known is not None:
        at[axis] = known[(slice(None),) * lead + (0,) * (len(shape) - lead)]
        return _scattered(node, at)
    if lead < len(shape):
        source = node.call("reshape", source, newshape=own[:lead])
        source = node.call("broadcast_to", source, shape=counts[:lead])
    else:
        source = node.arg(1)
    at[axis] = _places(node, source, shape[axis])
    return _scattered(node, at)


_COMBINED = {"add": "add", "mul": "multiply"}
"""Operators of the reductions that a tensor of rows may have."""
_MOST_RUNS = 8
"""Slices that a tensor with written rows is joined of; else it is gathered."""


def _scattered(node: OnnxNode, at: Sequence[Expr | NDArray[Any]]) -> Expr:
    """The data with updates at places, as the reduction of the node says.

    Where no two known places are alike, these are rows of both, end to end, or sums of such.

    Args:
        at: an index for each of the first axes, in row-major order; a computed one is not negative.
    """
    reduction = node.attr("reduction", "none")
    data = node.arg(0)
    shape = node.shape(node.arg(0))
    sizes = shape[: len(at)]
    count = math.prod(sizes)
    width = math.prod(shape[len(at) :])
    number = math.prod(node.shape(node.arg(2))) // max(width, 1)
    if not count * width * number:
        return data
    rows = node.call("reshape", data, newshape=(count, width))
    news = node.call("reshape", node.arg(2), newshape=(number, width))
    places = _row_numbers(node, at, sizes)
    if isinstance(places, np.ndarray):
        found = _rows_at_known_places(node, rows, news, places.reshape(-1), reduction)
        if found is not None:
            return node.call("reshape", found, newshape=shape)
        places = node.const(places.reshape(-1), "int32" if count < 1 << 31 else "int64")
    places = node.call("reshape", places, newshape=(1, number))
    mode = {"none": "update"}.get(reduction, reduction)
    if mode != "add":
        if mode in _OPPOSITE:
            before = _before_emptied(data, places, mode)
        else:
            before = None
        if before is not None:  # the update that came last is one of those compared
            rows = node.call("scatter_nd", before, places, news, mode="update")
        rows = node.call("scatter_nd", rows, places, news, mode=mode)
        return node.call("reshape", rows, newshape=shape)
    zero = node.scalar_like(0, data)
    dtype = data.tensor_type.dtype
    first = node.call("full", zero, shape=(count, width), dtype=dtype)
    sums = node.call("scatter_nd", first, places, news, mode=mode)
    known = node.known(0)
    zeros = _number(data) == 0 if known is None else not known.any()
    return node.call("reshape", sums if zeros else node.call("add", rows, sums), newshape=shape)


_OPPOSITE = {"max": "min", "min": "max"}


def _before_emptied(data: Expr, places: Expr, mode: str) -> Expr | None:
    """The rows in which the opposite of ``mode`` put an infinite number at the same places; None
    for other data. torch writes so what has ``include_self=False``."""
    while is_op_call(data, "reshape"):
        data = data.args[0]
    if not is_op_call(data, "scatter_nd") or ScatterNDAttrs.of(data).mode != _OPPOSITE[mode]:
        return None
    number = _number(data.args[2])
    infinite = number is not None and abs(number) > INFINITE and (number < 0) == (mode == "max")
    if infinite and structural_equal(data.args[1], places):
        return data.args[0]
    return None


def _number(source: Expr) -> float | None:
    """The number that a tensor is full of, however large it is; None for others."""
    while is_op_call(source, "broadcast_to", "full", "reshape"):
        source = source.args[0]
    if not isinstance(source, Constant) or not source.data.size:
        return None
    first = source.data.flat[0]
    if np.all(source.data == first):
        return float(first)
    return None


def _row_numbers(
    node: OnnxNode, at: Sequence[Expr | NDArray[Any]], sizes: Sequence[int]
) -> Expr | NDArray[Any]:
    """Row-major numbers of tuples of indices, broadcast; known where all of these are."""
    known: Any = 0
    computed: Expr | None = None
    for k, (part, size) in enumerate(zip(at, sizes)):
        stride = math.prod(sizes[k + 1 :])
        if isinstance(part, np.ndarray):
            if np.any((part < -size) | (part >= size)):
                raise node.error(f"an index is outside [{-size}, {size - 1}]")
            known = known + part % size * stride
            continue
        part = node.call("cast", part, dtype="int64")
        if stride > 1:
            part = node.call("multiply", part, node.const(np.int64(stride)))
        if computed is None:
            computed = part
        else:
            computed = node.call("add", computed, part)
    if computed is None:
        return np.asarray(known)
    if np.any(known):
        return node.call("add", computed, node.const(known))
    return computed


def _rows_at_known_places(
    node: OnnxNode, rows: Expr, news: Expr, places: NDArray[np.int64], reduction: str
) -> Expr | None:
    """Rows of both, end to end, or sums and products of such; None where updates meet that have no
    such form."""
    count = node.size(rows, 0)
    number = len(places)
    if reduction == "none":
        order = np.arange(count)
        order[places] = count + np.arange(number)
        return _rows_of(node, rows, news, order)
    turn = np.zeros(number, np.int64)  # how many updates of the same place came before
    sort = np.argsort(places, kind="stable")
    turn[sort] = np.arange(number) - np.searchsorted(places[sort], places[sort])
    most = int(turn.max())
    if reduction not in _COMBINED or most >= (1 if reduction == "add" else _MOST_RUNS):
        return None
    width = node.size(rows, 1)
    neutral = node.const(np.full((1, width), int(reduction == "mul")), rows.tensor_type.dtype)
    for this in range(most + 1):
        order = np.full(count, number)
        order[places[turn == this]] = np.flatnonzero(turn == this)
        rows = node.call(_COMBINED[reduction], rows, _rows_of(node, news, neutral, order))
    return rows


def summed_rows(node: OnnxNode, rows: Expr, terms: NDArray[np.int64]) -> Expr:
    """Row k of the result is the sum of the rows ``terms[k]``; the number behind the last row
    stands for nothing.

    Raises:
        OnnxImportError: there are too many terms.
    """
    if terms.size * node.size(rows, 1) > _MOST_TERMS:
        raise node.error(f"sums of {terms.size} rows are too large")
    zero = node.scalar_like(0, rows)
    padded = node.call("nn.pad", rows, zero, pad_width=((0, 1), (0, 0)))
    return node.call("sum", node.call("take", padded, node.const(terms), axis=0), axis=(1,))


_MOST_TERMS = 1 << 26


def _rows_of(node: OnnxNode, first: Expr, second: Expr, order: NDArray[np.int64]) -> Expr:
    """Rows of two matrices, numbered through."""
    count = node.size(first, 0)
    runs = np.split(order, np.flatnonzero((np.diff(order) != 1) | (order[1:] == count)) + 1)
    if len(runs) > _MOST_RUNS:
        both = node.joined([first, second], 0)
        return node.call("take", both, node.const(order), axis=0)
    parts = []
    for run in runs:
        side, begin = (first, int(run[0])) if run[0] < count else (second, int(run[0]) - count)
        end = begin + len(run)
        cut = {"begin": (begin,), "end": (end,), "strides": (1,), "axes": (0,)}
        whole = len(run) == node.size(side, 0)
        parts.append(side if whole else node.call("strided_slice", side, **cut))
    return node.joined(parts, 0)


@from_onnx("OneHot", since=9)
def one_hot(node: OnnxNode) -> Expr:
    """One value at the index, another elsewhere."""
    depth = int(node.require_known(1, "the depth").reshape(()))
    off, on = node.require_known(2, "the values").reshape(-1)
    indices = node.arg(0)
    if is_float(indices.tensor_type.dtype):
        indices = node.call("cast", indices, dtype="int64")
    return node.call(
        "one_hot",
        _counted_from_start(node, indices, depth),
        node.const(on),
        node.const(off),
        depth=depth,
        axis=node.attr("axis", -1),
        dtype=str(on.dtype),
    )


@from_onnx("ArgMax")
@from_onnx("ArgMin")
def place_of_extremum(node: OnnxNode) -> Expr:
    """Index of the largest or the smallest element."""
    return node.call(
        node.op_type.lower(),
        node.arg(0),
        axis=(node.axis(node.attr("axis", 0), node.rank(node.arg(0))),),
        keepdims=bool(node.attr("keepdims", 1)),
        select_last_index=bool(node.attr("select_last_index", 0)),
        dtype="int64",
    )


@from_onnx("TopK")
@from_onnx("TopK", since=10)
def top_k(node: OnnxNode) -> list[Expr]:
    """Values and indices of the k largest (or smallest); k is an attribute before opset 10."""
    pair = node.call(
        "topk",
        node.arg(0),
        k=node.attr("k") if node.opset < 10 else int(node.require_known(1, "k").reshape(())),
        axis=node.attr("axis", -1),
        ret_type="both",
        is_ascend=not node.attr("largest", 1),
        dtype="int64",
    )
    return [node.field(pair, 0), node.field(pair, 1)]


@from_onnx("ScatterND", since=11)
def scatter_nd(node: OnnxNode) -> Expr:
    """Updates by index vectors."""
    known = node.known(1)
    sizes = node.shape(node.arg(0))
    length = node.shape(node.arg(1))[-1]
    if known is not None:
        return _scattered(node, list(np.moveaxis(known, -1, 0)))
    at = [
        _places(node, node.call("take", node.arg(1), node.const(k), axis=-1), size)
        for k, size in zip(range(length), sizes)
    ]
    return _scattered(node, at)


@from_onnx("TensorScatter", since=24)
def tensor_scatter(node: OnnxNode) -> Expr:
    """A cache in which each sample's updates stand from its own place on."""
    past = node.arg(0)
    update = node.arg(1)
    shape = node.shape(past)
    axis = node.axis(node.attr("axis", -2), len(shape))
    count = node.size(update, axis)
    first: Expr = node.const(np.zeros(shape[0], np.int64))
    if node.has_input(2):
        first = node.call("clip", node.arg(2), a_min=0.0, a_max=float(shape[axis]))
    own = node.call("expand_dims", first, axis=1)
    source = node.call("subtract", node.const(np.arange(shape[axis])[None]), own)
    if node.attr("mode", "linear") == "circular":
        source = node.call("floor_mod", source, node.const(np.int64(shape[axis])))
    inside = node.call(
        "logical_and",
        node.call("greater_equal", source, node.const(np.int64(0))),
        node.call("less", source, node.const(np.int64(count))),
    )
    along = [shape[0] if k == 0 else shape[k] if k == axis else 1 for k in range(len(shape))]
    news = node.call("take", update, source, axis=axis, batch_dims=1)
    return node.call("where", node.call("reshape", inside, newshape=along), news, past)


@from_onnx("ReverseSequence", since=10)
def reverse_sequence(node: OnnxNode) -> Expr:
    """The first elements of each sample back to front, as many as the lengths say."""
    data = node.arg(0)
    batch = node.attr("batch_axis", 1)
    time = node.attr("time_axis", 0)
    order = (batch, time, *range(2, node.rank(data)))
    turned = node.call("transpose", data, axes=order)
    steps = node.const(np.arange(node.size(turned, 1))[None])
    limit = float(node.size(turned, 1))
    lengths = node.call("clip", node.arg(1), a_min=0.0, a_max=limit)
    lengths = node.call("expand_dims", lengths, axis=1)
    back = node.call("subtract", node.call("subtract", lengths, node.const(np.int64(1))), steps)
    places = node.call("where", node.call("less", steps, lengths), back, steps)
    found = node.call("take", turned, places, axis=1, batch_dims=1)
    return node.call("transpose", found, axes=order)


@from_onnx("Compress", since=9)
def compress(node: OnnxNode) -> Expr:
    """Elements at which a constant condition holds."""
    (places,) = np.nonzero(
        node.require_known(1, "the condition", sized_by_data("Compress")).reshape(-1)
    )
    axis = node.attr("axis", None)
    return node.call("take", node.arg(0), node.const(places), axis=axis)


@from_onnx("NonZero", since=9)
def non_zero(node: OnnxNode) -> Expr:
    """Places of a constant's elements: how many there are must be known."""
    found = np.nonzero(node.require_known(0, "the data", sized_by_data("NonZero")))
    return node.const(np.stack(found).astype(np.int64))
