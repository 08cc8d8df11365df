"""A PrimFunc as one C function over pointers.

    static NO_INLINE void name(const int8_t *restrict p0, int8_t *restrict o0)

Parameters first, then outputs, then temporaries; constants are arrays of the file. Nothing is
allocated and nothing is kept between calls, so a function may run in many threads at once.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace

from compiler.errors import CodegenError
from compiler.lir.affine import flat_index
from compiler.lir.nodes import Compute, Extern, PrimFunc
from compiler.lir.scalars import Axis, Buffer
from compiler.lir.walk import loads, with_axes
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.c_types import APART, c_type
from compiler.targets.c.lines import Lines
from compiler.targets.c.loop_nest import LoopNest
from compiler.targets.c.names import LOCALS, Names
from compiler.targets.c.product_form import SCRATCH, product_of
from compiler.targets.c.product_writer import ProductWriter
from compiler.targets.c.routines import c_routines

LARGEST_BUFFER = (1 << 31) - 1
"""Elements; positions are int32_t."""


def kernel_of(
    func: PrimFunc,
    symbol: str,
    constants: Mapping[str, str],
    use: Arithmetic,
    *,
    shared: Collection[str] = (),
    comment: str = "",
    linkage: str = f"static {APART} ",
) -> str:
    """The C function for a PrimFunc.

    Args:
        func: verified.
        symbol: its name in C.
        constants: C name of the array that holds each constant buffer, by buffer name.
        use: collects the C functions that are called.
        shared: parameters that some call lets share memory with the output.
        comment: lines for the reader, put before the definition.
        linkage: as it is, a function of its file that compilers write once: where it is written
            at its call they lose ``restrict``, and up to a seventh of the speed; or ``""`` for a
            function that other files may call, with its declaration in front.
    Raises:
        CodegenError: a dtype or a routine has no C form, or a buffer is too large.
    """
    names = Names((*constants.values(), symbol, *LOCALS))
    by_buffer = {b.name: names.fresh(b.name) for b in (*func.params, *func.outputs, *func.temps)}
    by_buffer.update(constants)
    declared = []
    for buffer in (*func.params, *func.outputs, *func.temps):
        _check_size(buffer, func)
        const = "const " if buffer.scope == "param" else ""
        if shared and (buffer.name in shared or buffer.scope == "out"):
            alone = ""
        else:
            alone = "restrict "
        declared.append(f"{const}{c_type(buffer.dtype)} *{alone}{by_buffer[buffer.name]}")
    head = head_of(f"{linkage}void {symbol}", declared)
    lines = Lines()
    for number, block in enumerate(func.blocks):
        # One scope a block: their loop variables and constants are their own.
        with lines.block("") if len(func.blocks) > 1 else nullcontext():
            if isinstance(block, Extern):
                c_routines.require(block.symbol)(block, by_buffer, use, lines)
                continue
            legal = _with_legal_axes(block, by_buffer)
            temps = {b.name: b for b in func.temps}
            given = {w: temps[f"{w}{number}"] for w in SCRATCH if f"{w}{number}" in temps}
            if given:
                product = product_of(legal, sum(b.nbytes for b in given.values()))
            else:
                product = None
            if product is not None:
                wanted = product.scratch()
                assert all(size <= given[word].size for word, (_, size) in wanted.items())
                scratch = {word: by_buffer[given[word].name] for word in wanted}
                ProductWriter(product, by_buffer, scratch, use, lines).write()
            else:
                LoopNest(legal, by_buffer, use, lines).write()
    body = "\n".join(lines.lines)
    words = set(re.findall(r"\w+", body))
    unread = [by_buffer[b.name] for b in func.params if by_buffer[b.name] not in words]
    body = "".join(f"    (void){name};\n" for name in unread) + body
    declaration = "" if linkage else f"{head};\n\n"
    return f"{declaration}{comment}{head}\n{{\n{body}\n}}\n"


def _check_size(buffer: Buffer, func: PrimFunc) -> None:
    if buffer.size > LARGEST_BUFFER:
        raise CodegenError(
            f"@{func.name}: buffer {buffer.name} has {buffer.size} elements",
            where=f"{buffer.dtype}{list(buffer.shape)}",
            fix=f"positions are 32-bit: at most {LARGEST_BUFFER}",
        )


def _with_legal_axes(block: Compute, names: Mapping[str, str]) -> Compute:
    """The block with loop variables that C accepts and that no buffer is called.

    Expressions mention the very axes of the block: one that came out of a larger view may hold an
    axis of that name and another extent.
    """
    scope = Names((*names.values(), *LOCALS))
    old = (*block.axes, *block.raxes)
    new = tuple(Axis(scope.fresh(axis.name), axis.extent) for axis in old)

    renamed = block.mapped(lambda root: with_axes(root, old, new))
    return replace(renamed, axes=new[: len(block.axes)], raxes=new[len(block.axes) :])


def head_of(start: str, parameters: Sequence[str]) -> str:
    """``start(a, b)``, a parameter a line where that is longer than a line."""
    whole = f"{start}({', '.join(parameters) or 'void'})"
    if len(whole) <= 100:
        return whole
    return f"{start}(\n    " + ",\n    ".join(parameters) + ")"


def may_share(func: PrimFunc) -> list[int]:
    """Numbers of the parameters whose memory the only output may take over, element by element.

    Each is as large as the output, of the same dtype, and read where the output is written and
    nowhere else, before it is written.
    """
    if len(func.outputs) != 1:
        return []
    (out,) = func.outputs
    if not isinstance(func.blocks[-1], Compute) or func.blocks[-1].out != out:
        return []
    return [
        number
        for number, param in enumerate(func.params)
        if (param.dtype, param.size) == (out.dtype, out.size)
        and all(_reads_in_place(block, param, out) for block in func.blocks)
    ]


def _reads_in_place(block: Compute | Extern, param: Buffer, out: Buffer) -> bool:
    if isinstance(block, Extern):
        return param not in block.ins
    reads = [node for node in loads(*block.roots) if node.buffer == param]
    if not reads or block.out != out:
        # Blocks before the last one write temporaries: the output is not touched yet.
        return block.out != out or not reads
    if block.raxes and any(node.buffer == param for node in loads(block.expr)):
        return False
    return all(flat_index(param, node.index) == block.position for node in reads)
