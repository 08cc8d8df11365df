"""Kernels that compute an element where a sum reads it, instead of a tensor of their own.

    %1 = cast(%0, "int32") * 125        int32, four times as large as %0
    %2 = nn.global_avg_pool2d(%1)       reads each element once

FuseOps puts nothing in front of a reduction, as Relay's does not. Here the first kernel becomes a
part of the second where that computes nothing twice: the tensor between them needs no memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from compiler.lir.affine import flat_index
from compiler.lir.nodes import Compute, PrimFunc, reads_of
from compiler.lir.scalars import Buffer, Load, Scalar
from compiler.lir.walk import loads, rewrite, with_axes
from compiler.targets.c.program import Program, Step

T = TypeVar("T")


def joined(
    program: Program, kernels: Mapping[str, PrimFunc]
) -> tuple[Program, dict[str, PrimFunc]]:
    """The program with fewer steps, and the kernels that it has now and had not.

    Args:
        program: in order of execution.
        kernels: by name; other steps stay.
    """
    reads = Counter(value for step in program.steps for value in step.args)
    makers = {step.outs[0]: n for n, step in enumerate(program.steps) if len(step.outs) == 1}
    steps: list[Step | None] = list(program.steps)
    made: dict[str, PrimFunc] = {}
    for number, step in enumerate(program.steps):
        for value in step.args if step.callee in kernels else ():
            maker = steps[makers[value]] if value in makers else None
            if maker is None or maker.callee not in kernels:
                continue
            if reads[value] != 1 or value in program.results:
                continue
            found = _joined(kernels[maker.callee], kernels[step.callee], step.args.index(value))
            if found is None:
                continue
            made[found.name] = found
            args = (*_without(step.args, value), *maker.args)
            comment = ", ".join(dict.fromkeys(filter(None, (maker.comment, step.comment))))
            steps[makers[value]] = None
            steps[number] = replace(step, callee=found.name, args=args, comment=comment)
            break
    return replace(program, steps=[step for step in steps if step is not None]), made


def _joined(first: PrimFunc, second: PrimFunc, place: int) -> PrimFunc | None:
    """Both as one; None where an element would be computed twice, or not as it is read."""
    param = second.params[place]
    if len(first.blocks) != 1 or first.temps or param.shape != first.outputs[0].shape:
        return None
    (source,) = first.blocks
    if not isinstance(source, Compute) or source.raxes or source.out_index != source.axes:
        return None
    readers = [block for block in second.blocks if param in reads_of(block)]
    reader = readers[0] if len(readers) == 1 else None
    if not isinstance(reader, Compute):
        return None
    found = [node for node in loads(reader.expr) if node.buffer == param]
    later = () if reader.post is None else loads(reader.post)
    if len(found) != 1 or any(node.buffer == param for node in later):
        return None
    if not reader.raxes or not _once(reader, found[0]):
        return None

    def renamed(buffer: Buffer) -> Buffer:
        return replace(buffer, name=f"{buffer.name}_{first.name}")

    def own(node: Scalar) -> Scalar | None:
        if isinstance(node, Load):
            return Load(renamed(node.buffer), node.index)
        return None

    value = rewrite(source.expr, own)

    def read(node: Scalar) -> Scalar | None:
        if isinstance(node, Load) and node.buffer == param:
            return with_axes(value, source.axes, node.index)
        return None

    block = replace(reader, expr=rewrite(reader.expr, read))
    return replace(
        second,
        name=f"{second.name}_of_{first.name}" + (f"_{place}" if place else ""),
        params=(*_without(second.params, param), *map(renamed, first.params)),
        consts=(*second.consts, *((renamed(buffer), array) for buffer, array in first.consts)),
        blocks=tuple(block if old is reader else old for old in second.blocks),
    )


def _once(block: Compute, load: Load) -> bool:
    """Return whether the block reads each element of the buffer at one point."""
    position = flat_index(load.buffer, load.index)
    if position is None:
        return False
    axes = {axis.name: axis.extent for axis in (*block.axes, *block.raxes) if axis.extent != 1}
    steps = sorted((step, axes.get(name, 1)) for name, step in position.terms.items())
    span = 1
    for step, extent in steps:
        if step != span:
            return False
        span *= extent
    return span == load.buffer.size == math.prod(axes.values())


def _without(items: tuple[T, ...], item: T) -> tuple[T, ...]:
    return tuple(other for other in items if other is not item)
