"""Choose the innermost loop of a block, and the loops that run as one.

Compilers vectorise the innermost loop when neighbouring iterations touch neighbouring elements. A
convolution walks its input along x, so its innermost loop is the output's x with one accumulator
per x; a dense layer walks along the summed features, so its innermost loop is the sum.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from compiler.lir.affine import Affine, flat_index
from compiler.lir.nodes import Compute
from compiler.lir.scalars import Axis, Scalar
from compiler.lir.walk import loads
from compiler.targets.c.scalar_printer import axes_in

_NEAR = 4
"""A step up to this many elements still shares cache lines and vector loads."""
_SHORTEST_ROW = 4
"""Fewer accumulators than this are not worth an array."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop variable and how often it runs."""

    name: str
    extent: int


@dataclass(frozen=True, slots=True)
class Order:
    """The loops of a block after joining, and the positions of its loads in them.

    Attributes:
        axes: outermost first.
        raxes: outermost first.
        positions: by id of the load; "out" is the position that is written.
    """

    axes: tuple[Loop, ...]
    raxes: tuple[Loop, ...]
    positions: Mapping[int | str, Affine]


def joined_order(
    block: Compute,
    roots: Sequence[Scalar],
    raxes: Sequence[Axis],
    fixed: Collection[str] = (),
    names: Collection[str] = (),
) -> Order:
    """The loops of a block; neighbours that walk every buffer as one would are one.

    Args:
        roots: expressions that are computed in the loops.
        raxes: of the block, in the order in which they are walked.
        fixed: axes that stay as they are, beside those that anything but a position mentions.
        names: that a new loop must not have, beside those of the axes.
    """
    positions: dict[int | str, Affine] = {"out": block.position}
    kept = {*fixed, *axes_in(*roots)}
    for node in loads(*roots):
        position = flat_index(node.buffer, node.index)
        if position is None:
            kept |= axes_in(*node.index)
        else:
            positions[id(node)] = position
    axes, inner = (
        tuple(Loop(axis.name, axis.extent) for axis in side if axis.extent != 1)
        for side in (block.axes, raxes)
    )
    taken = {*names, *(axis.name for axis in (*block.axes, *raxes))}
    return _join_loops(Order(axes, inner, positions), kept, taken)


def _join_loops(order: Order, fixed: set[str], taken: set[str]) -> Order:
    """Join neighbours of an order, unless ``fixed`` holds one, under names that are not taken."""
    for which in ("axes", "raxes"):
        loops: list[Loop] = []
        for loop in reversed(getattr(order, which)):
            inner = loops[-1] if loops else None
            if (
                inner is None
                or {loop.name, inner.name} & fixed
                or not _joinable(order, loop, inner)
            ):
                loops.append(loop)
                continue
            name = f"{loop.name}_{inner.name}"
            while name in taken:
                name += "_"
            loops[-1] = Loop(name, loop.extent * inner.extent)
            positions = {
                load: position.with_axes_joined(loop.name, inner.name, name)
                for load, position in order.positions.items()
            }
            order = replace(order, positions=positions)
        joined = tuple(reversed(loops))
        if which == "axes":
            order = replace(order, axes=joined)
        else:
            order = replace(order, raxes=joined)
    return order


def _joinable(order: Order, outer: Loop, inner: Loop) -> bool:
    """Return whether the outer loop goes on where the inner one ends, in all positions."""
    terms = (position.terms for position in order.positions.values())
    return all(t.get(outer.name, 0) == t.get(inner.name, 0) * inner.extent for t in terms)


def row_of(order: Order, loads: Sequence[int]) -> Loop | None:
    """The axis along which a row of accumulators is kept; None where the sum runs innermost.

    Args:
        order: joined.
        loads: ids of the loads in the reduction.
    """
    if not order.axes or not order.raxes:
        return None
    row = order.axes[-1]
    innermost = order.raxes[-1]
    if row.extent < _SHORTEST_ROW:
        return None
    as_row = sum(_distance(order.positions[load], row.name) for load in loads)
    as_sum = sum(_distance(order.positions[load], innermost.name) for load in loads)
    if as_row == as_sum:
        if row.extent >= innermost.extent:
            return row
        return None
    if as_row < as_sum:
        return row
    return None


def _distance(position: Affine, name: str) -> int:
    """Return the cost of a loop's walk over a buffer: 0 stays, 1 goes to the next element, more
    jumps."""
    step = abs(position.terms.get(name, 0))
    if step < 2:
        return step
    if step <= _NEAR:
        return 2
    return 8
