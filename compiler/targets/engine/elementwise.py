"""Elementwise operators: joined to a product as its epilogue, or written as one program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.ty import bits
from compiler.targets.engine.packing import make_factor, padded_channels, shuffled
from compiler.targets.engine.plan import Address
from compiler.targets.engine.steps import number, operation
from compiler.targets.engine.values import (
    INT32,
    Chain,
    Epilogue,
    Item,
    Product,
    chain_bounds,
    constant,
    constants,
)
from compiler.targets.engine.views import NoProgramError, Shape, View, merged_axes, positions

if TYPE_CHECKING:
    from compiler.targets.engine.planner import Planner

Array = NDArray[Any]
_SLOTS, _WIDE_SLOTS = 6, 32
_MOST_FAST, _MOST_WIDE = 64, 256
_DIMS = 6
_FAST = ("ADD", "SUB", "MUL", "MIN", "MAX", "CLIP", "RESCALE", "SHIFT", "TO_EVEN")
_BY_CHANNEL = ("RESCALE", "TO_EVEN")
"""Operators whose last parameter is the axis of their constants."""


def scaled_epilogue(item: Item) -> tuple[Product, Epilogue] | None:
    """The product at the start of a chain, and the chain as its epilogue; None if it is none."""
    chain: list[Chain] = []
    at = item
    if item.storage[0] == "S64":
        return None
    while at.chain is not None:
        chain.append(at.chain)
        inner = [a for a in at.chain.args if a.data is None]
        if len(inner) != 1 or inner[0].shape != item.shape:
            return None
        at = inner[0]
        if at.view is not None or at.uses > 1:
            return None
    if at.product is None:
        return None
    product = at.product
    axis, channels = product.channel_axis, item.shape[product.channel_axis]
    found = Epilogue(np.zeros(channels, np.int64))
    scaled = False
    for link in reversed(chain):
        constant = next((a.data for a in link.args if a.data is not None), None)
        if link.op == "ADD" and constant is not None:
            along = _along_channel(constant, axis, len(item.shape), channels)
            if along is None or found.low > INT32[0] or found.high < INT32[1]:
                return None
            if not scaled:
                found.bias = found.bias + along
            elif (along == along[0]).all():
                found.added += int(along[0])
            else:
                return None
        elif link.op in ("CLIP", "MAX", "MIN"):
            if link.op == "CLIP":
                low, high = link.params
            else:
                if constant is None or constant.size != 1:
                    return None
                bound = int(constant.reshape(()))
                low, high = (bound, INT32[1]) if link.op == "MAX" else (INT32[0], bound)
            found.low, found.high = _clipped(found, max(low, INT32[0]), min(high, INT32[1]))
        elif link.op in _BY_CHANNEL and not scaled:
            *factors, along_axis = link.params
            # A factor >= 0 keeps 0 and the order, so a relu in front is one behind.
            if found.low not in (INT32[0], 0) or found.high != INT32[1]:
                return None
            if along_axis is not None and along_axis != axis:
                return None
            if link.op == "TO_EVEN":
                found.to_even = factors[0]
            else:
                found.multiplier, found.shift = factors
                if found.low == 0 and (factors[0] < 0).any():
                    return None
            scaled = True
        elif link.op == "SHIFT" and not scaled:
            if found.low not in (INT32[0], 0) or found.high != INT32[1]:
                return None
            found.bits, scaled = link.params[0], True
        else:
            return None
    if scaled and found.added and found.multiplier is None:
        return None
    if np.abs(found.bias).max(initial=0) > INT32[1] or (
        found.bias.any() and not product.takes_bias
    ):
        return None
    low, high = product.low + found.bias, product.high + found.bias
    if found.multiplier is not None:
        if make_factor(*factor_arguments(found, channels), low, high, found.added) is None:
            return None
    elif found.to_even is not None:
        zero = item.storage[1] << int(found.to_even.max())
        if max(int(high.max()), -int(low.min())) + 2 * zero > INT32[1] or (
            zero and not product.takes_bias
        ):
            return None  # as below
    elif max(int(high.max()), 0) + (item.storage[1] << found.bits) > INT32[1]:
        return None  # the zero of the storage is added before the shift
    return product, found


def factor_arguments(epilogue: Epilogue, channels: int) -> tuple[Array, Array]:
    """Multiplier and shift, one a channel."""
    assert epilogue.multiplier is not None
    assert epilogue.shift is not None
    return (
        np.broadcast_to(epilogue.multiplier, (channels,)),
        np.broadcast_to(epilogue.shift, (channels,)),
    )


def _clipped(found: Epilogue, low: int, high: int) -> tuple[int, int]:
    """Bounds after another clip, in the order max(min(x, high), low)."""
    return max(min(found.low, high), low), max(min(found.high, high), low)


def _along_channel(constant: Array, axis: int, rank: int, channels: int) -> Array | None:
    """A constant that differs along one axis only, as a vector over it."""
    shape = (1,) * (rank - constant.ndim) + constant.shape
    if any(size != 1 for place, size in enumerate(shape) if place != axis):
        return None
    return np.broadcast_to(constant.reshape(-1), (channels,)).astype(np.int64)


def put_epilogue(
    planner: Planner, epilogue: Epilogue, product: Product, item: Item, groups: int, bias: Array
) -> dict[str, Any]:
    """Fields rq_* of a step, and the bias.

    Args:
        bias: int64 a channel, to which that of the epilogue is added.
    """
    emitter, library = planner.emitter, planner.library
    channels = len(product.low)
    kind, zero = item.storage
    total = np.broadcast_to(epilogue.bias, (channels,)) + bias
    fields: dict[str, Any] = {
        "rq_type": number(kind),
        "rq_low": max(epilogue.low, item.low) + zero,
        "rq_high": min(epilogue.high, item.high) + zero,
    }
    if epilogue.multiplier is not None:
        low, high = product.low + epilogue.bias, product.high + epilogue.bias
        factor = make_factor(
            *factor_arguments(epilogue, channels), low, high, epilogue.added + zero
        )
        assert factor is not None
        add = padded_channels(factor.add, groups, "int64")
        fields |= {
            "rq_kind": number("FACTOR"),
            "rq_left": factor.left,
            "rq_mult": emitter.put(padded_channels(factor.mult, groups, "int32")),
            "rq_add": emitter.put(shuffled(add, library)),
            "rq_shift": emitter.put(padded_channels(factor.shift, groups, "int32")),
        }
    elif epilogue.to_even is not None:
        # The zero of the storage is even, so it changes no rounding in front of the shift.
        shifts = np.broadcast_to(epilogue.to_even, (channels,))
        total = total + (zero << shifts)
        below, odd = to_even_parts(shifts)
        fields |= {
            "rq_kind": number("EVEN"),
            "rq_mult": emitter.put(padded_channels(below, groups, "int32")),
            "rq_add": emitter.put(padded_channels(odd, groups, "int32")),
            "rq_shift": emitter.put(padded_channels(shifts, groups, "int32")),
        }
    elif epilogue.bits or zero:
        # The zero of the storage is added in front of the shift.
        bits = np.full(channels, epilogue.bits, np.int32)
        half = np.full(channels, zero << epilogue.bits, np.int32)
        fields |= {
            "rq_kind": number("SHIFT"),
            "rq_mult": emitter.put(padded_channels(half, groups, "int32")),
            "rq_shift": emitter.put(padded_channels(bits, groups, "int32")),
        }
    fields["bias"] = emitter.put(padded_channels(total, groups, "int32"))
    return fields


def to_even_parts(shifts: Array) -> tuple[Array, Array]:
    """Half of the last place less one, and 1, of shifts to the right; 0 for those by 0."""
    below = np.maximum((np.left_shift(np.int64(1), shifts) >> 1) - 1, 0)
    return below, (shifts > 0).astype(np.int64)


# ---- programs ---------------------------------------------------------------------------------


def emit_program(planner: Planner, item: Item, target: View | None = None) -> View:
    """Write the elementwise operators behind an item as one step.

    Args:
        target: where the result goes; None for memory of its own.
    Returns:
        Where it lies.
    """
    leaves: list[Item] = []
    ops: list[Item] = []
    _collect(planner, item, leaves, ops)
    for width, emit in ((32, _emit_fast), (64, _emit_wide)):
        try:
            written = [part for op in ops for part in spelled_out(op, width)]
            fits = all(i.fits_int32 for i in (*leaves, *(o.to for o in written)))
            if width == 32 and (item.storage[0] == "S64" or not fits):
                continue
            return emit(planner, item, leaves, written, target)
        except NoProgramError:
            continue
    if len(ops) == 1:
        raise NoProgramError("operands in more loops than the kernels have")
    # Too many values at a time: the first half is a program of its own.
    planner.materialise(ops[len(ops) // 2 - 1])
    return emit_program(planner, item, target)


def _emit_fast(
    planner: Planner, item: Item, leaves: list[Item], ops: list[Operation], target: View | None
) -> View:
    """A program of vectors of int32.

    Raises:
        NoProgramError: an operator, or operands in such an order, have none.
    """
    emitter = planner.emitter
    leaves = _with_constants(leaves, ops)
    out = target or emitter.allocate(item, _order_of(leaves, item.shape))
    strides: list[Shape] = [out.strides]
    views: list[View | None] = []
    for leaf in leaves:
        view = None if leaf.data is not None and leaf.data.size == 1 else planner.materialise(leaf)
        views.append(view)
        strides.append(_broadcast(view, item.shape) if view else (0,) * len(item.shape))
    for op in ops:
        if op.chain.op in _BY_CHANNEL:
            axis = op.chain.params[-1]
            places = [0] * len(item.shape)
            if axis is not None:
                places[axis + len(item.shape) - len(op.to.shape)] = 1
            strides.append(tuple(places))
    loops = _loops(item, out, strides)
    inner = loops[-1]
    if inner[0] > 1 and not _inner_fits(inner[1], out, views):
        return _copied_first(planner, item, leaves, views, target)
    outer = loops[:-1]
    while len(outer) < 2:
        outer = [(1, tuple(0 for _ in strides)), *outer]
    repeated, near = outer[:-2], outer[-2:]
    for shifts in positions(repeated):
        program = _program(planner, item, leaves, views, ops, out, inner, near, shifts)
        emitter.step(
            "elementwise",
            _touched(planner, views),
            [out.buffer],
            program=program,
            count=len(program),
            d0=near[0][0],
            d1=near[1][0],
            columns=inner[0],
        )
    return out


def _loops(item: Item, out: View, strides: list[Shape]) -> list[tuple[int, Shape]]:
    """Sizes and strides of the axes in the order of the result, merged where they can be."""
    order = out.axis_order
    sizes = tuple(item.shape[a] for a in order)
    return merged_axes(sizes, [tuple(s[a] for a in order) for s in strides])


def _emit_wide(
    planner: Planner, item: Item, leaves: list[Item], ops: list[Operation], target: View | None
) -> View:
    """A program over int64, which every operator has.

    Raises:
        NoProgramError: too many values are needed at a time.
    """
    emitter = planner.emitter
    leaves = _with_constants(leaves, ops)
    out = target or emitter.allocate(item, _order_of(leaves, item.shape))
    views = [
        None if leaf.data is not None and leaf.data.size == 1 else planner.materialise(leaf)
        for leaf in leaves
    ]
    rank = len(item.shape)
    strides = [out.strides, *(_broadcast(v, item.shape) if v else (0,) * rank for v in views)]
    loops = _loops(item, out, strides)
    loops = [(1, (0,) * len(strides))] * (_DIMS - len(loops)) + loops
    repeated, near = loops[:-_DIMS], loops[-_DIMS:]
    for shifts in positions(repeated):
        program = _wide_program(planner, item, leaves, views, ops, out, near, shifts)
        emitter.step(
            "wide",
            _touched(planner, views),
            [out.buffer],
            program=program,
            count=len(program),
            **{f"size_{axis}": size for axis, (size, _) in enumerate(near)},
        )
    return out


def _wide_program(
    planner: Planner,
    item: Item,
    leaves: list[Item],
    views: list[View | None],
    ops: list[Operation],
    out: View,
    near: list[tuple[int, Shape]],
    shifts: list[tuple[int, Shape]],
) -> list[list[Any]]:
    slots = _Slots(ops, _WIDE_SLOTS)
    program: list[list[Any]] = []

    def access(name: str, view: View, operand: int, **fields: int) -> None:
        moved = sum(index * strides[operand] for index, strides in shifts)
        along = {f"stride_{axis}": strides[operand] for axis, (_, strides) in enumerate(near)}
        space = 16 if planner.emitter.is_constant(view) else 0
        kind = number(view.buffer.type) | space
        address = Address(view.buffer, view.offset + moved)
        program.append(
            operation(name, "wide_op", p0=address, p1=kind, p2=view.buffer.zero, **fields, **along)
        )

    for op in ops:
        chain = op.chain
        for arg in chain.args:
            if slots.of(arg) is not None:
                continue
            place = leaves.index(arg)
            view, slot = views[place], slots.take(arg)
            if view is None:
                program.append(operation("WIDE_CONSTANT", "wide_op", to=slot, p0=arg.low))
            else:
                access("WIDE_LOAD", view, 1 + place, to=slot)
        places = dict(zip("abc", (slots.of(arg) for arg in chain.args)))
        slots.release(op)
        params = {}
        if chain.op == "WRAP":
            dtype = chain.params[0]
            params = {"p0": bits(dtype), "p1": int(not dtype.startswith("u"))}
        to, name = slots.take(op.to), f"WIDE_{chain.op}"
        program.append(operation(name, "wide_op", to=to, **places, **params))
    access("WIDE_STORE", out, 0, a=slots.of(item) or 0)
    return _of_length(program, _MOST_WIDE)


def _of_length(program: list[list[Any]], most: int) -> list[list[Any]]:
    if len(program) > most:
        raise NoProgramError("no operator of the fast programs, or too many operators")
    return program


def _touched(planner: Planner, views: list[View | None]) -> list[Any]:
    return [v.buffer for v in views if v is not None and not planner.emitter.is_constant(v)]


def _with_constants(leaves: list[Item], ops: list[Operation]) -> list[Item]:
    """The leaves, and the constants that spelling out has added."""
    held = {*leaves, *(op.to for op in ops)}
    args = (arg for op in ops for arg in op.chain.args)
    return [*leaves, *dict.fromkeys(arg for arg in args if arg not in held)]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator of a program, and the value that it computes."""

    to: Item
    chain: Chain


