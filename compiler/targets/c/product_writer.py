"""The C of a sum of products: the loops that ``product_form.py`` shows, line by line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

from compiler.lir.affine import Affine
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.lines import Lines
from compiler.targets.c.loop_order import Loop
from compiler.targets.c.names import Names
from compiler.targets.c.product_form import COLUMNS, Operand, Product
from compiler.targets.c.scalar_printer import ScalarPrinter


def write_product(
    product: Product,
    names: Mapping[str, str],
    scratch: Mapping[str, str],
    use: Arithmetic,
    lines: Lines,
) -> None:
    """Write the loops of a product.

    Args:
        product: of a block whose axes have legal names.
        names: C name of every buffer.
        scratch: C names of its temporaries, by word.
        use: collects the C functions that are called.
        lines: where they go, inside a function.
    """
    _Writer(product, names, scratch, use, lines).write()


class _Writer:
    """One product on its way to C."""

    def __init__(
        self,
        product: Product,
        names: Mapping[str, str],
        scratch: Mapping[str, str],
        use: Arithmetic,
        lines: Lines,
    ) -> None:
        self._product = product
        self._names = names
        self._scratch = scratch
        self._use = use
        self._lines = lines
        loops = (*product.order.axes, *product.order.raxes)
        local = Names([*names.values(), *(loop.name for loop in loops)])
        self._local = {word: local.fresh(word) for word in _LOCALS}

    def write(self) -> None:
        product = self._product
        with ExitStack() as outer:
            for loop in product.order.axes[:-1]:
                if loop != product.row:
                    outer.enter_context(self._for(loop.name, "0", loop.extent))
            if product.taps:
                self._taps()
            else:
                self._tiles()

    def _for(
        self, name: str, first: str, behind: object, step: object = 1
    ) -> AbstractContextManager[None]:
        forward = f"++{name}" if step == 1 else f"{name} += {step}"
        return self._lines.block(f"for (int32_t {name} = {first}; {name} < {behind}; {forward})")

    # The matrix form.

    def _tiles(self) -> None:
        product, row = self._product, self._product.row
        first, count = self._local["first"], self._local["count"]
        if product.rows_at_once == row.extent:
            with self._lines.block(""):
                self._lines(f"const int32_t {first} = 0, {count} = {row.extent};")
                self._tile()
            return
        with self._for(first, "0", row.extent, product.rows_at_once):
            rest = f"{self._use('min', 'int32')}({row.extent} - {first}, {product.rows_at_once})"
            self._lines(f"const int32_t {count} = {rest};")
            self._tile()

    def _tile(self) -> None:
        product, local, lines = self._product, self._local, self._lines
        row, column, depth = product.row.name, product.column, product.depth
        first, count, at = local["first"], local["count"], local["at"]
        with self._for(row, first, f"{first} + {count}"):
            self._copy(product.data, f"{self._scratch['rows']} + ({row} - {first}) * {depth}")
        group, line, next_line = local["group"], local["line"], local["next_line"]
        with self._for(group, "0", column.extent, COLUMNS):
            with self._for(line, "0", COLUMNS):
                lines(f"const int32_t {column.name} = {self._within(f'{group} + {line}', column)};")
                self._copy(product.weight, f"{self._scratch['columns']} + {line} * {depth}")
            with self._for(line, "0", count, 2):
                # The last row, and the last column, may be computed twice.
                behind = f"{line} + 1 < {count} ? {line} + 1 : {line}"
                lines(f"const int32_t {next_line} = {behind};")
                self._dot_products(group, line, next_line, at)
        with self._for(row, first, f"{first} + {count}"):
            place = f"({row} - {first}) * {column.extent} + {column.name}"
            self._epilogue(f"{self._scratch['sums']}[{place}]")

    def _dot_products(self, group: str, line: str, next_line: str, at: str) -> None:
        product, local, lines = self._product, self._local, self._lines
        depth, column = product.depth, product.column
        rows = [(local[f"a{n}"], name) for n, name in enumerate((line, next_line))]
        columns = [(local[f"b{n}"], n) for n in range(COLUMNS)]
        for pointer, name in rows:
            lines(f"const int16_t *const {pointer} = {self._scratch['rows']} + {name} * {depth};")
        for pointer, n in columns:
            place = self._scratch["columns"] + (f" + {n * depth}" if n else "")
            lines(f"const int16_t *const {pointer} = {place};")
        sums = {(a, b): f"{local['s']}{a}{b}" for a in range(2) for b in range(COLUMNS)}
        lines(f"int32_t {', '.join(f'{name} = 0' for name in sums.values())};")
        with self._for(at, "0", depth):
            for (a, b), name in sums.items():
                factors = f"(int32_t){rows[a][0]}[{at}] * (int32_t){columns[b][0]}[{at}]"
                lines(f"{name} += {factors};")
        for (a, b), name in sums.items():
            place = f"{rows[a][1]} * {column.extent} + {self._within(f'{group} + {b}', column)}"
            lines(f"{self._scratch['sums']}[{place}] = {name};")

    def _within(self, place: str, column: Loop) -> str:
        if column.extent % COLUMNS == 0:
            return place
        return f"{self._use('min', 'int32')}({place}, {column.extent - 1})"

    def _copy(self, operand: Operand, target: str) -> None:
        """What one sum reads of a factor, as int16."""
        product, lines, pointer = self._product, self._lines, self._local["to"]
        raxes = product.order.raxes
        place = Affine()
        for loop in raxes:
            place = place.scaled(loop.extent) + Affine(0, {loop.name: 1})
        count = math.prod(loop.extent for loop in raxes)
        lines(f"int16_t *const {pointer} = {target};")
        with ExitStack() as nest:
            for loop in raxes[:-1]:
                nest.enter_context(self._for(loop.name, "0", loop.extent))
            self._line(operand, raxes[-1], f"{pointer}[{place.text()}]", operand.position)
        if count < product.depth:
            with self._for(self._local["at"], str(count), product.depth):
                lines(f"{pointer}[{self._local['at']}] = 0;")

    def _line(self, operand: Operand, loop: Loop, target: str, position: Affine) -> None:
        """A loop that copies a factor, or zeros where its conditions fail."""
        inside = [c for c in operand.conditions if loop.name in c.terms]
        before = [c for c in operand.conditions if loop.name not in c.terms]
        value = f"{self._names[operand.load.buffer.name]}[{position.text()}]"
        if inside:
            value = f"(int16_t)({_all(inside)} ? {value} : 0)"
        if not before:
            with self._for(loop.name, "0", loop.extent):
                self._lines(f"{target} = {value};")
            return
        with self._lines.block(f"if ({_all(before)})"), self._for(loop.name, "0", loop.extent):
            self._lines(f"{target} = {value};")
        with self._lines.block("else"), self._for(loop.name, "0", loop.extent):
            self._lines(f"{target} = 0;")

    # The taps form.

    def _taps(self) -> None:
        product, row, column = self._product, self._product.row, self._product.column
        along = product.along
        lines = [loop for loop in product.order.raxes if loop != along]
        step, tap = product.steps
        pixel = self._local["at"]
        place = Affine()
        for loop in lines:
            place = place.scaled(loop.extent) + Affine(0, {loop.name: 1})
        place = place.scaled(product.width) + Affine(0, {pixel: 1})
        place = place.scaled(column.extent) + Affine(0, {column.name: 1})
        unit = product.data.position.terms[row.name] // step
        gone = {row.name, along.name if along is not None else row.name}
        position = _without(product.data.position, gone) + Affine(0, {pixel: unit})
        conditions = tuple(
            _without(c, gone) + Affine(0, {pixel: c.terms[row.name] // step})
            if row.name in c.terms
            else c
            for c in product.data.conditions
        )
        staged = replace(product.data, conditions=conditions)
        with ExitStack() as nest:
            for loop in lines:
                nest.enter_context(self._for(loop.name, "0", loop.extent))
            nest.enter_context(self._for(pixel, "0", product.width))
            self._line(staged, column, f"{self._scratch['rows']}[{place.text()}]", position)
        place = _without(place, {pixel}) + Affine(0, {row.name: step * column.extent})
        if along is not None:
            place = place + Affine(0, {along.name: tap * column.extent})
        with self._for(row.name, "0", row.extent):
            with self._for(column.name, "0", column.extent):
                terms = [
                    self._tap(place, dict(zip((loop.name for loop in product.order.raxes), values)))
                    for values in itertools.product(
                        *(range(loop.extent) for loop in product.order.raxes)
                    )
                ]
                self._lines(f"{self._scratch['sums']}[{column.name}] = {terms[0]}")
                for term in terms[1:]:
                    self._lines(f"    + {term}")
                self._lines.lines[-1] += ";"
            self._epilogue(f"{self._scratch['sums']}[{column.name}]")

    def _tap(self, place: Affine, values: Mapping[str, int]) -> str:
        weight = self._product.weight
        factor = f"{self._scratch['rows']}[{place.with_values(values).text()}]"
        held = self._names[weight.load.buffer.name]
        return f"(int32_t){factor} * (int32_t){held}[{weight.position.with_values(values).text()}]"

    # Both.

    def _epilogue(self, acc: str) -> None:
        product = self._product
        column = product.column
        positions = {k: v for k, v in product.order.positions.items() if isinstance(k, int)}
        fresh = (name for name in (f"v{n}" for n in itertools.count()) if name not in self._taken)
        printer = ScalarPrinter(self._use, self._names, positions, product.ranges, acc, fresh=fresh)
        with self._for(column.name, "0", column.extent):
            text = printer.expression(product.result, self._lines)
            out = self._names[product.block.out.name]
            self._lines(f"{out}[{product.order.positions['out'].text()}] = {text};")

    @property
    def _taken(self) -> set[str]:
        return {*self._names.values(), *self._local.values()}


_LOCALS = (
    "first", "count", "group", "line", "next_line", "at", "to", "a0", "a1", "b0", "b1", "b2", "b3",
    "s",
)  # fmt: skip


def _all(conditions: Iterable[Affine]) -> str:
    return " && ".join(f"{condition.text()} >= 0" for condition in conditions)


def _without(value: Affine, names: set[str]) -> Affine:
    return Affine(value.constant, {n: f for n, f in value.terms.items() if n not in names})
