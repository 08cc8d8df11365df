"""Chains of elementwise operators as programs: of int32 where they have one, else of int64."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.targets.engine.epilogue import BY_CHANNEL, scaled_epilogue, to_even_parts
from compiler.targets.engine.packing import make_factor, padded_channels, shuffled
from compiler.targets.engine.plan import Address
from compiler.targets.engine.programs import (
    Operation,
    Slots,
    loops_of,
    of_length,
    order_of,
    spelled_out,
    touched,
    views_of,
    with_constants,
)
from compiler.targets.engine.steps import number, operation
from compiler.targets.engine.values import (
    INT32,
    Chain,
    Item,
)
from compiler.targets.engine.views import NoProgramError, Shape, View, positions
from compiler.targets.engine.wide import emit_wide

if TYPE_CHECKING:
    from compiler.targets.engine.planner import Planner

Array = NDArray[Any]
_SLOTS = 6
_MOST = 64


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
    for width, emit in ((32, _emit_fast), (64, emit_wide)):
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
    leaves = with_constants(leaves, ops)
    out = target or emitter.allocate(item, order_of(leaves, item.shape))
    views, read = views_of(planner, leaves, item.shape)
    strides = [out.strides, *read]
    for op in ops:
        if op.chain.op in BY_CHANNEL:
            axis = op.chain.params[-1]
            places = [0] * len(item.shape)
            if axis is not None:
                places[axis + len(item.shape) - len(op.to.shape)] = 1
            strides.append(tuple(places))
    loops = loops_of(item, out, strides)
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
            touched(planner, views),
            [out.buffer],
            program=program,
            count=len(program),
            d0=near[0][0],
            d1=near[1][0],
            columns=inner[0],
        )
    return out


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
    slots = Slots(ops, _SLOTS)
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
        factor_at += chain.op in BY_CHANNEL
    store: list[Any] = operation(
        "STORE",
        a=slots.of(item) or 0,
        b=out.buffer.zero,
        p1=number(out.buffer.type),
        p2=near[0][1][0],
        p3=near[1][1][0],
    )
    store[4] = Address(out.buffer, out.offset + moved(0))
    return of_length([*program, store], _MOST)


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
    if chain.op not in BY_CHANNEL:
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
