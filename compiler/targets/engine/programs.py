"""What programs of int32 and of int64 share: operators spelled out, slots, loops, strides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.targets.engine.epilogue import to_even_parts
from compiler.targets.engine.plan import Planning
from compiler.targets.engine.steps import layout
from compiler.targets.engine.values import (
    Chain,
    Item,
    chain_bounds,
    constant,
    constants,
)
from compiler.targets.engine.views import NoProgramError, Shape, View, merged_axes

Array = NDArray[Any]

_FAST = ("ADD", "SUB", "MUL", "MIN", "MAX", "CLIP", "RESCALE", "SHIFT", "TO_EVEN")
"""Operators of the programs of int32."""
_UNARY = ("RESCALE", "ROUND_SHIFT", "CLIP", "STORE", "LEFT", "TO_EVEN", "TIMES")


def of_length(program: list[list[Any]], most: int) -> list[list[Any]]:
    """The program.

    Raises:
        NoProgramError: it has more operations than the kernels allow.
    """
    if len(program) > most:
        raise NoProgramError("no operator of the fast programs, or too many operators")
    return program


def joined(program: list[list[Any]], clips: bool) -> list[list[Any]]:
    """The program of int32 with fewer passes.

    Factors, sums and products right behind a load become a part of it if nothing else reads what
    it loads; factors and clips right before the store become a part of that.

    Args:
        clips: a clip may become a part of the store.
    """
    fields, numbers, _ = layout()
    ops = [dict(zip(fields["op"], row)) for row in program]
    load, add, mul, clip, times, store = (
        numbers[name] for name in ("LOAD", "ADD", "MUL", "CLIP", "TIMES", "STORE")
    )
    made: list[dict[str, Any]] = []
    for place, op in enumerate(ops):
        last = made[-1] if made else op
        kind, slot = op["op"], last["to"]
        if last["op"] == load and not last["low"] and not _read(ops[place:], op, slot):
            if kind == times and op["a"] == slot and not last["scaled"]:
                last |= {name: op[name] for name in ("to", "scaled", "factors")}
                continue
            if kind in (add, mul) and (op["a"] == slot) != (op["b"] == slot):
                other = op["b"] if op["a"] == slot else op["a"]
                last |= {"to": op["to"], "low": kind, "high": other}
                continue
        if clips and (kind, last["op"], last["to"]) == (store, clip, op["a"]):
            op["low"] = max(op["low"], last["p0"] + op["b"])
            op["high"] = min(op["high"], last["p1"] + op["b"])
            last = made[-2]
            op["a"] = made.pop()["a"]
        if (kind, last["op"], last["to"]) == (store, times, op["a"]):
            op |= {name: last[name] for name in ("a", "scaled", "factors")}
            made.pop()
        made.append(op)
    return [list(op.values()) for op in made]


def _read(ops: list[dict[str, Any]], first: dict[str, Any], slot: int) -> bool:
    """Whether an operation behind the first one reads a slot before it is written again."""
    _, numbers, _ = layout()
    unary = [numbers[name] for name in _UNARY]
    for op in ops:
        reads = {op["a"]} if op["op"] in unary else {op["a"], op["b"]}
        if op["op"] in (numbers["LOAD"], numbers["CONSTANT"]):
            reads = set()
        if op is not first and slot in reads:
            return True
        if op["op"] != numbers["STORE"] and op["to"] == slot:
            return False
    return False


def with_constants(leaves: list[Item], ops: list[Operation]) -> list[Item]:
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
            axis = chain.params[1]
            shifts = chain.params[0].reshape([-1 if a == axis else 1 for a in range(len(op.shape))])
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


def order_of(leaves: list[Item], shape: Shape) -> Shape | None:
    """The order of axes of the first operand that is as large as the result."""
    for leaf in leaves:
        if leaf.view is not None and leaf.data is None and leaf.shape == shape:
            return leaf.view.axis_order
    return None


def broadcast_strides(view: View, shape: Shape) -> Shape:
    """Strides of a view under a shape it broadcasts to."""
    missing = len(shape) - len(view.shape)
    made = [0] * missing
    for axis, size in enumerate(view.shape):
        made.append(view.strides[axis] if size == shape[missing + axis] and size > 1 else 0)
    return tuple(made)


class Slots:
    """Which operand is in which slot; a slot is free again behind the last reader."""

    def __init__(self, ops: list[Operation], count: int) -> None:
        self._last = {arg: op for op in ops for arg in op.chain.args}
        self._held: dict[Item, int] = {}
        self._count = count

    def of(self, item: Item) -> int | None:
        """Where an operand is."""
        return self._held.get(item)

    def take(self, item: Item) -> int:
        """A free slot for an operand.

        Raises:
            NoProgramError: there is none.
        """
        for slot in range(self._count):
            if slot not in self._held.values():
                self._held[item] = slot
                return slot
        raise NoProgramError("more operands than slots, or factors of other axes")

    def release(self, op: Operation) -> None:
        """Free the slots of operands that nothing behind ``op`` reads."""
        for item in [i for i in self._held if self._last.get(i) is op]:
            del self._held[item]


def views_of(
    planner: Planning, leaves: list[Item], shape: Shape
) -> tuple[list[View | None], list[Shape]]:
    """Operands in memory, and their strides along ``shape``; None and 0 for a constant number."""
    views: list[View | None] = []
    strides: list[Shape] = []
    for leaf in leaves:
        view = None if leaf.data is not None and leaf.data.size == 1 else planner.materialise(leaf)
        views.append(view)
        strides.append(broadcast_strides(view, shape) if view else (0,) * len(shape))
    return views, strides


def loops_of(item: Item, out: View, strides: list[Shape]) -> list[tuple[int, Shape]]:
    """Sizes and strides of the axes in the order of the result, merged where they can be."""
    order = out.axis_order
    sizes = tuple(item.shape[a] for a in order)
    return merged_axes(sizes, [tuple(s[a] for a in order) for s in strides])
