"""Rules of operators that run on the slow general steps: reductions, and orders of elements."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step
from compiler.ops.reduce.axes import axes_of
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.targets.engine.elementwise import emit_program
from compiler.targets.engine.layouts import axis_order
from compiler.targets.engine.planner import Planner, rule
from compiler.targets.engine.steps import number
from compiler.targets.engine.values import Chain, Item, constant
from compiler.targets.engine.views import View, merged_axes

Array = NDArray[Any]

_DIMS = 6


# ---- reductions -------------------------------------------------------------------------------


@rule("max", "argmax")
def extremum(planner: Planner, step: Step, args: list[Item]) -> bool:
    """The largest element, or its place."""
    axes = tuple(axes_of(step))
    bounds = args[0].low, args[0].high
    if step.name == "argmax":
        bounds = 0, prod(args[0].shape[a] for a in axes) - 1
    found = reduced(planner, step, args[0], axes, step.name, bounds)
    return found is not None and planner.settle(step, found)


def total(planner: Planner, step: Step, data: Item) -> bool:
    """A sum of any axes."""
    axes = tuple(axes_of(step))
    terms = prod(data.shape[a] for a in axes)
    found = reduced(planner, step, data, axes, "sum", (data.low * terms, data.high * terms))
    return found is not None and planner.settle(step, found)


def reduced(
    planner: Planner,
    step: Step,
    data: Item,
    axes: tuple[int, ...],
    how: str,
    bounds: tuple[int, int],
) -> Item | None:
    """A reduction as one step; None where its loops do not fit."""
    if data.data is not None or bounds[0] < -(1 << 62) or bounds[1] >= 1 << 62:
        return None
    view = planner.on_arena(data)
    if view is None:
        return None
    item = Item(step.results[0].type.concrete_shape, *bounds, uses=1)
    item.view = out = planner.emitter.allocate(item)
    kept = [a for a in range(len(view.shape)) if a not in axes]
    places = [s for s, n in zip(out.strides, out.shape) if n > 1]
    strides = {a: places.pop(0) for a in kept if view.shape[a] > 1}
    loops = []
    for part in (kept, axes):
        along = tuple(view.strides[a] for a in part), tuple(strides.get(a, 0) for a in part)
        loops.append(merged_axes(tuple(view.shape[a] for a in part), along))
    outer, inner = loops
    if len(outer) + len(inner) > _DIMS:
        return None
    fields: dict[str, int] = {}
    rest = [(1, (0, 0))] * (_DIMS - len(outer) - len(inner))
    for axis, (size, (si, so)) in enumerate([*rest, *outer, *inner]):
        fields |= {f"size_{axis}": size, f"in_stride_{axis}": si, f"out_stride_{axis}": so}
    planner.emitter.step(
        "reduce",
        [view],
        [out],
        how=number(f"REDUCE_{how.upper()}"),
        type=number(view.buffer.type),
        zero=view.buffer.zero,
        out_type=number(out.buffer.type),
        out_zero=out.buffer.zero,
        reduced=len(inner),
        last=int(getattr(step.attrs, "select_last_index", False)),
        **fields,
    )
    return item


# ---- orders -----------------------------------------------------------------------------------


@rule("image.resize2d", "nn.upsampling")
def ordered(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Elements of the first operand, in the order in which numpy would take them."""
    data, *others = args
    if data.data is not None or any(a.data is None for a in others):
        return False
    view = planner.on_arena(data)
    if view is None:
        return False
    offsets = np.zeros((), np.int64)
    for size, stride in zip(view.shape, view.strides):
        offsets = offsets[..., None] + np.arange(size) * stride
    span = int(offsets.max()) + view.buffer.item
    rest = [a.data for a in others if a.data is not None]
    result = step.results[0].type
    (found,) = FNumpyCompute.require(step.op)(step.attrs, [offsets, *rest], result)
    item = Item(result.concrete_shape, data.low, data.high)
    item.image_layout = data.image_layout if len(item.shape) == len(data.shape) else ""
    out = dense_view(planner, step, item, (view.buffer.type, view.buffer.zero))
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


def dense_view(
    planner: Planner, step: Step, item: Item, stored: tuple[str, int], row_major: bool = False
) -> View:
    """Define a result that lies in memory without a border."""
    item.stored = stored
    planner.define(step, item)
    rank = len(item.shape)
    order = tuple(range(rank)) if row_major else axis_order(item)
    item.view = planner.emitter.bordered(stored, item.shape, order, [(0, 0)] * rank, 0)
    return item.view


@rule("broadcast_to")
def broadcast(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A sum with zeros."""
    return planner.settle(step, spread(args[0], step.results[0].type.concrete_shape))


def spread(item: Item, shape: tuple[int, ...]) -> Item:
    """An item broadcast to a shape; constants stay as they are."""
    if item.data is not None or item.shape == shape:
        return item
    zeros = Item(shape, 0, 0, data=np.broadcast_to(np.int64(0), shape))
    chain = Chain("ADD", (item, zeros.as_scalar()))
    return Item(shape, item.low, item.high, chain=chain, uses=1, depth=item.depth + 1)


def padded(planner: Planner, step: Step, data: Item) -> bool:
    """A tensor of one value, and the data within it."""
    attrs: Any = step.attrs
    value, view = step.args[1].data, planner.on_arena(data)
    if value is None or data.data is not None or view is None:
        return False
    width = [(int(before), int(after)) for before, after in attrs.pad_width]
    number_of = int(value.reshape(()))
    shape = step.results[0].type.concrete_shape
    item = Item(shape, min(data.low, number_of), max(data.high, number_of))
    item.image_layout = data.image_layout
    out = dense_view(planner, step, item, item.storage)
    bounds = (number_of, number_of)
    filled = Item(shape, *bounds, chain=Chain("CLIP", (constant(number_of),), bounds))
    emit_program(planner, filled, out)
    for axis, (before, _) in enumerate(width):
        out = out.sliced(axis, before, before + data.shape[axis])
    planner.write(data, out)
    return True


# ---- computed places --------------------------------------------------------------------------


@rule("take")
def take(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Rows by index; constant indices are an order."""
    data, indices = args
    attrs: Any = step.attrs
    if indices.data is not None:
        return ordered(planner, step, args)
    axis, batch = attrs.axis, attrs.batch_dims
    group = prod(indices.shape[batch:])
    places = prod(data.shape[:axis]), data.shape[axis], 0, attrs.mode == "wrap"
    return taken(planner, step, data, indices, places, group if batch else 0)


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
    index = emitter.contiguous(planner.materialise(indices))
    table = planner.materialise(data)
    in_blob = emitter.is_constant(table)
    table = table if in_blob else emitter.contiguous(table)
    item = Item(step.results[0].type.concrete_shape, data.low, data.high)
    out = dense_view(planner, step, item, (table.buffer.type, table.buffer.zero), row_major=True)
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
