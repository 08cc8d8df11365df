"""Epilogues: elementwise blocks join the block whose result they finish.

    before                                          after
    t0[i, j] = sum(0; k<8) p0[i, k] * p1[k, j]      o0[i, j] = sum(0; k<8) p0[i, k] * p1[k, j]
    o0[i, j] = max(t0[i, j], 0)                         |> max(acc, 0)

A block without reduction is joined when it alone reads a temp, at its own point, everywhere. The
joined block stands where the reader stood: what it reads has been written by then. A value that
takes work and is read more than once stays stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from compiler.lir.builder import RECOMPUTED_COST, at_own_point
from compiler.lir.nodes import Block, Compute, Extern, PrimFunc, reads_of, writes_of
from compiler.lir.scalars import Acc, Buffer, Load, Scalar
from compiler.lir.walk import loads, post_order, rewrite, with_axes


def join_epilogues(func: PrimFunc) -> PrimFunc:
    """The function with epilogues in ``post`` and no temp that only hands a value on."""
    readers = Counter(buffer for block in func.blocks for buffer in reads_of(block))
    places: dict[Buffer, int] = {}
    blocks: list[Block | None] = []
    for block in func.blocks:
        joined = block
        if isinstance(block, Compute) and not block.raxes:
            for temp in _own_point_reads(block):
                place = places.get(temp)
                writer = None if place is None else blocks[place]
                if place is None or writer is None or readers[temp] != 1:
                    continue
                made = _joined(block, temp, writer)
                if made is not None:
                    blocks[place] = None
                    joined = made
                    break
        for out in writes_of(joined):
            places[out] = len(blocks)
        blocks.append(joined)
    return replace(func, blocks=tuple(block for block in blocks if block is not None))


def _own_point_reads(block: Compute) -> list[Buffer]:
    """Temps that the block reads at its own point only, all axes in order."""
    own: dict[Buffer, bool] = {}
    for load in loads(block.expr):
        if load.buffer.scope == "temp":
            fits = own.get(load.buffer, True)
            own[load.buffer] = fits and at_own_point(load.index, block.axes)
    extents = tuple(axis.extent for axis in block.axes)
    return [buffer for buffer, fits in own.items() if fits and buffer.shape == extents]


def _joined(reader: Compute, temp: Buffer, writer: Block) -> Block | None:
    """One block in place of two; None where they have to stay apart."""
    if isinstance(writer, Extern):
        return _renamed_result(reader, temp, writer)
    if not writer.raxes and not _copies(reader, temp):
        # Elementwise after elementwise was stored on purpose.
        return None
    stored = writer.stored
    if writer.value.operations > RECOMPUTED_COST and _occurrences(reader.expr, temp) > 1:
        return None
    expr = with_axes(reader.expr, reader.axes, writer.out_index)

    def change(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.buffer == temp:
            return stored
        return None

    end = rewrite(expr, change)
    out_index = tuple(with_axes(i, reader.axes, writer.out_index) for i in reader.out_index)
    if not writer.raxes:
        return replace(writer, out=reader.out, out_index=out_index, expr=end)
    post = None if isinstance(end, Acc) else end
    return replace(writer, out=reader.out, out_index=out_index, post=post)


def _renamed_result(reader: Compute, temp: Buffer, writer: Extern) -> Block | None:
    if not _copies(reader, temp) or reader.out_index != reader.axes:
        return None
    outs = tuple(reader.out if out == temp else out for out in writer.outs)
    return replace(writer, outs=outs)


def _copies(block: Compute, temp: Buffer) -> bool:
    return isinstance(block.expr, Load) and block.expr.buffer == temp


def _occurrences(expr: Scalar, temp: Buffer) -> int:
    """Count the reads of the temp in the expression written out."""
    counts: dict[int, int] = {}
    for node in post_order(expr):
        own = isinstance(node, Load) and node.buffer == temp
        counts[id(node)] = own + sum(counts[id(operand)] for operand in node.operands())
    return counts[id(expr)]


def renumbered(func: PrimFunc) -> PrimFunc:
    """Temps and constants that are used only, numbered in order of their first use."""
    used: dict[Buffer, None] = {}
    for block in func.blocks:
        used.update(dict.fromkeys(reads_of(block)))
        used.update(dict.fromkeys(writes_of(block)))
    contents = dict(func.consts)
    new: dict[Buffer, Buffer] = {}
    for scope, letter in (("temp", "t"), ("const", "c")):
        mine = [buffer for buffer in used if buffer.scope == scope]
        new.update({b: replace(b, name=f"{letter}{k}") for k, b in enumerate(mine)})
    return replace(
        func,
        temps=tuple(b for b in new.values() if b.scope == "temp"),
        consts=tuple((n, contents[b]) for b, n in new.items() if b.scope == "const"),
        blocks=tuple(_with_buffers(block, new) for block in func.blocks),
    )


def _with_buffers(block: Block, new: Mapping[Buffer, Buffer]) -> Block:
    if isinstance(block, Extern):
        return replace(
            block,
            ins=tuple(new.get(b, b) for b in block.ins),
            outs=tuple(new.get(b, b) for b in block.outs),
        )

    def change(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.buffer in new:
            return Load(new[node.buffer], node.index)
        return None

    renamed = block.mapped(lambda root: rewrite(root, change))
    return replace(renamed, out=new.get(block.out, block.out))