def spelled_out(op: Item, width: int) -> list[Operation]:
    """An operator as those of one kind of program; the last one computes the operator's item.

    Args:
        width: 32 for the fast programs, 64 for the wide ones.
    Raises:
        NoProgramError: fast programs do not have it.
    """
    made: list[Operation] = []
    chain = op.chain
    assert chain is not None

    def do(name: str, *args: Item, params: tuple[Any, ...] = ()) -> Item:
        bounds = chain_bounds(name, args, params)
        made.append(Operation(Item(op.shape, *bounds), Chain(name, args, params)))
        return made[-1].to

    args, name = chain.args, chain.op
    if width == 64:
        if name == "CLIP":
            low, high = (constant(v) for v in chain.params)
            do("MAX", do("MIN", args[0], high), low)
        elif name == "SHIFT":
            do("RIGHT", args[0], constant(chain.params[0]))
        elif name == "RESCALE":
            times, half, right = _rescaling(chain.params, len(op.shape))
            do("RIGHT", do("ADD", do("MUL", args[0], times), half), right)
        elif name == "TO_EVEN":
            places = [1] * len(op.shape)
            places[chain.params[1] or 0] = -1
            shifts = chain.params[0].reshape(places)
            below, one = map(constants, to_even_parts(shifts))
            right = constants(shifts)
            odd = do("AND", do("RIGHT", args[0], right), one)
            do("RIGHT", do("ADD", do("ADD", args[0], below), odd), right)
    elif name == "LESS":
        do("CLIP", do("SUB", args[1], args[0]), params=(0, 1))
    elif name == "EQUAL":
        apart = do("MAX", do("SUB", args[0], args[1]), do("SUB", args[1], args[0]))
        do("SUB", constant(1), do("CLIP", apart, params=(0, 1)))
    elif name == "SELECT" and (args[0].low, args[0].high) == (0, 1):
        do("ADD", args[2], do("MUL", args[0], do("SUB", args[1], args[2])))
    elif name == "AND" and args[1].low == args[1].high == 1:
        do("SUB", args[0], do("MUL", do("SHIFT", args[0], params=(1,)), constant(2)))
    elif name == "RIGHT" and (axis := shift_axis(args[1], op.shape)) is not None:
        shifts = np.asarray(args[1].data, np.int64)
        halves = constants(np.asarray(np.left_shift(np.int64(1), shifts) >> 1))
        factor = np.full(shifts.size, 1 << 30), 1 - shifts.reshape(-1)
        do("RESCALE", do("SUB", args[0], halves), params=(*factor, axis))
    elif name not in _FAST:
        raise NoProgramError("no operator of the fast programs, or too many operators")
    if not made:
        return [Operation(op, chain)]
    return [*made[:-1], Operation(op, made[-1].chain)]


