"""Blocks that are sums of products of narrow integers, in the two forms that C compilers turn into
fast code. ``product_writer.py`` writes them.

Matrix form: what one sum reads is laid out as a row of int16, for rows of the data and columns of
the weight alike, padding included; then every sum is a dot product of two rows, eight at a time.
Compilers know dot products of int16 (pmaddwd, smlal).

    for (x …) rows[x][k] = p0[…];                       a tile of rows
    for (o …; o += 4) {
        columns[0 … 3][k] = p1[…];                      four columns
        for (x …; x += 2) {
            for (k …) { s0 += a0[k] * b0[k]; … s7 += a1[k] * b3[k]; }
            sums[x][o] = s0; …
        }
    }
    for (x …) for (o …) out[…] = …;                     the epilogue

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
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.lir.affine import Affine, flat_index
from compiler.lir.nodes import Compute, PrimFunc
from compiler.lir.ranges import ValueRanges, is_whole
from compiler.lir.scalars import Acc, Bin, Buffer, Cast, IntImm, Load, Scalar, Select
from compiler.lir.walk import loads
from compiler.targets.c.accumulator import accumulator_of
from compiler.targets.c.guards import conditions_of, decided
from compiler.targets.c.loop_order import Loop, Order, join_loops
from compiler.targets.c.scalar_printer import axes_in

LEAST_TILE = 1 << 14
TILE_BYTES = 1 << 16
"""Rows and sums of a tile: as many bytes as its data and its result, but within these limits. The
least leaves enough rows for a copied column, the most is what a second-level cache holds."""
COLUMNS = 4
"""Columns of sums at a time."""
_FEWEST = 4
"""Rows or columns below which dot products are not worth the copies."""
_SHORTEST = 8
"""Products a sum."""
_MOST_TAPS = 49
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
        return set(self.position.terms).union(*(c.terms for c in self.conditions))


@dataclass(frozen=True, slots=True)
class Product:
    """A block as a sum of products.

    Attributes:
        block: the block.
        order: its loops, joined.
        data: the factor that is padded, or that does not depend on the innermost axis.
        weight: the other one.
        result: what is stored.
        ranges: for the expressions of ``result``.
        row: the loop along which sums share the weight.
        taps: whether the innermost axis is one of both factors.
    """

    block: Compute
    order: Order
    data: Operand
    weight: Operand
    result: Scalar
    ranges: ValueRanges
    row: Loop
    taps: bool

    @property
    def column(self) -> Loop:
        """The innermost loop of the result."""
        return self.order.axes[-1]

    @property
    def depth(self) -> int:
        """int16 values a row: the products of a sum, a few zeros behind them."""
        count = math.prod(loop.extent for loop in self.order.raxes)
        wide = -(-count // 16) * 16
        return wide if wide * 100 <= count * 115 else -(-count // 8) * 8

    @property
    def rows_at_once(self) -> int:
        """Rows of a tile, the same number in every tile where that is possible."""
        around = self.data.load.buffer.nbytes + self.block.out.nbytes
        tile = min(max(LEAST_TILE, around), TILE_BYTES)
        most = max(_FEWEST, tile // (2 * self.depth + 4 * self.column.extent))
        tiles = -(-self.row.extent // most)
        return -(-self.row.extent // tiles)

    def scratch(self) -> dict[str, tuple[str, int]]:
        """dtype and elements of the temporaries, by the words that their names begin with."""
        if self.taps:
            lines = math.prod(loop.extent for loop in self.order.raxes if loop != self.along)
            size = lines * self.width * self.column.extent
            return {
                "rows": (self.data.load.buffer.dtype, size),
                "sums": ("int32", self.column.extent),
            }
        return {
            "rows": ("int16", self.rows_at_once * self.depth),
            "columns": ("int16", COLUMNS * self.depth),
            "sums": ("int32", self.rows_at_once * self.column.extent),
        }

    # Of the taps form.

    @property
    def along(self) -> Loop | None:
        """The reduction loop that walks the line of the image."""
        return _along(self.data, self.order, self.row)

    @property
    def steps(self) -> tuple[int, int]:
        """Pixels of a line that one step of the row, and of the loop along it, goes."""
        terms, along = self.data.position.terms, self.along
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


def _along(data: Operand, order: Order, row: Loop) -> Loop | None:
    found = [
        loop
        for loop in order.raxes
        if any({loop.name, row.name} <= set(c.terms) for c in data.conditions)
    ]
    if found:
        return found[0]
    # Without padding: the loop with the smaller step.
    return min(order.raxes, key=lambda loop: data.position.terms.get(loop.name, 0), default=None)


def with_scratch(func: PrimFunc) -> PrimFunc:
    """The function with the temporaries that its products need."""
    temps = list(func.temps)
    for number, block in enumerate(func.blocks):
        product = product_of(block) if isinstance(block, Compute) else None
        if product is not None:
            temps += [
                Buffer(f"{word}{number}", (size,), dtype, "temp")
                for word, (dtype, size) in product.scratch().items()
            ]
    return func if len(temps) == len(func.temps) else replace(func, temps=tuple(temps))


def product_of(block: Compute) -> Product | None:
    """The block as a product; None where another form is better."""
    init, expr = block.init, block.expr
    if block.combiner != "sum" or not isinstance(init, IntImm) or init.value != 0:
        return None
    if init.dtype != "int32" or not isinstance(expr, Bin) or expr.op != "*":
        return None
    ranges = ValueRanges()
    accumulator = accumulator_of(block, expr, ranges)
    sides = [_operand(decided(side, ranges)) for side in (expr.a, expr.b)]
    if accumulator.modular or sides[0] is None or sides[1] is None:
        return None
    ranges = ValueRanges(accumulator.range)
    result = block.post if block.post is not None else Acc(block.acc_dtype)
    result = decided(result, ranges)
    if result.dtype != block.out.dtype:
        result = Cast(block.out.dtype, result)
    order = _joined(block, (sides[0], sides[1]), result)
    if order is None or not order.axes or not order.raxes:
        return None
    first, second = (replace(s, position=order.positions[id(s.load)]) for s in sides if s)
    column = order.axes[-1].name
    # The weight has the innermost axis; where both have it, the data are what is padded.
    if column not in second.axes or (column in first.axes and second.conditions):
        first, second = second, first
    return _chosen(block, order, first, second, result, ranges)


def _chosen(
    block: Compute,
    order: Order,
    data: Operand,
    weight: Operand,
    result: Scalar,
    ranges: ValueRanges,
) -> Product | None:
    column = order.axes[-1]
    taps = column.name in data.axes
    alone = [loop for loop in order.axes[:-1] if loop.name in data.axes - weight.axes]
    rows = [loop for loop in alone if loop.extent >= _FEWEST]
    count = math.prod(loop.extent for loop in order.raxes)
    if column.name not in weight.axes or column.extent < _FEWEST or not rows:
        return None
    found = Product(block, order, data, weight, result, ranges, rows[-1], taps)
    if not taps:
        return found if count >= _SHORTEST else None
    return found if count <= _MOST_TAPS and _is_depthwise(found) else None


def _is_depthwise(product: Product) -> bool:
    """Neighbouring channels lie side by side, and conditions speak of pixels of a line."""
    column, data, order = product.column.name, product.data, product.order
    positions = (data.position, product.weight.position, order.positions["out"])
    if any(position.terms.get(column) != 1 for position in positions):
        return False
    if product.weight.conditions or column in set().union(*(c.terms for c in data.conditions)):
        return False
    row, tap = product.steps
    along = _along(data, order, product.row)
    if row <= 0 or tap < 0 or product.width > 1 << 15:
        return False
    name = "" if along is None else along.name
    return all(
        c.terms.get(product.row.name, 0) * tap == c.terms.get(name, 0) * row
        for c in data.conditions
    )


def _operand(side: Scalar) -> Operand | None:
    """A factor that is a narrow integer of some buffer, 0 where conditions fail."""
    conditions: list[Affine] = []
    node = side
    while not isinstance(node, Load):
        if isinstance(node, Cast) and is_whole(node.to) and is_whole(node.a.dtype):
            node = node.a
        elif isinstance(node, Select) and isinstance(node.b, IntImm) and node.b.value == 0:
            found = conditions_of(node.condition)
            if found is None:
                return None
            conditions += found
            node = node.a
        else:
            return None
    position = flat_index(node.buffer, node.index)
    if node.buffer.dtype not in _NARROW or position is None:
        return None
    return Operand(node, position, tuple(conditions))


def _joined(block: Compute, sides: Sequence[Operand], result: Scalar) -> Order | None:
    """The loops of the block; the innermost sum walks the first factors in order."""
    positions: dict[int | str, Affine] = {id(s.load): s.position for s in sides}
    for node in loads(result):
        position = flat_index(node.buffer, node.index)
        if position is None:
            return None
        positions[id(node)] = position
    out = flat_index(block.out, block.out_index)
    if out is None:
        return None
    positions["out"] = out
    raxes = [Loop(a.name, a.extent) for a in block.raxes if a.extent != 1]
    raxes.sort(key=lambda loop: -abs(sides[0].position.terms.get(loop.name, 0)))
    axes = tuple(Loop(a.name, a.extent) for a in block.axes if a.extent != 1)
    fixed = set().union(*(c.terms for s in sides for c in s.conditions)) | axes_in(result)
    taken = frozenset(axis.name for axis in (*block.axes, *block.raxes))
    return join_loops(Order(axes, tuple(raxes), positions), frozenset(fixed), taken)
