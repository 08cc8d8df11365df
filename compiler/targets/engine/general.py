"""Rules of what the slow general steps compute: every word, of any integers, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.reduce.axes import axes_of
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.ops.transform.scatter import most_updates
from compiler.targets.engine.layouts import axis_order
from compiler.targets.engine.planner import Planner, general, rule
from compiler.targets.engine.steps import number
from compiler.targets.engine.values import INT64, Item, constant, spread
from compiler.targets.engine.views import (
    Address,
    Shape,
    View,
    compact,
    merged_axes,
    positions,
    row_major,
)

_DIMS = 6


# ---- reductions -------------------------------------------------------------------------------


@rule("sum", "max", of=general)
@rule("argmax")
def reduction(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A sum, the largest element or its place, of any axes and strides."""
    (data,) = args
    axes = tuple(axes_of(step))
    terms = prod(data.shape[axis] for axis in axes)
    bounds = {
        "sum": (data.low * terms, data.high * terms),
        "max": data.bounds,
        "argmax": (0, terms - 1),
    }[step.name]
    view = planner.materialise(data)
    kept = [axis for axis in range(len(view.shape)) if axis not in axes]
    view = view.permuted((*kept, *axes))
    if len(merged_axes(view.shape, [view.strides])) > _DIMS - 1:
        view = planner.emitter.contiguous(view, always=True)
    return _folded(planner, step, len(kept), step.name, [view], bounds)


def _folded(
    planner: Planner,
    step: Step,
    kept: int,
    how: str,
    views: list[View],
    bounds: tuple[int, int],
) -> bool:
    """The result is a number for every place along the first ``kept`` axes of one or two views,
    over all places along the others; sums wrap as int64 does."""
    shape = step.results[0].type.concrete_shape
    inside = INT64[0] <= bounds[0] and bounds[1] <= INT64[1]
    item = Item(shape, *(bounds if inside else INT64), uses=1)
    sizes = views[0].shape
    item.view = compact(item.storage, shape)
    out = item.view.buffer
    places = [*row_major(sizes[:kept], out.item), *(0,) * (len(sizes) - kept)]
    sides = [*(view.strides for view in views), tuple(places)]
    outer, inner = (
        merged_axes(sizes[part], [side[part] for side in sides])
        for part in (slice(None, kept), slice(kept, None))
    )
    loops = [*[(1, (0,) * len(sides))] * (_DIMS - len(outer) - len(inner)), *outer, *inner]
    fields: dict[str, Any] = {}
    for axis, (size, along) in enumerate(loops[-_DIMS:]):
        fields |= {f"size_{axis}": size, f"in_stride_{axis}": along[0]}
        fields |= {f"out_stride_{axis}": along[-1], f"other_stride_{axis}": along[1]}
    for at in positions(loops[:-_DIMS]):
        names = ("source", "type"), ("other", "other_type")
        for side, (view, (name, kind)) in enumerate(zip(views, names)):
            moved = sum(index * along[side] for index, along in at)
            fields[name] = Address(view.buffer, view.offset + moved)
            fields[kind] = planner.emitter.type_of(view)
        planner.emitter.step(
            "reduce",
            [view.buffer for view in views if not planner.emitter.is_constant(view)],
            [out],
            how=number(f"REDUCE_{how.upper()}"),
            zero=views[0].buffer.zero,
            other_zero=views[-1].buffer.zero,
            out=Address(out, sum(index * along[-1] for index, along in at)),
            out_type=number(out.type),
            out_zero=out.zero,
            reduced=len(inner),
            last=int(getattr(step.attrs, "select_last_index", False)),
            **fields,
        )
    return planner.settle(step, item)


# ---- products and windows -----------------------------------------------------------------------


