"""Programs of int64, which every elementwise operator has: see general.h."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compiler.ir.ty import bits
from compiler.targets.engine.plan import Address
from compiler.targets.engine.programs import (
    Operation,
    Slots,
    loops_of,
    of_length,
    order_of,
    touched,
    views_of,
    with_constants,
)
from compiler.targets.engine.steps import number, operation
from compiler.targets.engine.values import Item
from compiler.targets.engine.views import Shape, View, positions

if TYPE_CHECKING:
    from compiler.targets.engine.planner import Planner

_SLOTS = 32
_MOST = 256
_DIMS = 6


def emit_wide(
    planner: Planner, item: Item, leaves: list[Item], ops: list[Operation], target: View | None
) -> View:
    """A program over int64, which every operator has.

    Raises:
        NoProgramError: too many values are needed at a time.
    """
    emitter = planner.emitter
    leaves = with_constants(leaves, ops)
    out = target or emitter.allocate(item, order_of(leaves, item.shape))
    views, read = views_of(planner, leaves, item.shape)
    strides = [out.strides, *read]
    loops = loops_of(item, out, strides)
    loops = [(1, (0,) * len(strides))] * (_DIMS - len(loops)) + loops
    repeated, near = loops[:-_DIMS], loops[-_DIMS:]
    for shifts in positions(repeated):
        program = _wide_program(planner, item, leaves, views, ops, out, near, shifts)
        emitter.step(
            "wide",
            touched(planner, views),
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
    slots = Slots(ops, _SLOTS)
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
    return of_length(program, _MOST)
