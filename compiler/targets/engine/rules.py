"""Rules of elementwise operators and of operators that only move values."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step
from compiler.ir.dataflow import Value as FlowValue
from compiler.ir.ty import bits
from compiler.ops.number_format import integer_range
from compiler.ops.tensor.clip import integer_bound
from compiler.ops.transform.strided_slice import slices_of
from compiler.targets.engine.elementwise import emit_program
from compiler.targets.engine.layouts import MOST_IMAGES, pad_of
from compiler.targets.engine.packing import POWER_OF_TWO
from compiler.targets.engine.planner import RAW_DTYPES, Planner, rule
from compiler.targets.engine.values import INT32, Chain, Item
from compiler.targets.engine.views import NoProgramError, View

Array = NDArray[Any]

_BINARY = {"add": "ADD", "subtract": "SUB", "multiply": "MUL", "maximum": "MAX", "minimum": "MIN"}
_LARGEST_QUANTIZED = 1 << 23


@rule(*_BINARY)
def binary(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Two operands, broadcast."""
    return planner.elementwise(step, _BINARY[step.name], args)


@rule("nn.bias_add")
def bias_add(planner: Planner, step: Step, args: list[Item]) -> bool:
    """An addition along one axis."""
    data, bias = args
    if bias.data is None:
        return False
    places = [1] * len(data.shape)
    places[step.attrs.axis] = -1
    along = bias.data.reshape(places)
    item = Item(along.shape, bias.low, bias.high, data=along)
    return planner.elementwise(step, "ADD", (data, item))