@rule("nn.matmul", "nn.batch_matmul", of=general)
def product(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Rows and columns of any integers."""
    left, right = map(planner.materialise, args)
    shape = step.results[0].type.concrete_shape
    sizes = (*shape, left.shape[-1])
    batch = len(shape) - 2 if step.name == "nn.batch_matmul" else 0
    alike = [view.strides[0] if view.shape[0] > 1 else 0 for view in (left, right)][: 2 * batch]
    lefts = (*alike[:1], *left.strides[batch:-1], 0, left.strides[-1])
    rights = (*alike[1:], *(0,) * (len(shape) - batch - 1), right.strides[-1], right.strides[-2])
    views = [_spanned(left, sizes, lefts), _spanned(right, sizes, rights)]
    return _dot(planner, step, args, views)


@rule("nn.conv2d", of=general)
def convolution(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Windows of any integers; planned without its layouts, as the word is."""
    attrs: Any = step.attrs
    data, weight = args
    images = data.shape[0]
    groups = attrs.groups
    outputs = weight.shape[0]
    found = _windows(planner, data, step, weight.shape[2:], attrs, 0)
    kernel = planner.materialise(weight)
    view = planner.materialise(found)
    sizes = (images, groups, outputs // groups, *view.shape[2:4], *weight.shape[1:])
    n, c, *window = view.strides
    o, *inner = kernel.strides
    lefts = (n, c * weight.shape[1], 0, *window[:2], c, *window[2:])
    rights = (0, o * (outputs // groups), o, 0, 0, *inner)
    views = [_spanned(view, sizes, lefts), _spanned(kernel, sizes, rights)]
    return _dot(planner, step, [found, weight], views)


@rule("nn.max_pool2d", of=general)
def largest(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Padding is the least value of the dtype."""
    least = integer_range(step.args[0].type.dtype)[0]
    found = _windows(planner, args[0], step, step.attrs.pool_size, step.attrs, least)
    assert found.view is not None
    return _folded(planner, step, 4, "max", [found.view], found.bounds)


def _spanned(view: View, sizes: Shape, strides: Shape) -> View:
    return View(view.buffer, view.offset, sizes, strides)


def _dot(planner: Planner, step: Step, args: list[Item], views: list[View]) -> bool:
    """Sums of products along the last axes of both views, one of matrices, three of windows."""
    kept = len(views[0].shape) - (1 if "matmul" in step.name else 3)
    terms = prod(views[0].shape[kept:])
    ends = [terms * x * y for x in (args[0].low, args[0].high) for y in (args[1].low, args[1].high)]
    return _folded(planner, step, kept, "dot", views, (min(ends), max(ends)))


def _windows(
    planner: Planner, data: Item, step: Step, kernel: Sequence[int], attrs: Any, value: int
) -> Item:
    """The window of every output of images [N, C, H, W]: [N, C, y, x, ky, kx], in one memory."""
    width: list[tuple[int, int]] = [(0, 0), (0, 0)]
    shape = step.results[0].type.concrete_shape
    for axis in (0, 1):
        size = data.shape[2 + axis]
        before = attrs.padding[axis]
        reached = (shape[2 + axis] - 1) * attrs.strides[axis] + 1
        reached += (kernel[axis] - 1) * attrs.dilation[axis]
        width.append((before, max(reached - size - before, 0)))
    if any(map(any, width)):
        whole = surrounded(planner, data, width, value)
    else:
        whole = data
    view = planner.materialise(whole)
    n, c, y, x = view.strides
    strides = (n, c, y * attrs.strides[0], x * attrs.strides[1])
    steps = y * attrs.dilation[0], x * attrs.dilation[1]
    sizes = (*data.shape[:2], *shape[2:], *kernel)
    return replace(whole, view=_spanned(view, sizes, (*strides, *steps)))


# ---- orders -----------------------------------------------------------------------------------


@rule("image.resize2d", "nn.upsampling")
def ordered(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Elements of the first operand, in the order in which numpy would take them."""
    data, *others = args
    view = planner.materialise(data)
    offsets = _offsets(view)
    span = int(offsets.max()) + view.buffer.item
    rest = [a.data for a in others if a.data is not None]
    result = step.results[0].type
    (found,) = FNumpyCompute.require(step.op)(step.attrs, [offsets, *rest], result)
    item = Item(result.concrete_shape, data.low, data.high)
    if len(item.shape) == len(data.shape):
        item.image_layout = data.image_layout
    else:
        item.image_layout = ""
    part = _part(view, found)
    if part is not None:
        planner.define(step, item)
        item.view = part
        return True
    out = dense_view(planner, step, item, view.buffer.storage)
    flat = found.transpose(out.axis_order).reshape(-1)
    breaks = np.flatnonzero(np.diff(flat) != view.buffer.item) + 1
    run = int(np.gcd.reduce(np.append(breaks, len(flat))))
    planner.emitter.step(
        "gather",
        [view],
        [out],
        span=span,
        bytes=run * view.buffer.item,
        count=len(flat) // run,
        offsets=planner.emitter.put(flat[::run]),
    )
    return True


def _offsets(view: View) -> NDArray[np.int64]:
    """Bytes from the first element to each."""
    offsets = np.zeros((), np.int64)
    for size, stride in zip(view.shape, view.strides):
        offsets = offsets[..., None] + np.arange(size) * stride
    return offsets


def _part(view: View, offsets: NDArray[np.int64]) -> View | None:
    """The elements at some offsets; None where no strides say so."""
    start = int(offsets.flat[0])
    item = view.buffer.item
    # The first step along each axis says what its stride would be.
    firsts = np.eye(offsets.ndim, dtype=int)
    strides = tuple(
        int(offsets[tuple(first)]) - start if size > 1 else item
        for first, size in zip(firsts, offsets.shape)
    )
    if min(strides, default=1) <= 0:
        return None
    part = View(view.buffer, view.offset + start, offsets.shape, strides)
    if np.array_equal(_offsets(part), offsets - start):
        return part
    return None


def dense_view(
    planner: Planner, step: Step, item: Item, stored: tuple[str, int], row_major: bool = False
) -> View:
    """Define a result that lies in memory without a border."""
    item.stored = stored
    planner.define(step, item)
    item.view = compact(stored, item.shape, None if row_major else axis_order(item))
    return item.view


@rule("broadcast_to")
def broadcast(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A sum with zeros."""
    return planner.settle(step, spread(args[0], step.results[0].type.concrete_shape))


def padded(planner: Planner, step: Step, data: Item) -> bool:
    """A tensor of one value, and the data within it."""
    value = step.args[1].data
    if value is None:
        return False
    width = [(int(before), int(after)) for before, after in step.attrs.pad_width]
    planner.define(step, surrounded(planner, data, width, int(value.reshape(()))))
    return True


def surrounded(planner: Planner, data: Item, width: Sequence[tuple[int, int]], value: int) -> Item:
    """The data with so many elements of one value before and after every axis."""
    shape = tuple(size + sum(pair) for size, pair in zip(data.shape, width))
    item = Item(shape, min(data.low, value), max(data.high, value))
    item.image_layout = data.image_layout
    out = _filled(planner, item, value)
    for axis, (before, _) in enumerate(width):
        out = out.sliced(axis, before, before + data.shape[axis])
    planner.write(data, out)
    return item


def _filled(planner: Planner, item: Item, value: int) -> View:
    """Memory of an item with one value everywhere."""
    item.view = compact(item.storage, item.shape, axis_order(item))
    planner.write(constant(value), item.view)
    return item.view


# ---- computed places --------------------------------------------------------------------------


@rule("take")
def take(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Rows by index; constant indices are an order."""
    data, indices = args
    attrs: Any = step.attrs
    if indices.data is not None:
        return ordered(planner, step, args)
    axis = attrs.axis
    batch = attrs.batch_dims
    places = prod(data.shape[:axis]), data.shape[axis], 0, attrs.mode == "wrap"
    return taken(planner, step, data, indices, places, prod(indices.shape[batch:]) if batch else 0)


def taken(
    planner: Planner,
    step: Step,
    data: Item,
    indices: Item,
    places: tuple[int, int, int, bool],
    group: int = 0,
) -> bool:
    """A step that looks up rows.

    Args:
        places: groups of rows, rows of a group, the index of row 0, whether indices count around.
        group: indices of a group of rows of its own; 0 where all groups share them.
    """
    emitter = planner.emitter
    outer, rows, first, wraps = places
    view = planner.materialise(indices)
    index = emitter.contiguous(view, always=emitter.is_constant(view))
    table = planner.materialise(data)
    in_blob = emitter.is_constant(table)
    table = table if in_blob else emitter.contiguous(table)
    item = Item(step.results[0].type.concrete_shape, data.low, data.high)
    out = dense_view(planner, step, item, table.buffer.storage, row_major=True)
    emitter.step(
        "take",
        [index.buffer] if in_blob else [index.buffer, table.buffer],
        [out],
        index=index.address,
        index_type=number(index.buffer.type),
        index_zero=index.buffer.zero,
        index_group=group,
        first=first,
        count=group or prod(indices.shape),
        wraps=int(wraps),
        source=table.address,
        in_blob=int(in_blob),
        rows=rows,
        bytes=prod(data.shape) // (outer * rows) * table.buffer.item,
        outer=outer,
    )
    return True


@rule("scatter_nd")
def scatter(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Rows of updates into a copy of the data, one after the other."""
    data, indices, updates = args
    mode = step.attrs.mode
    shape = data.shape
    if mode == "mul":
        return False
    bounds = min(data.low, updates.low), max(data.high, updates.high)
    if mode == "add":
        most = most_updates(indices.data, indices.shape, shape[0])
        bounds = data.low + most * min(updates.low, 0), data.high + most * max(updates.high, 0)
    inside = INT64[0] <= bounds[0] and bounds[1] <= INT64[1]
    item = Item(shape, *(bounds if inside else INT64), uses=1)
    if mode == "add":
        item.stored = ("S32" if item.fits_int32 else "S64", 0)
    item.view = out = compact(item.storage, shape)
    if data.uses > 1 and data.data is None:  # so that no other reader reads the rows written here
        planner.materialise(data)
    planner.write(data, out)
    source = planner.materialise(updates)
    summed = mode == "add" and item.fits_int32
    if not summed and source.buffer.storage != out.buffer.storage:
        source = compact(out.buffer.storage, updates.shape)
        planner.write(updates, source)
    source = planner.emitter.contiguous(source)
    index = planner.emitter.contiguous(planner.materialise(indices))
    read = [view for view in (source, index) if not planner.emitter.is_constant(view)]
    planner.emitter.step(
        "scatter",
        [*(view.buffer for view in read), out.buffer],
        [out],
        how=number(f"SCATTER_{mode.upper()}"),
        index=index.address,
        index_type=planner.emitter.type_of(index),
        index_zero=index.buffer.zero,
        count=updates.shape[0],
        source=source.address,
        type=planner.emitter.type_of(source),
        zero=source.buffer.zero if mode == "add" else 0,
        columns=shape[1],
        out_type=number(out.buffer.type),
        rows=shape[0],
    )
    return planner.settle(step, item)
