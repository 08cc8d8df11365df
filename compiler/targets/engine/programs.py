"""Share between programs of int32 and of int64: operators spelled out, slots, loops, strides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.lir.walk import post_order
from compiler.targets.engine.epilogue import to_even_parts
from compiler.targets.engine.steps import layout
from compiler.targets.engine.values import (
    INT32,
    Chain,
    Item,
    chain_bounds,
    constant,
    constants,
)
from compiler.targets.engine.views import NoProgramError, Shape, View

_FAST = ("ADD", "SUB", "MUL", "MIN", "MAX", "CLIP", "RESCALE", "SHIFT", "TO_EVEN", "TABLE")
"""Operators of the programs of int32."""
BINARY = ("ADD", "SUB", "MUL", "MIN", "MAX")
"""Micro operations of two slots, or of a slot and a number."""
_UNARY = ("RESCALE", "ROUND_SHIFT", "CLIP", "STORE", "LEFT", "TO_EVEN", "TIMES", "TABLE")


def of_length(program: list[list[Any]], most: int) -> list[list[Any]]:
    """The program.

    Raises:
        NoProgramError: it has more operations than the kernels allow.
    """
    if len(program) > most:
        raise NoProgramError("no operator of the fast programs, or too many operators")
    return program


def joined(program: list[list[Any]], clips: Sequence[bool]) -> list[list[Any]]:
    """The program of int32 with fewer passes.

    Factors, sums and products right behind a load become a part of it if nothing else reads what
    it loads; factors, numbers that are added and clips right before a store that nothing else
    reads become a part of that, and numbers right behind factors a part of these. So do sums
    behind factors, and clips behind factors or such sums.

    Args:
        clips: a clip may become a part of the store, for each of them.
    """
    fields, numbers, _ = layout()
    ops = [dict(zip(fields["op"], row)) for row in program]
    load, add, mul, clip, times, store = (
        numbers[name] for name in ("LOAD", "ADD", "MUL", "CLIP", "TIMES", "STORE")
    )
    made: list[dict[str, Any]] = []
    stores = iter(clips)
    for place, op in enumerate(ops):
        last = made[-1] if made else op
        kind = op["op"]
        slot = last["to"]
        alone = last["op"] in (load, times) and not _read(ops[place:], op, slot)
        loads = alone and last["op"] == load and not last["low"]
        if kind == add and op["p1"]:
            if alone and op["a"] == slot and last["scaled"] and (loads or last["op"] == times):
                added = "high" if loads else "p0"
                last |= {"to": op["to"], added: last[added] + op["p0"]}
                continue
        elif kind == times and loads and op["a"] == slot and not last["scaled"]:
            last |= {name: op[name] for name in ("to", "scaled", "factors")}
            continue
        elif (
            kind in (add, mul)
            and loads
            and not last["high"]
            and not op["p1"]
            and [op["a"], op["b"]].count(slot) == 1
        ):
            last |= {"to": op["to"], "low": kind, "high": op["a"] + op["b"] - slot}
            continue
        clip_joins = kind == store and next(stores)
        while kind == store and last["to"] == op["a"] and not _read(ops[place:], op, op["a"]):
            if last["op"] == clip and clip_joins:
                op["low"] = max(op["low"], last["p0"] + op["b"])
                op["high"] = min(op["high"], last["p1"] + op["b"])
            elif last["op"] == add and last["p1"] and not op["scaled"]:
                op["b"] += last["p0"]
            elif last["op"] == times and not op["scaled"]:
                op |= {"b": op["b"] + last["p0"], **{n: last[n] for n in ("scaled", "factors")}}
            else:
                break
            clip_joins = False  # of the last operator only
            op["a"] = made.pop()["a"]
            last = made[-1]
        made.append(op)
    return [list(op.values()) for op in _with_ends(made)]


def _with_ends(ops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Factors with the sums and clips right behind them, if nothing else reads their results."""
    _, numbers, _ = layout()
    add, clip, times = (numbers[name] for name in ("ADD", "CLIP", "TIMES"))
    made: list[dict[str, Any]] = []
    for place, op in enumerate(ops):
        last = made[-1] if made else op
        slot = last["to"]
        free = (last["low"], last["high"]) == INT32
        if last["op"] == times and free and not _read(ops[place:], op, slot):
            if op["op"] == clip and op["a"] == slot:
                last |= {"to": op["to"], "low": op["p0"], "high": op["p1"]}
                continue
            slots = [op["a"], op["b"]]
            if op["op"] == add and not op["p1"] and not last["p1"] and slots.count(slot) == 1:
                last |= {"to": op["to"], "b": sum(slots) - slot, "p1": 1}
                continue
        made.append(op)
    return made