def shift_axis(amounts: Item, shape: Shape) -> int | None:
    """The axis along which constant shifts of at most 31 bits differ."""
    if amounts.data is None or not 0 <= amounts.low <= amounts.high <= 31:
        return None
    sizes = (1,) * (len(shape) - amounts.data.ndim) + amounts.data.shape
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    return axes[0] if len(axes) == 1 else None


def _rescaling(params: tuple[Any, ...], rank: int) -> tuple[Item, Item, Item]:
    """Factor, half of the last place and shift of a RESCALE as constants."""
    multiplier, shift, axis = params
    right = 31 - np.asarray(shift, np.int64)
    # From 63 bits on the half alone decides, and the result is 0.
    times = np.where(right > 63, 0, multiplier << np.maximum(-right, 0))
    right = np.where(right > 63, 0, np.maximum(right, 0))
    half = np.where(right > 0, np.left_shift(np.int64(1), np.maximum(right, 1) - 1), 0)
    shape = [1] * (0 if axis is None else rank - axis)
    shape[:1] = [-1] if shape else []
    arrays = [a.reshape(shape) if shape else a[:1].reshape(()) for a in (times, half, right)]
    return constants(arrays[0]), constants(arrays[1]), constants(arrays[2])


def _collect(planner: Planner, item: Item, leaves: list[Item], ops: list[Item]) -> None:
    """Operators in the order of execution, and what they read; at most as many as slots allow."""
    stack: list[tuple[Item, bool]] = [(item, False)]
    while stack:
        top, ready = stack.pop()
        if top in ops or top in leaves:
            continue
        if ready:
            ops.append(top)
            continue
        joined = top.chain is not None and top.view is None and len(ops) + len(stack) < 24
        if top is not item and (not joined or scaled_epilogue(top) is not None):
            leaves.append(top)
            continue
        stack.append((top, True))
        assert top.chain is not None
        stack.extend((a, False) for a in reversed(top.chain.args))
    for leaf in leaves:
        if leaf.data is None:
            planner.materialise(leaf)


