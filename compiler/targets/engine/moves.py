"""Rules of operators that only move values: other strides of the same memory, or a copy."""

from __future__ import annotations

from dataclasses import replace

from compiler.ir.dataflow import Step
from compiler.ops.transform.strided_slice import slices_of
from compiler.targets.engine.general import ordered, padded
from compiler.targets.engine.layouts import MOST_IMAGES, pad_of
from compiler.targets.engine.planner import Planner, rule
from compiler.targets.engine.values import Epilogue, Item, Product
from compiler.targets.engine.views import Shape, View, compact


def _moved(planner: Planner, step: Step, data: Item, view: View) -> bool:
    item = planner.define(step, Item(view.shape, data.low, data.high, view=view))
    item.image_layout = data.image_layout
    return True


@rule("reshape")
def reshape(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another shape of the same memory, or of a copy in the order that its readers want.

    A product waits for its epilogue, which may stand behind.
    """
    shape = step.results[0].type.concrete_shape
    product = args[0].product
    if product is not None and args[0].view is None and _keeps_columns(product, args[0], shape):
        planner.define(step, _reshaped_product(planner, product, args[0], shape))
        return True
    view = planner.materialise(args[0])
    made = view.reshaped(shape)
    if made is not None:
        return _moved(planner, step, args[0], made)
    item = planner.define(step, Item(shape, args[0].low, args[0].high, stored=view.buffer.storage))
    item.image_layout = args[0].image_layout
    item.view = planner.emitter.allocate(item)
    target = item.view.reshaped(view.shape)
    if target is None:
        item.border = None
        item.view = compact(view.buffer.storage, shape)
        target = item.view.reshaped(view.shape)
        assert target is not None
    planner.emitter.copy(view, target)
    return True


def _keeps_columns(product: Product, data: Item, shape: Shape) -> bool:
    last = len(data.shape) - 1
    return product.channel_axis == last and bool(shape) and shape[-1] == data.shape[-1]


def _reshaped_product(planner: Planner, product: Product, data: Item, shape: Shape) -> Item:
    """A product whose result gets another shape when it is written."""

    def emit(item: Item, epilogue: Epilogue) -> View:
        item.border = None
        view = product.emit(replace(item, shape=data.shape, readers=[]), epilogue)
        made = view.reshaped(shape) or planner.emitter.contiguous(view, always=True).reshaped(shape)
        assert made is not None
        return made

    made = replace(product, emit=emit, channel_axis=len(shape) - 1)
    return Item(shape, data.low, data.high, product=made)


@rule("transpose")
def transpose(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another order of axes over the same memory."""
    view = planner.materialise(args[0])
    return _moved(planner, step, args[0], view.permuted(step.attrs.axes))


@rule("strided_slice")
def strided_slice(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A part of the same memory."""
    view = planner.materialise(args[0])
    for axis, (begin, end, stride) in slices_of(view.shape, step.attrs).items():
        start, stop, by = slice(begin, end, stride).indices(int(view.shape[axis]))
        if by < 1:
            return ordered(planner, step, args)
        view = view.sliced(axis, start, stop, by)
    return _moved(planner, step, args[0], view)


@rule("concatenate")
def concatenate(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Every operand is copied to its place; in the storage of the result."""
    shape = step.results[0].type.concrete_shape
    axis = step.attrs.axis % len(shape)
    item = Item(shape, min(a.low for a in args), max(a.high for a in args))
    item.image_layout = next((a.image_layout for a in args if a.image_layout), "")
    views = [planner.materialise(a) for a in args]
    planner.define(step, item)
    like = next((v for v, a in zip(views, args) if a.data is None), None)
    target = planner.emitter.allocate(item, like.axis_order if like else None)
    start = 0
    for arg in args:
        planner.write(arg, target.sliced(axis, start, start + arg.shape[axis]))
        start += arg.shape[axis]
    item.view = target
    return True


@rule("nn.pad")
def pad(planner: Planner, step: Step, args: list[Item]) -> bool:
    """The border that the operand was given, or a copy with a border."""
    data = args[0]
    found = pad_of(step)
    view = planner.materialise(data) if found is not None else None
    if found is None or view is None or view.buffer.type != "U8" or len(view.shape) != 4:
        return padded(planner, step, data)
    width = [(int(a), int(b)) for a, b in found[0]]
    value = found[1]
    byte = value + view.buffer.zero
    if not 0 <= byte <= 255:
        return padded(planner, step, data)
    if data.border != (tuple(width), value):
        order = view.axis_order
        if any(any(width[order[place]]) for place in (0, 3)) or view.shape[order[0]] > MOST_IMAGES:
            return padded(planner, step, data)
        made = planner.emitter.bordered(view.buffer.storage, view.shape, order, width, byte)
        planner.emitter.copy(view, made)
        view = made
    offset = view.offset - sum(w[0] * s for w, s in zip(width, view.strides))
    shape = step.results[0].type.concrete_shape
    item = Item(shape, min(data.low, value), max(data.high, value))
    item.view = View(view.buffer, offset, shape, view.strides)
    planner.define(step, item)
    return True
