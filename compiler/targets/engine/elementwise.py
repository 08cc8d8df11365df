"""Chains of elementwise operators as programs: of int32 where they have one, else of int64."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from compiler.ir.ty import bits
from compiler.targets.engine.epilogue import BY_CHANNEL, scaled_epilogue, to_even_parts
from compiler.targets.engine.packing import as_real, make_factor, padded_channels, shuffled
from compiler.targets.engine.plan import Planning
from compiler.targets.engine.programs import (
    BINARY,
    Operation,
    Slots,
    broadcast_strides,
    joined,
    number_of,
    of_length,
    order_of,
    simplified,
    spelled_out,
    with_constants,
)
from compiler.targets.engine.steps import number, operation
from compiler.targets.engine.values import (
    INT32,
    Chain,
    Item,
)
from compiler.targets.engine.views import (
    Address,
    NoProgramError,
    Shape,
    View,
    merged_axes,
    positions,
)

Targets = Mapping[Item, View | None]
Loops = list[tuple[int, Shape]]
"""Sizes, or indices, of loops, and the bytes from element to element of every operand."""

_SLOTS = 8
_MOST = 64
_JOINED = 24
"""Operators and operands that one program has about."""
BLOCK = 512
"""Elements that a program computes at a time."""
_MOST_REAL = 1 << 21
"""Products below it are exact where a load multiplies by a float32."""
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
    leaves, ops = _collected(planner, (item,), _JOINED)
    for width, emit in ((32, _emit_fast), (64, _emit_wide)):
        try:
            written = _written(ops, (item,), width)
            kind = item.storage[0] if target is None else target.buffer.type
            if width == 32 and (kind == "S64" or not _fit(leaves, written)):
                continue
            return emit(planner, {item: target}, leaves, written)[0]
        except NoProgramError:
            continue
    if len(ops) == 1:
        raise NoProgramError("operands in more loops than the kernels have")
    # Too many values at a time: the first half is a program of its own.
    planner.materialise(ops[len(ops) // 2 - 1])
    return emit_program(planner, item, target)


def emit_together(planner: Planning, targets: Mapping[Item, View | None]) -> bool:
    """Write the elementwise operators behind some items of one shape as one step.

    A result may lie where an operand does, element on element: that is read first.

    Args:
        targets: as of ``emit_program``. An item lies there behind it.
    Returns:
        False where there is no such step.
    """
    shapes = {item.shape for item in targets}
    if len(shapes) != 1 or prod(*shapes) > BLOCK or len(targets) > _MOST:
        return False
    try:
        leaves, ops = _collected(planner, targets, _MOST)
        written = _written(ops, targets, 32)
        moved = any(
            target is not None and leaf.view != target and leaf.view.buffer is target.buffer
            for target in targets.values()
            for leaf in leaves
            if leaf.view is not None
        )
        if moved or not _fit(leaves, written):
            return False
        views = _emit_fast(planner, targets, leaves, written)
    except NoProgramError:
        return False
    for item, view in zip(targets, views):
        item.view = view
        item.depth = 0
    return True


def _written(ops: Sequence[Item], results: Collection[Item], width: int) -> list[Operation]:
    """Operators as those of one kind of program."""
    written = [part for op in ops for part in spelled_out(op, width)]
    if width == 32:
        return simplified(written, results)
    return written


def _fit(leaves: Sequence[Item], ops: Sequence[Operation]) -> bool:
    return all(i.fits_int32 for i in (*leaves, *(o.to for o in ops)))


@dataclass(frozen=True, slots=True)
class _Operands:
    """Operands that the programs of some expressions read and write.

    First come the results, then the leaves, then the factors by channel.

    Attributes:
        ops: in the order of execution; a result is stored behind the one that computes it.
        outs: where the results go.
        views: of the leaves; None for a constant number.
        strides: of each operand, along the axes of the results.
    """

    planner: Planning
    results: list[Item]
    leaves: list[Item]
    ops: list[Operation]
    outs: list[View]
    views: list[View | None]
    strides: list[Shape]

    @staticmethod
    def of(
        planner: Planning, targets: Targets, leaves: list[Item], ops: list[Operation]
    ) -> _Operands:
        """Leaves and results in memory; a result at its target where it has one."""
        leaves = with_constants(leaves, ops)
        outs = [
            target or planner.emitter.allocate(item, order_of(leaves, item.shape))
            for item, target in targets.items()
        ]
        results = list(targets)
        views = [
            None if number_of(leaf) is not None else planner.materialise(leaf) for leaf in leaves
        ]
        shape = results[0].shape
        read = [broadcast_strides(v, shape) if v else (0,) * len(shape) for v in views]
        strides = [*(out.strides for out in outs), *read]
        return _Operands(planner, results, leaves, ops, outs, views, strides)

    def loops(self, most: int) -> tuple[Loops, Loops]:
        """The loops around the steps, and the innermost ones, as many as a step has."""
        order = self.outs[0].axis_order
        sizes = tuple(self.results[0].shape[axis] for axis in order)
        loops = merged_axes(sizes, [tuple(s[axis] for axis in order) for s in self.strides], most)
        return loops[:-most], loops[-most:]

    def memory(self, operand: int, shifts: Loops) -> tuple[Address, int, int]:
        """Address at a position of the outer loops, type with its space, and zero of an operand."""
        view = [*self.outs, *self.views][operand]
        assert view is not None
        address = Address(view.buffer, view.offset + _moved(operand, shifts))
        return address, self.planner.emitter.type_of(view), view.buffer.zero

    def write(self, kind: str, program: list[list[Any]], **sizes: int) -> None:
        """Write a program as a step."""
        emitter = self.planner.emitter
        read = [view.buffer for view in self.views if view and not emitter.is_constant(view)]
        written = [out.buffer for out in self.outs]
        emitter.step(kind, read, written, program=program, count=len(program), **sizes)


def _moved(operand: int, shifts: Loops) -> int:
    """Bytes from the start of an operand to its place at a position of the outer loops."""
    return sum(index * strides[operand] for index, strides in shifts)


def _emit_fast(
    planner: Planning, targets: Targets, leaves: list[Item], ops: list[Operation]
) -> list[View]:
    """A program of vectors of int32.

    Raises:
        NoProgramError: an operator, or operands in such an order, have none.
    """
    operands = _Operands.of(planner, targets, leaves, ops)
    rank = len(operands.results[0].shape)
    for op in ops:
        if op.chain.op in BY_CHANNEL:
            axis = op.chain.params[-1]
            places = [0] * rank
            if axis is not None:
                places[axis + rank - len(op.to.shape)] = 1
            operands.strides.append(tuple(places))
    repeated, near = operands.loops(3)
    columns, strides = near[-1]
    if near[1][0] < near[0][0] and near[1][0] * columns < BLOCK:
        near[:2] = near[1::-1]  # more rows run together
    if columns > 1 and not _inner_fits(strides, operands):
        return _copied_first(operands, targets)
    for shifts in positions(repeated):
        program = _program(operands, near, shifts)
        operands.write("elementwise", program, d0=near[0][0], d1=near[1][0], columns=columns)
    return operands.outs


def _collected(
    planner: Planning, results: Collection[Item], most: int
) -> tuple[list[Item], list[Item]]:
    """Return the operands of the operators behind some items, and these in the order of execution.

    Args:
        most: operators, and what waits to be one of them.
    """
    leaves: list[Item] = []
    ops: list[Item] = []
    stack = [(item, False) for item in reversed(list(results))]
    while stack:
        top, ready = stack.pop()
        if top in ops or top in leaves:
            continue
        if ready:
            ops.append(top)
            continue
        joined = top.chain is not None and top.view is None and len(ops) + len(stack) < most
        if top not in results and (not joined or scaled_epilogue(top) is not None):
            leaves.append(top)
            continue
        stack.append((top, True))
        assert top.chain is not None
        stack.extend((a, False) for a in reversed(top.chain.args))
    for leaf in leaves:
        if leaf.data is None:
            planner.materialise(leaf)
    return leaves, ops


def _inner_fits(strides: Shape, operands: _Operands) -> bool:
    """Return whether the innermost loop runs along elements of the results, and of what varies in
    it."""
    views = [*operands.outs, *operands.views]
    if any(view.buffer.item != stride for view, stride in zip(operands.outs, strides)):
        return False
    for stride, view in zip(strides, views):
        if view is not None and stride not in (0, view.buffer.item):
            return False
    return all(stride in (0, 1) for stride in strides[len(views) :])


def _copied_first(operands: _Operands, targets: Targets) -> list[View]:
    """The program after copies of the operands that lie in another order.

    They are row-major where the result follows them, else they lie as the result does.
    """
    emitter = operands.planner.emitter
    read = list(zip(operands.leaves, operands.views))
    copied = any(leaf.view is not None and leaf.view.buffer in emitter.copies for leaf, _ in read)
    varies = any(view is not None and not emitter.is_constant(view) for _, view in read)
    if len(targets) > 1 or copied or not varies:
        raise NoProgramError("operands in orders that no copy joins")
    ((item, target),) = targets.items()
    follows = target is None and order_of(operands.leaves, item.shape) is not None
    if follows:
        order = tuple(range(len(item.shape)))
    else:
        order = operands.outs[0].axis_order
    for leaf, view in read:
        if view is not None and leaf.data is None:
            missing = len(order) - len(view.shape)
            own = tuple(axis - missing for axis in order if axis >= missing)
            leaf.view = emitter.contiguous(view, always=True, order=own)
            leaf.border = None  # what lies around it stays behind
    return [emit_program(operands.planner, item, target)]


def _program(operands: _Operands, near: Loops, shifts: Loops) -> list[list[Any]]:
    """Micro operations of one step."""
    slots = Slots(operands.ops, _SLOTS)
    program: list[list[Any]] = []
    (_, rows), (_, lines), (_, inner) = near
    first_leaf = len(operands.outs)
    factor_at = first_leaf + len(operands.leaves)
    clips: list[bool] = []

    def access(name: str, operand: int, **slot: int) -> None:
        address, kind, zero = operands.memory(operand, shifts)
        ends = rows[operand], lines[operand]
        program.append(
            operation(name, "op", b=zero, p0=address, p1=kind, p2=ends[0], p3=ends[1], **slot)
        )

    def load(item: Item) -> None:
        place = operands.leaves.index(item)
        slot = slots.take(item)
        if operands.views[place] is None:
            program.append(operation("CONSTANT", to=slot, a=1, p0=item.low))
        else:
            operand = first_leaf + place
            access("LOAD", operand, to=slot, a=int(inner[operand] == 0))

    written = {out.buffer for out in operands.outs}
    for leaf, view in zip(operands.leaves, operands.views):
        if view is not None and view.buffer in written:
            load(leaf)
    for op in operands.ops:
        chain = op.chain
        value = number_of(chain.args[1]) if chain.op in BINARY else None
        for arg in chain.args[:1] if value is not None else chain.args:
            if slots.of(arg) is None:
                load(arg)
        args = [slots.of(arg) for arg in chain.args]
        slots.release(op)
        slot = slots.take(op.to)
        along = False
        if chain.op in BY_CHANNEL:
            fixed = rows[factor_at], lines[factor_at], _moved(factor_at, shifts)
            along = inner[factor_at] == 1 and not any(fixed)
            factor_at += 1
        loaded = program[-1][:2] == [number("LOAD"), args[0]]
        if value is not None and chain.op == "MUL" and loaded and _is_real(operands, op.to, value):
            factors = operands.planner.emitter.put(np.full(16, value, np.float32))
            program.append(_times(slot, args[0], factors, 1))
        elif value is not None:
            program.append(operation(chain.op, to=slot, a=args[0], p0=value, p1=1))
        else:
            program.append(_operation(operands.planner, chain, slot, args, along))
        if op.to in operands.results:
            place = operands.results.index(op.to)
            stored = operands.outs[place].buffer
            low, high = (0, 255) if stored.type == "U8" else INT32
            access("STORE", place, a=slot, low=low, high=high)
            # A store adds the zero of its storage before it limits.
            clips.append(chain.args[0].high + stored.zero <= INT32[1])
            slots.release_result(op.to)
    return of_length(joined(program, clips), _MOST)


def _is_real(operands: _Operands, product: Item, value: int) -> bool:
    """Return whether a load that multiplies by a float32 gives this product with a number."""
    most = max(-product.low, product.high, abs(value))
    return operands.planner.library.has_reals and most < _MOST_REAL


def _times(slot: int, source: int | None, factors: int, scaled: int) -> list[Any]:
    """Factors without limits of their own."""
    low, high = INT32
    return operation("TIMES", to=slot, a=source, scaled=scaled, factors=factors, low=low, high=high)


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
        zeros = np.zeros(16, np.int32)
        bits = np.full(16, chain.params[0], np.int32)
        return operation(
            "ROUND_SHIFT", to=slot, a=args[0], p0=emitter.put(zeros), p2=emitter.put(bits)
        )
    if chain.op == "TABLE":
        entries = chain.params[0]
        dtype = np.int16 if max(-entries.min() - 1, entries.max()) < 1 << 15 else np.int32
        last = len(entries) - 1
        kind = number("S16" if dtype is np.int16 else "S32")
        table = emitter.put(entries.astype(dtype))
        return operation("TABLE", to=slot, a=args[0], p0=table, p1=last, p2=kind)
    if chain.op not in BY_CHANNEL:
        return operation(chain.op, to=slot, a=args[0], b=args[1])
    left = 0
    scaled = None
    if chain.op == "TO_EVEN":
        shifts = chain.params[0]
        arrays = [part.astype(np.int32) for part in (*to_even_parts(shifts), shifts)]
    else:
        multiplier, shift, _ = chain.params
        source = chain.args[0]
        factor = make_factor(multiplier, shift, np.array(source.low), np.array(source.high), 0)
        if factor is None:
            raise NoProgramError("more operands than slots, or factors of other axes")
        arrays = [factor.mult, factor.add, factor.shift]
        left = factor.left
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
        return _times(slot, args[0], factors, 1 + varies)
    if chain.op == "RESCALE":
        arrays[1] = shuffled(arrays[1], planner.library)
    p0, p1, p2 = (emitter.put(a) for a in arrays)
    return operation(chain.op, to=slot, a=args[0], b=left, p0=p0, p1=p1, p2=p2, p3=int(varies))


# Integers of 64 bits ------------------------------------------------------------------------------


def _emit_wide(
    planner: Planning, targets: Targets, leaves: list[Item], ops: list[Operation]
) -> list[View]:
    """A program over int64, which every operator has: see general.h.

    Raises:
        NoProgramError: too many values are needed at a time.
    """
    operands = _Operands.of(planner, targets, leaves, ops)
    repeated, near = operands.loops(_DIMS)
    sizes = {f"size_{axis}": size for axis, (size, _) in enumerate(near)}
    for shifts in positions(repeated):
        operands.write("wide", _wide_program(operands, near, shifts), **sizes)
    return operands.outs


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
        to = slots.take(op.to)
        name = f"WIDE_{chain.op}"
        program.append(operation(name, "wide_op", to=to, **places, **params))
    access("WIDE_STORE", 0, a=slots.of(operands.results[0]) or 0)
    return of_length(program, _WIDE_MOST)