def _order_of(leaves: list[Item], shape: Shape) -> Shape | None:
    """The order of axes of the first operand that is as large as the result."""
    for leaf in leaves:
        if leaf.view is not None and leaf.data is None and leaf.shape == shape:
            return leaf.view.axis_order
    return None


def _broadcast(view: View, shape: Shape) -> Shape:
    """Strides of a view under a shape it broadcasts to."""
    missing = len(shape) - len(view.shape)
    made = [0] * missing
    for axis, size in enumerate(view.shape):
        made.append(view.strides[axis] if size == shape[missing + axis] and size > 1 else 0)
    return tuple(made)


def _inner_fits(strides: Shape, out: View, views: list[View | None]) -> bool:
    if strides[0] != out.buffer.item:
        return False
    for stride, view in zip(strides[1:], views):
        if view is not None and stride not in (0, view.buffer.item):
            return False
    return all(stride in (0, 1) for stride in strides[1 + len(views) :])


def _copied_first(
    planner: Planner, item: Item, leaves: list[Item], views: list[View | None], target: View | None
) -> View:
    """The program after copies of the operands that lie in another order."""
    if not any(v is not None and not planner.emitter.is_constant(v) for v in views) or any(
        leaf.view is not None and leaf.view.buffer in planner.emitter.copies for leaf in leaves
    ):
        raise NoProgramError("operands in orders that no copy joins")
    for leaf, view in zip(leaves, views):
        if view is not None and leaf.data is None:
            leaf.view = planner.emitter.contiguous(view, always=True)
    return emit_program(planner, item, target)