@rule("nn.relu")
def relu(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A clip with one bound."""
    return planner.elementwise(step, "CLIP", args, 0, INT32[1])


@rule("clip")
def clip(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Bounds as the operator's integers take them."""
    dtype = step.args[0].type.dtype
    low, high = (integer_bound(v, dtype) for v in (step.attrs.a_min, step.attrs.a_max))
    return planner.elementwise(step, "CLIP", args, low, high)


@rule("fixed_point_multiply")
def fixed_point(planner: Planner, step: Step, args: list[Item]) -> bool:
    """One factor."""
    multiplier = np.array([step.attrs.multiplier], np.int64)
    shift = np.array([step.attrs.shift], np.int64)
    return _rescale(planner, step, args[0], multiplier, shift, None)


@rule("fixed_point_multiply_per_axis")
def fixed_point_per_axis(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A factor per index of an axis."""
    data, multiplier, shift = args
    if multiplier.data is None or shift.data is None:
        return False
    factors = [a.data.astype(np.int64) for a in (multiplier, shift) if a.data is not None]
    axis: int | None = step.attrs.axis % len(data.shape)
    if all((f == f[0]).all() for f in factors if f.size):
        factors, axis = [f[:1] for f in factors], None
    return _rescale(planner, step, data, factors[0], factors[1], axis)


def _rescale(
    planner: Planner, step: Step, data: Item, multiplier: Array, shift: Array, axis: int | None
) -> bool:
    if not multiplier.size or not data.is_stored_type or shift.max() > 30 or shift.min() < -64:
        return False
    # Powers of two add their half in the dtype of the data.
    dtype = step.args[0].type.dtype
    right = min(1 - int(shift[multiplier == POWER_OF_TWO].min(initial=1)), bits(dtype) - 1)
    largest = integer_range(dtype)[1]
    if right > 0 and data.high + (1 << (right - 1)) > largest:
        return False
    return planner.elementwise(step, "RESCALE", (data,), multiplier, shift, axis)


@rule("right_shift")
def right_shift(planner: Planner, step: Step, args: list[Item]) -> bool:
    """By a constant number of bits."""
    data, count = args
    if count.data is None or count.data.size != 1 or not 0 <= count.low <= 31:
        return False
    if data.shape != step.results[0].type.concrete_shape:
        return False
    return planner.elementwise(step, "SHIFT", (data,), count.low)


@rule("left_shift")
def left_shift(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A product with a power of two."""
    data, count = args
    if count.data is None or count.data.size != 1 or not 0 <= count.low <= 30:
        return False
    factor = Item((), 1 << count.low, 1 << count.low, data=np.array(1 << count.low))
    return planner.elementwise(step, "MUL", (data, factor))


@rule("cast")
def cast(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another name where no value changes; the end of ``quantize_inputs``; else numpy."""
    (data,) = args
    low, high = integer_range(step.results[0].type.dtype)
    if data.host is None and data.data is None and low <= data.low and data.high <= high:
        return planner.alias(step, data)
    return _quantize(planner, step)


def _quantize(planner: Planner, step: Step) -> bool:
    """``cast(clip(round(x * scale)))`` of an input of the function."""
    dtype = step.results[0].type.dtype
    clipped = _made_by(planner, step.args[0], "clip")
    rounded = _made_by(planner, clipped.args[0], "round") if clipped else None
    times = _made_by(planner, rounded.args[0], "multiply") if rounded else None
    if clipped is None or times is None or dtype not in RAW_DTYPES:
        return False
    source, scale = (planner.root(a) for a in times.args)
    if source.data is not None:
        source, scale = scale, source
    factor = scale.data
    inputs = [planner.root(v) for v in planner.flow.inputs]
    if source not in inputs or source.type.dtype != "float32" or factor is None:
        return False
    shape = source.type.concrete_shape
    if factor.size > 1 and (len(shape) < 2 or factor.shape not in _per_channel(shape)):
        return False
    bounds = float(clipped.attrs.a_min), float(clipped.attrs.a_max)
    if not all(abs(b) < _LARGEST_QUANTIZED and b == int(b) for b in bounds):
        return False
    low, high = int(bounds[0]), int(bounds[1])
    info = integer_range(dtype)
    # The kernel gives 0 for NaN, and so does the cast as long as 0 is within the bounds.
    if not info[0] <= low <= 0 <= high <= info[1] or not all(shape):
        return False
    item = Item(step.results[0].type.concrete_shape, low, high)
    planner.define(step, item)
    view = planner.emitter.quantize(inputs.index(source), item, factor.reshape(-1), (low, high))
    item.view = view
    return view is not None


def _per_channel(shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Shapes of a factor along axis 1."""
    tail = (shape[1], *(1,) * (len(shape) - 2))
    return tail, (1, *tail)


def _made_by(planner: Planner, value: FlowValue, name: str) -> Step | None:
    step = planner.root(value).producer
    return step if step is not None and step.name == name else None


# ---- movements --------------------------------------------------------------------------------


def _moved(planner: Planner, step: Step, data: Item, view: View) -> bool:
    planner.define(step, Item(view.shape, data.low, data.high, view=view))
    return True


def _source(planner: Planner, data: Item) -> View | None:
    return planner.on_arena(data) if data.data is None and all(data.shape) else None


@rule("reshape", "squeeze", "expand_dims", "nn.batch_flatten")
def reshape(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another shape of the same memory, or of a copy in row-major order."""
    view = _source(planner, args[0])
    if view is None:
        return False
    shape = step.results[0].type.concrete_shape
    made = view.reshaped(shape) or planner.emitter.contiguous(view).reshaped(shape)
    assert made is not None
    return _moved(planner, step, args[0], made)


@rule("transpose")
def transpose(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another order of axes over the same memory."""
    view = _source(planner, args[0])
    axes = step.attrs.axes
    if view is None:
        return False
    rank = len(view.shape)
    order = tuple(reversed(range(rank))) if axes is None else tuple(a % rank for a in axes)
    return _moved(planner, step, args[0], view.permuted(order))


@rule("layout_transform")
def layout_transform(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A transposition by letters."""
    view = _source(planner, args[0])
    source, target = step.attrs.src_layout, step.attrs.dst_layout
    if view is None or sorted(source) != sorted(target):
        return False
    return _moved(planner, step, args[0], view.permuted([source.index(c) for c in target]))


@rule("strided_slice")
def strided_slice(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A part of the same memory."""
    view = _source(planner, args[0])
    shape = step.results[0].type.concrete_shape
    if view is None or not all(shape):
        return False
    for axis, (begin, end, stride) in slices_of(view.shape, step.attrs).items():
        start, stop, by = slice(begin, end, stride).indices(int(view.shape[axis]))
        if by < 1:
            return False
        view = view.sliced(axis, start, stop, by)
    return _moved(planner, step, args[0], view)


@rule("split")
def split(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Parts of the same memory."""
    view = _source(planner, args[0])
    shapes = [r.type.concrete_shape for r in step.results]
    if view is None or not all(all(shape) for shape in shapes):
        return False
    axis, start = step.attrs.axis % len(view.shape), 0
    for index, shape in enumerate(shapes):
        part = view.sliced(axis, start, start + shape[axis])
        start += shape[axis]
        planner.define(step, Item(part.shape, args[0].low, args[0].high, view=part), index)
    return True


@rule("concatenate")
def concatenate(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Every operand is copied to its place; in the storage of the result."""
    views = [planner.on_arena(a) if all(a.shape) else None for a in args]
    if any(view is None for view in views):
        return False
    shape = step.results[0].type.concrete_shape
    axis = step.attrs.axis % len(shape)
    item = Item(shape, min(a.low for a in args), max(a.high for a in args))
    item.image_layout = next((a.image_layout for a in args if a.image_layout), "")
    planner.define(step, item)
    like = next((v for v, a in zip(views, args) if a.data is None), None)
    target, start = planner.emitter.allocate(item, like.axis_order if like else None), 0
    for arg, view in zip(args, views):
        assert view is not None
        part = target.sliced(axis, start, start + arg.shape[axis])
        start += arg.shape[axis]
        if (view.buffer.type, view.buffer.zero) == item.storage:
            planner.emitter.copy(view, part)
            continue
        same = Item(arg.shape, arg.low, arg.high, chain=Chain("CLIP", (arg,), (arg.low, arg.high)))
        try:
            emit_program(planner, same, part)
        except NoProgramError:
            return False
    item.view = target
    return True


@rule("nn.pad")
def pad(planner: Planner, step: Step, args: list[Item]) -> bool:
    """The border that the operand was given, or a copy with a border."""
    data = args[0]
    found = pad_of(step)
    view = _source(planner, data)
    if found is None or view is None or view.buffer.type != "U8" or len(view.shape) != 4:
        return False
    width, value = [(int(a), int(b)) for a, b in found[0]], found[1]
    byte = value + view.buffer.zero
    if not 0 <= byte <= 255:
        return False
    if data.border != (tuple(width), value):
        order = view.axis_order
        if any(any(width[order[place]]) for place in (0, 3)) or view.shape[order[0]] > MOST_IMAGES:
            return False
        made = planner.emitter.bordered(
            (view.buffer.type, view.buffer.zero), view.shape, order, width, byte
        )
        planner.emitter.copy(view, made)
        view = made
    offset = view.offset - sum(w[0] * s for w, s in zip(width, view.strides))
    shape = step.results[0].type.concrete_shape
    item = Item(shape, min(data.low, value), max(data.high, value))
    item.view = View(view.buffer, offset, shape, view.strides)
    planner.define(step, item)
    return True
