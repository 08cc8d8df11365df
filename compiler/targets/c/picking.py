"""Kernels that unpack what they pick from a packed table, instead of the whole table.

    table[p]                       a row of 5,000, where p was computed: the table is unpacked first
    low + (bits of table at p)     here: up to four bytes of the packed table hold a number

An embedding of thousands of rows, or a table of 65,536 entries, needs no memory but its packed
bytes so, and a call that reads one entry does not unpack the others. Numbers that may lie in four
bytes are read in place by kernels that read fewer of them than the table has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from compiler.lir import index
from compiler.lir.nodes import Compute, PrimFunc
from compiler.lir.scalars import Bin, Buffer, Cast, IntImm, Load, Scalar
from compiler.lir.walk import loads, rewrite
from compiler.runtime.packed import Form
from compiler.targets.c.constants import PICKED_BITS, packed_form
from compiler.targets.c.program import Program, Step, Value

T = TypeVar("T")
_THREE_BYTES = 24


def picked(
    program: Program, kernels: Mapping[str, PrimFunc]
) -> tuple[Program, dict[str, PrimFunc]]:
    """The program with steps that read packed tables, and the kernels of these steps.

    Args:
        program: in order of execution.
        kernels: by name; other steps stay.
    """
    made: dict[str, PrimFunc] = {}
    steps: list[Step] = []
    for step in program.steps:
        func = kernels.get(step.callee)
        for place, value in enumerate(step.args if func is not None else ()):
            assert func is not None
            if value.data is None or value.place != "const":
                continue
            form = packed_form(value.data, ends=True)
            if form is None or not _picks(func, func.params[place], form):
                continue
            func = _reading(func, place, form)
            table = Value("uint8", func.params[place].shape, "const", packed=(value.data, form))
            step = replace(step, callee=func.name, args=_with(step.args, place, table))
            made[func.name] = func
        steps.append(step)
    return replace(program, steps=steps), made


def _picks(func: PrimFunc, table: Buffer, form: Form) -> bool:
    """True if a function reads a table at places that it computes from data."""
    if form.axis is not None or form.bits > PICKED_BITS or table.size * form.bits >= 1 << 31:
        return False
    largest = ((1 << form.bits) - 1) << form.shift
    if form.low < -(1 << 31) or max(form.low, 0) + largest >= 1 << 31:
        return False  # numbers are put together in int32
    reads = 0
    for block in func.blocks:
        if not isinstance(block, Compute):
            if table in block.ins:
                return False
            continue
        read = [node for node in loads(*block.roots) if node.buffer == table]
        if any(not list(loads(*node.index)) for node in read):
            return False
        reads += len(read) * math.prod(axis.extent for axis in (*block.axes, *block.raxes))
    if _latest_bit(form) + form.bits > _THREE_BYTES:
        return 0 < reads < table.size
    return reads > 0


def _latest_bit(form: Form) -> int:
    """Return the latest bit of a byte in which a number begins."""
    return 8 - math.gcd(form.bits, 8)


def _reading(func: PrimFunc, place: int, form: Form) -> PrimFunc:
    """The function over the packed bytes of a table."""
    table = func.params[place]
    last = form.nbytes(table.size) - 1
    mask = (1 << form.bits) - 1
    end = _latest_bit(form) + form.bits
    held = Buffer(table.name, (last + 1,), "uint8", table.scope)

    def unpacked(node: Scalar) -> Scalar | None:
        if not isinstance(node, Load) or node.buffer != table:
            return None
        at: Scalar = index.imm(0)
        for size, one in zip(table.shape, node.index, strict=True):
            wanted = one if one.dtype == "int32" else Cast("int32", one)
            at = index.binary("+", index.binary("*", at, index.imm(size)), wanted)
        if form.inner is not None:
            inner = index.binary("max", index.plus(at, -form.begin), index.imm(0))
            at = index.binary("min", inner, index.imm(form.inner - 1))
        bit = index.binary("*", at, index.imm(form.bits))
        byte = Bin("floordiv", bit, IntImm(8))
        first = Bin("floormod", bit, IntImm(8))

        def byte_at(place: int) -> Scalar:
            # The last number may lie in fewer bytes.
            behind = Bin("min", Bin("+", byte, IntImm(place)), IntImm(last))
            return Cast("int32", Load(held, (behind,)))

        number: Scalar = Cast("int32", Load(held, (byte,)))
        for place in range(1, -(-min(end, _THREE_BYTES) // 8)):
            number = Bin("|", number, Bin("<<", byte_at(place), IntImm(8 * place)))
        number = Bin(">>", number, first)
        if end > _THREE_BYTES:
            # Its low bits alone, shifted to where they belong, stay in int32.
            fourth = Bin("&", byte_at(3), IntImm((1 << (end - _THREE_BYTES)) - 1))
            behind = Bin("-", IntImm(_THREE_BYTES), first)
            number = Bin("|", number, Bin("<<", fourth, behind))
        number = Bin("&", number, IntImm(mask))
        if form.shift:
            number = Bin("<<", number, IntImm(form.shift))
        return Cast(table.dtype, Bin("+", number, IntImm(form.low)))

    return replace(
        func,
        name=f"{func.name}_picks{place}_{form.bits}_{form.shift}_{form.low}_{form.begin}".replace(
            "-", "m"
        ),
        params=_with(func.params, place, held),
        blocks=tuple(
            block.mapped(lambda root: rewrite(root, unpacked))
            if isinstance(block, Compute)
            else block
            for block in func.blocks
        ),
    )


def _with(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])
