"""Blocks that are sums of products of narrow integers, in the three forms that C compilers turn
into fast code. ``product_writer.py`` writes them.

Matrix form: what one sum reads is laid out as a row of int16, for rows of the data and columns of
the weight alike, padding included; then every sum is a dot product of two rows, eight at a time.
Compilers know dot products of int16 (pmaddwd, smlal); Arm's DSP instructions are called by name.

    for (x …) rows[x][k] = p0[…];                       a tile of rows, of one or more lines
    for (o …; o += 4) {
        columns[0 … 3][k] = p1[…];                      four columns
        for (x …; x += 2) {
            sums[x … x + 1][o … o + 3] = rows[x … x + 1] · columns[0 … 3];
        }
    }
    for (x …) for (o …) out[…] = …;                     the epilogue

Row form: a single row, and a weight whose columns lie one behind the other.

    row[k] = p0[…];
    for (o …; o += 4) sums[o … o + 3] = row · p1[o … o + 3];
    for (o …) out[…] = …;

Taps form: a depthwise convolution, whose innermost loop is the channel. The lines of the image that
one line of the result reads are copied with their padding; all taps are one expression.

    for (i …) for (x …) rows[i][x][c] = p0[…];
    for (x …) {
        for (c …) sums[c] = rows[0][x][c] * p1[0][c] + rows[0][x + 1][c] * p1[1][c] + …;
        for (c …) out[…] = …;
    }

Scratch memory is a temporary of the kernel, so that the memory plan knows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from compiler.lir.affine import Affine, flat_index
from compiler.lir.nodes import Compute, PrimFunc
from compiler.lir.ranges import ValueRanges, is_whole
from compiler.lir.scalars import Bin, Buffer, Cast, IntImm, Load, Scalar
from compiler.lir.walk import loads
from compiler.targets.c.accumulator import accumulator_of
from compiler.targets.c.guards import split_guards
from compiler.targets.c.loop_order import Loop, Order, joined_order

LEAST_SCRATCH = 1 << 12
MOST_SCRATCH = 1 << 16
"""Bytes of rows, columns and sums of a tile; the most is what a second-level cache holds."""
COLUMNS = 4
"""Columns of sums at a time."""
_ROWS = 12
"""Rows of a tile that make up for a copied column, where ``MOST_SCRATCH`` allows them."""
_FEWEST = 4
"""Rows or columns below which dot products are not worth the copies."""
_SHORTEST = 8
"""Products a sum."""
_MOST_TAPS = 49
SCRATCH = ("rows", "columns", "sums")
"""Words that names of temporaries begin with."""
_NARROW = ("int8", "uint8", "int16")


@dataclass(frozen=True, slots=True)
class Operand:
    """One factor: what it reads, where (by axes), and under which conditions it is not 0."""

    load: Load
    position: Affine
    conditions: tuple[Affine, ...]

    @property
    def axes(self) -> set[str]:
        """Axes that it depends on."""
        return self.guards.union(self.position.terms)

    @property
    def guards(self) -> set[str]:
        """Axes that its conditions depend on."""
        return set().union(*(c.terms for c in self.conditions))


def turns_of(loops: Iterable[Loop]) -> int:
    """Count the turns of loops within each other."""
    return math.prod(loop.extent for loop in loops)


@dataclass(frozen=True, slots=True)
class Product:
    """A block as a sum of products.

    Attributes:
        block: the block.
        order: its loops, joined.
        data: the factor that is padded, or that does not depend on the innermost axis.
        weight: the other one.
        ranges: for the expressions of what is stored.
        row: the innermost loop along which sums share the weight; of one turn in row form.
        line: such a loop around it, where there is one.
        form: matrix, row or taps.
        budget: bytes that its scratch memory should not exceed.
    """

    block: Compute
    order: Order
    data: Operand
    weight: Operand
    ranges: ValueRanges
    row: Loop
    line: Loop | None
    form: Literal["matrix", "row", "taps"]
    budget: int = MOST_SCRATCH

    @property
    def column(self) -> Loop:
        """The innermost loop of the result."""
        return self.order.axes[-1]

    @property
    def count(self) -> int:
        """Products of a sum."""
        return turns_of(self.order.raxes)

    @property
    def depth(self) -> int:
        """int16 values a row: the products of a sum, a few zeros behind them."""
        count = self.count
        wide = -(-count // 16) * 16
        if wide * 100 <= count * 115:
            return wide
        return -(-count // 8) * 8

    @property
    def columns(self) -> int:
        """Sums a row: the columns, a few more behind them."""
        return -(-self.column.extent // COLUMNS) * COLUMNS

    @property
    def tile(self) -> tuple[Loop, int]:
        """The loop that tiles divide, and how many of its turns one has: lines, where two fit."""
        row = 2 * self.depth + 4 * self.columns
        held = max(LEAST_SCRATCH, self.budget) - 2 * COLUMNS * self.depth
        most = max(_FEWEST, min(_ROWS, MOST_SCRATCH // row), held // row)
        loop = self.row
        if self.line is not None and most >= 2 * loop.extent:
            most = most // loop.extent
            loop = self.line
        tiles = -(-loop.extent // most)
        turns = -(-loop.extent // tiles)
        if loop == self.row:  # sums are computed for two rows at once
            near = (*range(turns, 2, -1), *range(turns + 1, loop.extent + 1))
            turns = next(turn for turn in near if loop.extent % turn != 1)
        return loop, turns

    @property
    def inner(self) -> set[str]:
        """Names of the loops of a sum."""
        return {loop.name for loop in self.order.raxes}

    def run(self, operand: Operand) -> tuple[Loop, ...]:
        """The innermost loops of a sum along which a factor is read as it lies in memory."""
        found: tuple[Loop, ...] = ()
        for loop in reversed(self.order.raxes):
            step = operand.position.terms.get(loop.name)
            if step != turns_of(found) or loop.name in operand.guards:
                break
            found = (loop, *found)
        return found

    @property
    def widens(self) -> bool:
        """Return whether both factors are copied by runs, with an order of their own in each
        four."""
        runs = {turns_of(self.run(self.data)), turns_of(self.run(self.weight))}
        narrow = all(side.load.buffer.dtype != "int16" for side in (self.data, self.weight))
        return (
            narrow and min(runs) >= _SHORTEST and (len(runs) == 1 or not any(r % 4 for r in runs))
        )

    @property
    def rows_at_once(self) -> int:
        """Rows of a tile."""
        loop, turns = self.tile
        if loop == self.row:
            return turns
        return turns * self.row.extent

    def scratch(self) -> dict[str, tuple[str, int]]:
        """dtype and elements of the temporaries, by the words that their names begin with."""
        if self.form == "row":
            return {"rows": ("int16", self.count), "sums": ("int32", self.column.extent)}
        if self.form == "taps":
            lines = math.prod(loop.extent for loop in self.order.raxes if loop != self.along)
            size = lines * self.width * self.column.extent
            return {
                "rows": (self.data.load.buffer.dtype, size),
                "sums": ("int32", self.column.extent),
            }
        return {
            "rows": ("int16", self.rows_at_once * self.depth),
            "columns": ("int16", COLUMNS * self.depth),
            "sums": ("int32", self.rows_at_once * self.columns),
        }

    # Of the taps form.

    @property
    def along(self) -> Loop | None:
        """The reduction loop that walks the line of the image."""
        both = (
            loop
            for loop in self.order.raxes
            if any({loop.name, self.row.name} <= set(c.terms) for c in self.data.conditions)
        )
        # Without padding: the loop with the smaller step.
        terms = self.data.position.terms
        nearest = min(self.order.raxes, key=lambda loop: terms.get(loop.name, 0), default=None)
        return next(both, nearest)

    @property
    def steps(self) -> tuple[int, int]:
        """Pixels of a line that one step of the row, and of the loop along it, goes."""
        terms = self.data.position.terms
        along = self.along
        row = terms[self.row.name]
        tap = terms.get(along.name, 0) if along is not None else 0
        unit = math.gcd(row, tap)
        return row // unit, tap // unit

    @property
    def width(self) -> int:
        """Pixels of a line with its padding."""
        row, tap = self.steps
        along = self.along
        return (self.row.extent - 1) * row + (along.extent - 1 if along else 0) * tap + 1


def with_scratch(func: PrimFunc, budget: int = MOST_SCRATCH) -> PrimFunc:
    """The function with the temporaries that its products need.

    Args:
        budget: bytes that each should not exceed; few rows of a tile are taken anyway.
    """
    temps = list(func.temps)
    for number, block in enumerate(func.blocks):
        if isinstance(block, Compute):
            product = product_of(block, budget)
        else:
            product = None
        if product is not None:
            temps += [
                Buffer(f"{word}{number}", (size,), dtype, "temp")
                for word, (dtype, size) in product.scratch().items()
            ]
    if len(temps) == len(func.temps):
        return func
    return replace(func, temps=tuple(temps))


def product_of(block: Compute, budget: int = MOST_SCRATCH) -> Product | None:
    """The block as a product with that much scratch memory; None where another form is better."""
    init = block.init
    expr = block.expr
    if block.combiner != "sum" or not isinstance(init, IntImm) or init.value != 0:
        return None
    if init.dtype != "int32" or not isinstance(expr, Bin) or expr.op != "*":
        return None
    ranges = ValueRanges()
    accumulator = accumulator_of(block, expr, ranges)
    sides = [_operand(block, side) for side in (expr.a, expr.b)]
    if accumulator.modular or sides[0] is None or sides[1] is None:
        return None
    ranges = ValueRanges(accumulator.range)
    order = _joined(block, (sides[0], sides[1]))
    if order is None or not order.axes or not order.raxes:
        return None
    first, second = (replace(s, position=order.positions[id(s.load)]) for s in sides if s)
    column = order.axes[-1].name
    # The weight has the innermost axis; where both have it, the data are what is padded.
    if column not in second.axes or (column in first.axes and second.conditions):
        first, second = second, first
    found = _chosen(block, order, first, second, ranges)
    if found is None:
        return None
    return replace(found, budget=min(budget, MOST_SCRATCH))


def _chosen(
    block: Compute,
    order: Order,
    data: Operand,
    weight: Operand,
    ranges: ValueRanges,
) -> Product | None:
    column = order.axes[-1]
    alone = [loop for loop in order.axes[:-1] if loop.name in data.axes - weight.axes]
    rows = [loop for loop in alone if loop.extent >= _FEWEST]
    if column.name not in weight.axes or column.extent < _FEWEST:
        return None
    found = Product(block, order, data, weight, ranges, Loop("", 1), None, "row")
    if not rows:
        if _is_row(found):
            return found
        return None
    found = replace(found, row=rows[-1])
    if column.name in data.axes:
        found = replace(found, form="taps")
        if found.count <= _MOST_TAPS and _is_depthwise(found):
            return found
        return None
    lines = alone[: alone.index(rows[-1])]
    found = replace(found, form="matrix", line=lines[-1] if lines else None)
    if found.count >= _SHORTEST:
        return found
    return None


def _is_row(product: Product) -> bool:
    """Return whether sums share the data, and both factors lie in memory as they are multiplied."""
    data = product.data
    weight = product.weight
    count = product.count
    if data.conditions or weight.conditions or product.column.name in data.axes:
        return False
    columns = weight.position.terms.get(product.column.name)
    runs = [turns_of(product.run(operand)) for operand in (data, weight)]
    return runs == [count, count] and columns == count >= _SHORTEST


def _is_depthwise(product: Product) -> bool:
    """Neighbouring channels lie side by side, and conditions speak of pixels of a line."""
    column = product.column.name
    data = product.data
    order = product.order
    positions = (data.position, product.weight.position, order.positions["out"])
    if any(position.terms.get(column) != 1 for position in positions):
        return False
    if product.weight.conditions or column in set().union(*(c.terms for c in data.conditions)):
        return False
    row, tap = product.steps
    if row <= 0 or tap < 0 or product.width > 1 << 15:
        return False
    name = "" if product.along is None else product.along.name
    return all(
        c.terms.get(product.row.name, 0) * tap == c.terms.get(name, 0) * row
        for c in data.conditions
    )


def _operand(block: Compute, side: Scalar) -> Operand | None:
    """A factor that is a narrow integer of some buffer, 0 where conditions fail."""
    node, conditions = split_guards(block, side, lambda value: True)
    while isinstance(node, Cast) and is_whole(node.to) and is_whole(node.a.dtype):
        node = node.a
    if not isinstance(node, Load):
        return None
    position = flat_index(node.buffer, node.index)
    if node.buffer.dtype not in _NARROW or position is None:
        return None
    return Operand(node, position, tuple(conditions))


def _joined(block: Compute, sides: Sequence[Operand]) -> Order | None:
    """The loops of the block; the innermost sum walks the first factors in order."""
    terms = sides[0].position.terms
    raxes = sorted(block.raxes, key=lambda axis: -abs(terms.get(axis.name, 0)))
    order = joined_order(block, (block.expr, block.stored), raxes)
    placed = all(id(node) in order.positions for node in loads(block.stored))
    if placed:
        return order
    return None
