"""Chains of elementwise operators as programs: of int32 where they have one, else of int64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.ty import bits
from compiler.targets.engine.epilogue import BY_CHANNEL, scaled_epilogue, to_even_parts
from compiler.targets.engine.packing import as_real, make_factor, padded_channels, shuffled
from compiler.targets.engine.plan import Planning
from compiler.targets.engine.programs import (
    BINARY,
    Operation,
    Slots,
    joined,
    loops_of,
    of_length,
    order_of,
    simplified,
    spelled_out,
    views_of,
    with_constants,
)
from compiler.targets.engine.steps import number, operation
from compiler.targets.engine.values import (
    INT32,
    Chain,
    Item,
)
from compiler.targets.engine.views import Address, NoProgramError, Shape, View, positions

Array = NDArray[Any]
Loops = list[tuple[int, Shape]]
"""Sizes, or indices, of loops, and the bytes from element to element of every operand."""

_SLOTS = 6
_MOST = 64
_BLOCK = 512
"""Elements that a program computes at a time."""
_WIDE_SLOTS = 32
_WIDE_MOST = 256
_DIMS = 6


def emit_program(planner: Planning, item: Item, target: View | None = None) -> View:
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
            if width == 32:
                written = simplified(written)
            fits = all(i.fits_int32 for i in (*leaves, *(o.to for o in written)))
            kind = item.storage[0] if target is None else target.buffer.type
            if width == 32 and (kind == "S64" or not fits):
                continue
            return emit(planner, item, leaves, written, target)
        except NoProgramError:
            continue
    if len(ops) == 1:
        raise NoProgramError("operands in more loops than the kernels have")
    # Too many values at a time: the first half is a program of its own.
    planner.materialise(ops[len(ops) // 2 - 1])
    return emit_program(planner, item, target)


@dataclass(frozen=True, slots=True)
class _Operands:
    """What the programs of one expression read and write.

    Operand 0 is the result, then come the leaves, then the factors by channel.

    Attributes:
        ops: in the order of execution.
        out: where the result goes.
        views: of the leaves; None for a constant number.
        strides: of each operand, along the axes of the result.
    """

    planner: Planning
    item: Item
    leaves: list[Item]
    ops: list[Operation]
    out: View
    views: list[View | None]
    strides: list[Shape]

    @staticmethod
    def of(
        planner: Planning, item: Item, leaves: list[Item], ops: list[Operation], target: View | None
    ) -> _Operands:
        """Leaves and result in memory; the result at ``target`` where one is given."""
        leaves = with_constants(leaves, ops)
        out = target or planner.emitter.allocate(item, order_of(leaves, item.shape))
        views, read = views_of(planner, leaves, item.shape)
        return _Operands(planner, item, leaves, ops, out, views, [out.strides, *read])

    def loops(self, most: int) -> tuple[Loops, Loops]:
        """The loops around the steps, and the innermost ones, as many as a step has."""
        loops = loops_of(self.item, self.out, self.strides)
        loops = [(1, (0,) * len(self.strides))] * (most - len(loops)) + loops
        return loops[:-most], loops[-most:]

    def memory(self, operand: int, shifts: Loops) -> tuple[Address, int, int]:
        """Address at a position of the outer loops, type with its space, and zero of an operand."""
        view = self.views[operand - 1] if operand else self.out
        assert view is not None
        space = 16 if self.planner.emitter.is_constant(view) else 0
        address = Address(view.buffer, view.offset + _moved(operand, shifts))
        return address, number(view.buffer.type) | space, view.buffer.zero

    def write(self, kind: str, program: list[list[Any]], **sizes: int) -> None:
        """Write a program as a step."""
        emitter = self.planner.emitter
        read = [view.buffer for view in self.views if view and not emitter.is_constant(view)]
        count = len(program)
        emitter.step(kind, read, [self.out.buffer], program=program, count=count, **sizes)


def _moved(operand: int, shifts: Loops) -> int:
    """Bytes from the start of an operand to its place at a position of the outer loops."""
    return sum(index * strides[operand] for index, strides in shifts)


def _emit_fast(
    planner: Planning, item: Item, leaves: list[Item], ops: list[Operation], target: View | None
) -> View:
    """A program of vectors of int32.

    Raises:
        NoProgramError: an operator, or operands in such an order, have none.
    """
    operands = _Operands.of(planner, item, leaves, ops, target)
    for op in ops:
        if op.chain.op in BY_CHANNEL:
            axis = op.chain.params[-1]
            places = [0] * len(item.shape)
            if axis is not None:
                places[axis + len(item.shape) - len(op.to.shape)] = 1
            operands.strides.append(tuple(places))
    repeated, near = operands.loops(3)
    columns, strides = near[-1]
    if near[1][0] < near[0][0] and near[1][0] * columns < _BLOCK:
        near[:2] = near[1::-1]  # more rows run together
    if columns > 1 and not _inner_fits(strides, operands.out, operands.views):
        return _copied_first(planner, item, operands.leaves, operands.views, target)
    for shifts in positions(repeated):
        program = _program(operands, near, shifts)
        operands.write("elementwise", program, d0=near[0][0], d1=near[1][0], columns=columns)
    return operands.out


def _collect(planner: Planning, item: Item, leaves: list[Item], ops: list[Item]) -> None:
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
    planner: Planning, item: Item, leaves: list[Item], views: list[View | None], target: View | None
) -> View:
    """The program after copies of the operands that lie in another order."""
    if not any(v is not None and not planner.emitter.is_constant(v) for v in views) or any(
        leaf.view is not None and leaf.view.buffer in planner.emitter.copies for leaf in leaves
    ):
        raise NoProgramError("operands in orders that no copy joins")
    for leaf, view in zip(leaves, views):
        if view is not None and leaf.data is None:
            leaf.view = planner.emitter.contiguous(view, always=True)
            leaf.border = None  # what lies around it stays behind
    return emit_program(planner, item, target)


def _program(operands: _Operands, near: Loops, shifts: Loops) -> list[list[Any]]:
    """Micro operations of one step."""
    slots = Slots(operands.ops, _SLOTS)
    program: list[list[Any]] = []
    (_, rows), (_, lines), (_, inner) = near
    factor_at = 1 + len(operands.leaves)

    def access(name: str, operand: int, **slot: int) -> None:
        address, kind, zero = operands.memory(operand, shifts)
        ends = rows[operand], lines[operand]
        program.append(
            operation(name, "op", b=zero, p0=address, p1=kind, p2=ends[0], p3=ends[1], **slot)
        )

    for op in operands.ops:
        chain = op.chain
        number_of = None
        if chain.op in BINARY and chain.args[1].data is not None and chain.args[1].data.size == 1:
            number_of = chain.args[1].low
        for arg in chain.args[:1] if number_of is not None else chain.args:
            if slots.of(arg) is not None:
                continue
            place = operands.leaves.index(arg)
            slot = slots.take(arg)
            if operands.views[place] is None:
                program.append(operation("CONSTANT", to=slot, a=1, p0=arg.low))
            else:
                access("LOAD", 1 + place, to=slot, a=int(inner[1 + place] == 0))
        args = [slots.of(arg) for arg in chain.args]
        slots.release(op)
        slot = slots.take(op.to)
        if number_of is not None:
            program.append(operation(chain.op, to=slot, a=args[0], p0=number_of, p1=1))
            continue
        along = False
        if chain.op in BY_CHANNEL:
            fixed = rows[factor_at], lines[factor_at], _moved(factor_at, shifts)
            along = inner[factor_at] == 1 and not any(fixed)
            factor_at += 1
        program.append(_operation(operands.planner, chain, slot, args, along))
    low, high = (0, 255) if operands.out.buffer.type == "U8" else INT32
    access("STORE", 0, a=slots.of(operands.item) or 0, low=low, high=high)
    # A store adds the zero of its storage before it limits.
    most = operands.ops[-1].chain.args[0].high + operands.out.buffer.zero
    return of_length(joined(program, clips=most <= INT32[1]), _MOST)


def _operation(
    planner: Planning, chain: Chain, slot: int, args: list[Any], along: bool
) -> list[Any]:
    """One micro operation.

    Args:
        along: the innermost loop runs along the channels, and no other loop does.
    """
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
    left, scaled = 0, None
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
        if planner.library.has_reals:
            scaled = as_real(factor, np.array(source.low), np.array(source.high))
        arrays = arrays if scaled is None else [scaled]
    varies = len(arrays[0]) > 1
    if varies and not along:
        raise NoProgramError("more operands than slots, or factors of other axes")
    if varies:
        arrays = [padded_channels(a, 1, str(a.dtype)) for a in arrays]
    else:
        arrays = [np.repeat(a, 16) for a in arrays]
    if scaled is not None:
        factors = emitter.put(arrays[0])
        return operation("TIMES", to=slot, a=args[0], scaled=1 + varies, factors=factors)
    if chain.op == "RESCALE":
        arrays[1] = shuffled(arrays[1], planner.library)
    p0, p1, p2 = (emitter.put(a) for a in arrays)
    return operation(chain.op, to=slot, a=args[0], b=left, p0=p0, p1=p1, p2=p2, p3=int(varies))


# Integers of 64 bits ------------------------------------------------------------------------------


def _emit_wide(
    planner: Planning, item: Item, leaves: list[Item], ops: list[Operation], target: View | None
) -> View:
    """A program over int64, which every operator has: see general.h.

    Raises:
        NoProgramError: too many values are needed at a time.
    """
    operands = _Operands.of(planner, item, leaves, ops, target)
    repeated, near = operands.loops(_DIMS)
    sizes = {f"size_{axis}": size for axis, (size, _) in enumerate(near)}
    for shifts in positions(repeated):
        operands.write("wide", _wide_program(operands, near, shifts), **sizes)
    return operands.out


def _wide_program(operands: _Operands, near: Loops, shifts: Loops) -> list[list[Any]]:
    slots = Slots(operands.ops, _WIDE_SLOTS)
    program: list[list[Any]] = []

    def access(name: str, operand: int, **slot: int) -> None:
        address, kind, zero = operands.memory(operand, shifts)
        along = {f"stride_{axis}": strides[operand] for axis, (_, strides) in enumerate(near)}
        program.append(operation(name, "wide_op", p0=address, p1=kind, p2=zero, **slot, **along))

    for op in operands.ops:
        chain = op.chain
        for arg in chain.args:
            if slots.of(arg) is not None:
                continue
            place = operands.leaves.index(arg)
            slot = slots.take(arg)
            if operands.views[place] is None:
                program.append(operation("WIDE_CONSTANT", "wide_op", to=slot, p0=arg.low))
            else:
                access("WIDE_LOAD", 1 + place, to=slot)
        places = dict(zip("abc", (slots.of(arg) for arg in chain.args)))
        slots.release(op)
        params = {}
        if chain.op in ("WRAP", "TO_INT"):
            dtype = chain.params[0]
            params = {"p0": bits(dtype), "p1": int(not dtype.startswith("u"))}
        to, name = slots.take(op.to), f"WIDE_{chain.op}"
        program.append(operation(name, "wide_op", to=to, **places, **params))
    access("WIDE_STORE", 0, a=slots.of(operands.item) or 0)
    return of_length(program, _WIDE_MOST)
