"""Rules of elementwise operators and of operators that only move values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step
from compiler.ir.dataflow import Value as FlowValue
from compiler.ir.ty import bits
from compiler.ops.number_format import integer_range
from compiler.ops.tensor.clip import integer_bound
from compiler.ops.transform.strided_slice import slices_of
from compiler.targets.engine.elementwise import shift_axis
from compiler.targets.engine.general import ordered, padded, spread
from compiler.targets.engine.layouts import MOST_IMAGES, pad_of
from compiler.targets.engine.packing import POWER_OF_TWO
from compiler.targets.engine.planner import RAW_DTYPES, Planner, rule
from compiler.targets.engine.values import INT32, Item, constant, constants, is_integer
from compiler.targets.engine.views import View

Array = NDArray[Any]

_BINARY = {
    "add": "ADD",
    "subtract": "SUB",
    "multiply": "MUL",
    "maximum": "MAX",
    "minimum": "MIN",
    "bitwise_and": "AND",
    "bitwise_or": "OR",
    "bitwise_xor": "XOR",
    "logical_and": "MIN",
    "logical_or": "MAX",
    "logical_xor": "XOR",
    "trunc_divide": "QUOTIENT",
    "floor_divide": "FLOORED",
    "less": "LESS",
    "equal": "EQUAL",
}
_LARGEST_QUANTIZED = 1 << 23


@rule(*_BINARY)
def binary(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Two operands, broadcast."""
    return planner.elementwise(step, _BINARY[step.name], args)


@rule("not_equal", "less_equal", "greater", "greater_equal", "logical_not")
def comparison(planner: Planner, step: Step, args: list[Item]) -> bool:
    """By ``less`` and ``equal``, and one minus those."""
    if step.name == "logical_not":
        return planner.settle(step, planner.compose("SUB", (constant(1), args[0])))
    turned = args[::-1] if step.name in ("less_equal", "greater") else args
    found = planner.compose("EQUAL" if step.name == "not_equal" else "LESS", turned)
    if step.name != "greater":
        found = planner.compose("SUB", (constant(1), found))
    return planner.settle(step, found)