def _read(ops: list[dict[str, Any]], first: dict[str, Any], slot: int) -> bool:
    """Return whether an operation behind the first one reads a slot before it is written again."""
    _, numbers, _ = layout()
    unary, binary = ([numbers[name] for name in names] for names in (_UNARY, BINARY))
    for op in ops:
        alone = op["op"] in unary or (op["op"] in binary and op["p1"])
        reads = {op["a"]} if alone else {op["a"], op["b"]}
        if op["op"] in (numbers["LOAD"], numbers["CONSTANT"]):
            reads = {op["high"]} if op["low"] else set()
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
        NoProgramError: such programs do not have it.
    """
    made: list[Operation] = []
    chain = op.chain
    assert chain is not None

    def do(name: str, *args: Item, params: tuple[Any, ...] = ()) -> Item:
        bounds = chain_bounds(name, args, params)
        made.append(Operation(Item(op.shape, *bounds), Chain(name, args, params)))
        return made[-1].to

    args = chain.args
    name = chain.op
    if width == 64:
        if name == "TABLE":
            raise NoProgramError("no programs of int64 have tables")
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


def simplified(ops: list[Operation], results: Collection[Item]) -> list[Operation]:
    """The same results by fewer operators: numbers added one after the other are one, and stand in
    front of a clip; what bounds decide is left out."""
    same: dict[Item, Item] = {}
    by: dict[Item, Chain] = {}
    read = Counter((*results, *(arg for op in ops for arg in op.chain.args)))
    for op in ops:
        args = tuple(same.get(arg, arg) for arg in op.chain.args)
        params = op.chain.params
        if op.chain.op in ("ADD", "MUL", "MIN", "MAX") and number_of(args[0]) is not None:
            args = args[::-1]
        chain = Chain(op.chain.op, args, params)
        number = number_of(args[-1])
        if chain.op in ("ADD", "SUB") and number is not None and args[0].data is None:
            added = _wrapped(number if chain.op == "ADD" else -number)
            inner = args[0]
            under = by.get(inner) if read[inner] == 1 else None
            if under is not None and under.op == "ADD" and number_of(under.args[1]) is not None:
                added = _wrapped(added + under.args[1].low)
                inner = under.args[0]
                under = by.get(inner) if read[inner] == 1 else None
            chain = Chain("ADD", (inner, constant(added)))
            if under is not None and under.op == "CLIP":
                low, high = under.args[0].bounds
                moved = Item(inner.shape, low + added, high + added)
                if moved.fits_int32:
                    by[moved] = Chain("ADD", (under.args[0], constant(added)))
                    read[moved] = 1
                    chain = Chain("CLIP", (moved,), tuple(end + added for end in under.params))
        inner = chain.args[0]
        if inner.shape == op.to.shape and op.to not in results and _does_nothing(chain):
            same[op.to] = inner
            read[inner] += read[op.to] - 1
        else:
            by[op.to] = chain
    return _needed(results, by)


def _wrapped(number: int) -> int:
    """The int64 that gives the same sums, which wrap."""
    return (number + 2**63) % 2**64 - 2**63


def number_of(item: Item) -> int | None:
    """The number that a constant is everywhere."""
    if item.data is not None and item.data.size == 1:
        return item.low
    return None


def _does_nothing(chain: Chain) -> bool:
    """Return whether bounds say that an operator gives its first operand."""
    number, (low, high) = number_of(chain.args[-1]), chain.args[0].bounds
    if chain.op == "CLIP":
        return bool(chain.params[0] <= low and high <= chain.params[1])
    if number is None or chain.args[0].data is not None:
        return False
    return {"ADD": number == 0, "MAX": number <= low, "MIN": number >= high}.get(chain.op, False)


def _needed(results: Collection[Item], by: dict[Item, Chain]) -> list[Operation]:
    """The operators behind results, in the order of execution."""
    order = post_order(*results, operands_of=lambda item: by[item].args if item in by else ())
    return [Operation(item, by[item]) for item in order if item in by]


def shift_axis(amounts: Item, shape: Shape) -> int | None:
    """The axis along which constant shifts of at most 31 bits differ."""
    if amounts.data is None or not 0 <= amounts.low <= amounts.high <= 31:
        return None
    sizes = (1,) * (len(shape) - amounts.data.ndim) + amounts.data.shape
    axes = [axis for axis, size in enumerate(sizes) if size != 1]
    if len(axes) == 1:
        return axes[0]
    return None


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
    """Operands in slots; a slot is free again behind the last reader."""

    def __init__(self, ops: list[Operation], count: int) -> None:
        self._last = {arg: op for op in ops for arg in op.chain.args}
        self._held: dict[Item, int] = {}
        self._count = count

    def of(self, item: Item) -> int | None:
        """Return the slot of an operand."""
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

    def release_result(self, item: Item) -> None:
        """Free the slot of what is stored, where nothing reads it."""
        if item not in self._last:
            del self._held[item]