def _program(
    planner: Planner,
    item: Item,
    leaves: list[Item],
    views: list[View | None],
    ops: list[Operation],
    out: View,
    inner: tuple[int, Shape],
    near: list[tuple[int, Shape]],
    shifts: list[tuple[int, Shape]],
) -> list[list[Any]]:
    """Micro operations; operand ``n`` of the strides is the result, the leaves, the factors."""
    emitter = planner.emitter
    slots = _Slots(ops, _SLOTS)
    program: list[list[Any]] = []
    factor_at = 1 + len(leaves)

    def moved(operand: int) -> int:
        return sum(index * strides[operand] for index, strides in shifts)

    for op in ops:
        chain = op.chain
        for arg in chain.args:
            if slots.of(arg) is not None:
                continue
            place = leaves.index(arg)
            view = views[place]
            slot = slots.take(arg)
            if view is None:
                assert arg.data is not None
                value = int(arg.data.reshape(()))
                program.append(operation("CONSTANT", to=slot, a=1, p0=value))
                continue
            space = 16 if emitter.is_constant(view) else 0
            load: list[Any] = operation(
                "LOAD",
                to=slot,
                a=int(inner[1][1 + place] == 0),
                b=view.buffer.zero,
                p1=number(view.buffer.type) | space,
                p2=near[0][1][1 + place],
                p3=near[1][1][1 + place],
            )
            load[4] = Address(view.buffer, view.offset + moved(1 + place))
            program.append(load)
        args = [slots.of(arg) for arg in chain.args]
        slots.release(op)
        slot = slots.take(op.to)
        program.append(_operation(planner, chain, slot, args, inner[1], near, factor_at, moved))
        factor_at += chain.op in _BY_CHANNEL
    store: list[Any] = operation(
        "STORE",
        a=slots.of(item) or 0,
        b=out.buffer.zero,
        p1=number(out.buffer.type),
        p2=near[0][1][0],
        p3=near[1][1][0],
    )
    store[4] = Address(out.buffer, out.offset + moved(0))
    return _of_length([*program, store], _MOST_FAST)