@rule("where")
def where(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A choice by a condition, which is no 0."""
    condition, x, y = args
    if (condition.low, condition.high) != (0, 1):
        x, y = y, x
        condition = planner.compose("EQUAL", (condition, constant(0)))
    chain = condition.chain
    if chain is not None and chain.op == "SUB" and chain.args[0].data is not None:
        condition, x, y = chain.args[1], y, x
    if condition.data is not None and condition.low == condition.high:
        return planner.settle(
            step, spread(x if condition.low else y, step.results[0].type.concrete_shape)
        )
    return planner.elementwise(step, "SELECT", (condition, x, y))


@rule("negative", "abs")
def signs(planner: Planner, step: Step, args: list[Item]) -> bool:
    """The one value without a counterpart goes to the largest."""
    (data,) = args
    dtype = step.args[0].type.dtype
    if dtype.startswith("u") and step.name == "abs":
        return planner.alias(step, data)
    least = data if dtype.startswith("u") else constant(integer_range(dtype)[0] + 1)
    turned = planner.compose("SUB", (constant(0), planner.compose("MAX", (data, least))))
    if step.name == "abs":
        turned = planner.compose("MAX", (turned, data))
    return planner.settle(step, turned)


@rule("copy", "floor", "ceil", "trunc", "round", "round_even", "on_device")
def same(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Integers are what they are."""
    return planner.alias(step, args[0])


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
    dtype = step.args[0].type.dtype
    if not multiplier.size or shift.max() > 30 or shift.min() < -64:
        return False
    # Powers of two add their half in the dtype of the data.
    right = min(1 - int(shift[multiplier == POWER_OF_TWO].min(initial=1)), bits(dtype) - 1)
    most = max(abs(data.low), abs(data.high))
    if right > 0 and data.high + (1 << (right - 1)) > integer_range(dtype)[1]:
        return False
    if most >= 1 << 32:
        return False
    left = int(max(shift.max(), 0))
    if most * int(np.abs(multiplier).max()) << left >= 1 << 62:
        return False
    found = planner.compose("RESCALE", (data,), multiplier, shift, axis)
    if not found.fits_int32:
        found = planner.compose("WRAP", (found,), "int32")
    return planner.settle(step, found)


@rule("right_shift")
def right_shift(planner: Planner, step: Step, args: list[Item]) -> bool:
    """By constant numbers of bits; the end of a rounded product."""
    data, count = args[0], args[1].as_scalar()
    if data.shape != step.results[0].type.concrete_shape:
        return planner.elementwise(step, "RIGHT", (data, count))
    found = rounded_product(planner, data, count)
    if found is not None:
        return planner.settle(step, found)
    one = count.data is not None and count.data.size == 1 and 0 <= count.low <= 31
    if one and data.fits_int32:
        return planner.elementwise(step, "SHIFT", (data,), count.low)
    return planner.elementwise(step, "RIGHT", (data, count))


@rule("left_shift")
def left_shift(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A product with powers of two where the bits are constant."""
    data, count = args[0], args[1].as_scalar()
    if count.data is None or not 0 <= count.low <= count.high <= 30:
        return planner.elementwise(step, "LEFT", (data, count))
    powers = np.left_shift(np.int64(1), count.data.astype(np.int64))
    return planner.elementwise(step, "MUL", (data, constants(np.asarray(powers))))


@rule("cast")
def cast(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another name where no value changes; a wrap; the end of ``quantize_inputs``; else numpy."""
    (data,) = args
    dtype = step.results[0].type.dtype
    if not is_integer(step.args[0].type.dtype):
        return _quantize(planner, step)
    if dtype == "bool":
        zero = planner.compose("EQUAL", (data, constant(0)))
        return planner.settle(step, planner.compose("SUB", (constant(1), zero)))
    low, high = integer_range(dtype)
    if data.data is not None or data.low < low or data.high > high:
        return planner.settle(step, data)
    if data.host is not None:
        planner.materialise(data)
    return planner.alias(step, data)


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
    item = planner.define(step, Item(view.shape, data.low, data.high, view=view))
    item.image_layout = data.image_layout
    return True


def _source(planner: Planner, data: Item) -> View | None:
    return planner.on_arena(data) if data.data is None and all(data.shape) else None


@rule("reshape", "squeeze", "expand_dims", "nn.batch_flatten", "reshape_like")
def reshape(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Another shape of the same memory, or of a copy in the order that its readers want."""
    view = _source(planner, args[0])
    if view is None:
        return False
    shape = step.results[0].type.concrete_shape
    made = view.reshaped(shape)
    if made is not None:
        return _moved(planner, step, args[0], made)
    storage = view.buffer.type, view.buffer.zero
    item = planner.define(step, Item(shape, args[0].low, args[0].high, stored=storage))
    item.image_layout = args[0].image_layout
    item.view = planner.emitter.allocate(item)
    target = item.view.reshaped(view.shape)
    if target is None:
        item.border = None
        order = tuple(range(len(shape)))
        item.view = planner.emitter.bordered(storage, shape, order, [(0, 0)] * len(shape), 0)
        target = item.view.reshaped(view.shape)
        assert target is not None
    planner.emitter.copy(view, target)
    return True


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
            return ordered(planner, step, args)
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
        item = planner.define(step, Item(part.shape, args[0].low, args[0].high, view=part), index)
        item.image_layout = args[0].image_layout
    return True


@rule("concatenate", "stack")
def concatenate(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Every operand is copied to its place; in the storage of the result."""
    shape = step.results[0].type.concrete_shape
    axis = step.attrs.axis % len(shape)
    item = Item(shape, min(a.low for a in args), max(a.high for a in args))
    item.image_layout = next((a.image_layout for a in args if a.image_layout), "")
    views = [planner.materialise(a) for a in args]
    planner.define(step, item)
    if step.name == "stack":
        args = [_with_axis(a, v, axis) for a, v in zip(args, views)]
        views = [planner.materialise(a) for a in args]
    like = next((v for v, a in zip(views, args) if a.data is None), None)
    target, start = planner.emitter.allocate(item, like.axis_order if like else None), 0
    for arg in args:
        planner.write(arg, target.sliced(axis, start, start + arg.shape[axis]))
        start += arg.shape[axis]
    item.view = target
    return True


def _with_axis(item: Item, view: View, axis: int) -> Item:
    """An item with one more axis of size 1."""
    shape, strides = list(item.shape), list(view.strides)
    shape.insert(axis, 1)
    strides.insert(axis, view.strides[axis] * item.shape[axis] if axis < len(strides) else 1)
    made = View(view.buffer, view.offset, tuple(shape), tuple(strides))
    return Item(made.shape, item.low, item.high, view=made)


@rule("nn.pad")
def pad(planner: Planner, step: Step, args: list[Item]) -> bool:
    """The border that the operand was given, or a copy with a border."""
    data = args[0]
    found = pad_of(step)
    view = _source(planner, data)
    if found is None or view is None or view.buffer.type != "U8" or len(view.shape) != 4:
        return padded(planner, step, data)
    width, value = [(int(a), int(b)) for a, b in found[0]], found[1]
    byte = value + view.buffer.zero
    if not 0 <= byte <= 255:
        return padded(planner, step, data)
    if data.border != (tuple(width), value):
        order = view.axis_order
        if any(any(width[order[place]]) for place in (0, 3)) or view.shape[order[0]] > MOST_IMAGES:
            return padded(planner, step, data)
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


# ---- rounded products -------------------------------------------------------------------------


def rounded_product(planner: Planner, data: Item, bits: Item) -> Item | None:
    """``(x * m + rounding) >> n`` as one RESCALE of x; None where it is none.

    Halves go up in RESCALE. Those that go away from zero are the same where x is not negative; all
    are the same where no ``x * m`` is a half. Else magnitudes are rounded, or the results of x and
    -x tell where halves are.
    """
    if bits.data is None or data.chain is None or data.chain.op != "ADD":
        return None
    if not 0 <= bits.low <= bits.high <= 62 or data.view is not None:
        return None
    half = constants(np.left_shift(np.int64(1), bits.data.astype(np.int64)) >> 1)
    below = constants(np.maximum(_array(half) - 1, 0))
    first, second = data.chain.args
    ties = "up"
    if _equal(second, half):
        product = first
    elif second.chain is not None and second.chain.op == "SELECT":
        product, ties = first, "away"
        sign, *sides = second.chain.args
        compared = sign.chain
        if compared is None or compared.op != "LESS" or compared.args[0] is not product:
            return None
        if not _equal(compared.args[1], constant(0)) or not _equal(sides[0], below):
            return None
        if not _equal(sides[1], half):
            return None
    else:
        found, ties = _to_even(first, second, bits, below), "even"
        if found is None:
            return None
        product = found
    x, factor = product, np.ones((), np.int64)
    while x.view is None and x.chain is not None and x.chain.op == "MUL":
        inner, times = x.chain.args
        if times.data is None or times.low < 0 or inner.shape != data.shape:
            break
        x, factor = inner, factor * times.data
    factor, amounts = np.broadcast_arrays(factor, bits.data.astype(np.int64))
    # Powers of two belong to the shift.
    lowest = np.where(factor > 0, factor & -factor, 1)
    spare = np.minimum(np.where(factor >= 1 << 31, lowest, 1), np.left_shift(np.int64(1), amounts))
    factor, amounts = factor // spare, amounts - np.log2(spare).astype(np.int64)
    axis: int | None = None
    if factor.size > 1:
        axis = shift_axis(Item(factor.shape, 0, 0, data=factor), data.shape)
        if axis is None:
            return None
    most = largest_along(x, axis)
    if int(factor.max()) >= 1 << 31 or int(most.max()) * int(factor.max()) >= 1 << 62:
        return None
    apart = ties == "even" or (ties == "away" and x.low < 0)
    if apart:
        lowest = np.where(factor > 0, factor & -factor, 1)
        odd = np.left_shift(np.int64(1), np.maximum(amounts, 1) - 1) // lowest
        reached = most.reshape(odd.shape if most.size > 1 else ()) >= odd
        apart = bool((reached & (factor > 0) & (amounts > 0)).any())
    elif factor.size == 1 and int(factor) == 1 and x.low < 0:
        return None  # an addition and a shift
    # Factors as large as those of fixed_point_multiply.
    room = 31 - np.frexp(np.maximum(factor, 1))[1].astype(np.int64)
    factor, shift = np.left_shift(factor, room).reshape(-1), (31 - amounts - room).reshape(-1)
    if int(shift.min()) < -64:
        return None

    def up(value: Item) -> Item:
        return planner.compose("RESCALE", (value,), factor, shift, axis)

    def minus(value: Item) -> Item:
        return planner.compose("SUB", (constant(0), value))

    if not apart:
        return up(x)
    bits_of = amounts.reshape(-1)
    if ties == "even" and (factor == 1 << 30).all() and (shift == 1 - bits_of).all():
        highest = int(bits_of.max())
        if highest < 31 and max(abs(x.low), abs(x.high)) + (1 << highest) < 1 << 31:
            return planner.compose("TO_EVEN", (x,), bits_of, axis)
    planner.materialise(x)
    if ties == "away":
        size = up(planner.compose("MAX", (x, minus(x))))
        return planner.compose(
            "SELECT", (planner.compose("LESS", (x, constant(0))), minus(size), size)
        )
    upper = up(x)
    tie = planner.compose("SUB", (upper, minus(up(minus(x)))))
    is_odd = planner.compose("AND", (upper, constant(1)))
    return planner.compose("SUB", (upper, planner.compose("MUL", (tie, is_odd))))


def largest_along(item: Item, axis: int | None) -> Array:
    """Largest magnitude, one for all or one for each index of an axis."""
    if axis is not None and item.view is None:
        if item.product is not None and item.product.channel_axis == axis:
            return np.maximum(np.abs(item.product.low), np.abs(item.product.high))
        chain = item.chain
        added = chain.args[1] if chain is not None and chain.op == "ADD" else None
        along = (
            added is not None
            and added.data is not None
            and (added.shape == () or shift_axis(replace(added, low=0, high=0), item.shape) == axis)
        )
        if chain is not None and added is not None and added.data is not None and along:
            inner = largest_along(chain.args[0], axis)
            return np.asarray(inner + np.abs(added.data.astype(np.int64)).reshape(-1))
    return np.array([max(abs(item.low), abs(item.high))])


def _to_even(first: Item, second: Item, bits: Item, below: Item) -> Item | None:
    """y of ``y + below + ((y >> n) & 1)``; 0 instead of 1 where n is 0, and nothing is rounded."""
    if first.chain is None or second.chain is None or first.view is not None:
        return None
    odd, added = second.chain, first.chain
    if (added.op, odd.op) != ("ADD", "AND"):
        return None
    if not _equal(odd.args[1], constants(np.asarray(_array(bits) > 0, np.int64))):
        return None
    product, shifted = added.args[0], odd.args[0].chain
    if not _equal(added.args[1], below) or shifted is None or shifted.args[0] is not product:
        return None
    if shifted.op == "SHIFT":
        same = bits.low == bits.high == shifted.params[0]
    else:
        same = shifted.op == "RIGHT" and _equal(shifted.args[1], bits)
    return product if same else None


def _array(item: Item) -> Array:
    assert item.data is not None
    return item.data


def _equal(item: Item, other: Item) -> bool:
    """Whether a value is a constant with the elements of another one."""
    if item.data is None:
        return False
    try:
        pair = np.broadcast_arrays(item.data, _array(other))
    except ValueError:
        return False
    return bool((pair[0] == pair[1]).all())