class _Slots:
    """Which operand is in which slot; a slot is free again behind the last reader."""

    def __init__(self, ops: list[Operation], count: int) -> None:
        self._last = {arg: op for op in ops for arg in op.chain.args}
        self._held: dict[Item, int] = {}
        self._count = count

    def of(self, item: Item) -> int | None:
        return self._held.get(item)

    def take(self, item: Item) -> int:
        for slot in range(self._count):
            if slot not in self._held.values():
                self._held[item] = slot
                return slot
        raise NoProgramError("more operands than slots, or factors of other axes")

    def release(self, op: Operation) -> None:
        for item in [i for i in self._held if self._last.get(i) is op]:
            del self._held[item]


def _operation(
    planner: Planner,
    chain: Chain,
    slot: int,
    args: list[Any],
    inner: Shape,
    near: list[tuple[int, Shape]],
    factor_at: int,
    moved: Any,
) -> list[Any]:
    emitter = planner.emitter
    if chain.op == "CLIP":
        low, high = (min(max(v, INT32[0]), INT32[1]) for v in chain.params)
        return operation("CLIP", to=slot, a=args[0], p0=low, p1=high)
    if chain.op == "SHIFT":
        zeros, bits = np.zeros(16, np.int32), np.full(16, chain.params[0], np.int32)
        return operation(
            "ROUND_SHIFT", to=slot, a=args[0], p0=emitter.put(zeros), p2=emitter.put(bits)
        )
    if chain.op not in _BY_CHANNEL:
        return operation(chain.op, to=slot, a=args[0], b=args[1])
    left = 0
    if chain.op == "TO_EVEN":
        shifts = chain.params[0]
        arrays = [part.astype(np.int32) for part in (*to_even_parts(shifts), shifts)]
    else:
        multiplier, shift, _ = chain.params
        source = chain.args[0]
        factor = make_factor(multiplier, shift, np.array(source.low), np.array(source.high), 0)
        if factor is None:
            raise NoProgramError("more operands than slots, or factors of other axes")
        arrays, left = [factor.mult, factor.add, factor.shift], factor.left
    varies = len(arrays[0]) > 1
    if varies and (inner[factor_at] != 1 or any(s[factor_at] for _, s in near) or moved(factor_at)):
        raise NoProgramError("more operands than slots, or factors of other axes")
    if varies:
        arrays = [padded_channels(a, 1, str(a.dtype)) for a in arrays]
    else:
        arrays = [np.repeat(a, 16) for a in arrays]
    if chain.op == "RESCALE":
        arrays[1] = shuffled(arrays[1], planner.library)
    p0, p1, p2 = (emitter.put(a) for a in arrays)
    return operation(chain.op, to=slot, a=args[0], b=left, p0=p0, p1=p1, p2=p2, p3=int(varies))
