"""The C of a sum of products: the loops that ``product_form.py`` shows, line by line."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace

from compiler.lir.affine import Affine
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.lines import Lines
from compiler.targets.c.loop_order import Loop
from compiler.targets.c.names import Names
from compiler.targets.c.product_form import COLUMNS, Operand, Product, turns_of
from compiler.targets.c.scalar_printer import ScalarPrinter, names_apart


@dataclass(slots=True, eq=False)
class ProductWriter:
    """One product on its way to C.

    Args:
        product: of a block whose axes have legal names.
        names: C name of every buffer.
        scratch: C names of its temporaries, by word.
        use: collects the C functions that are called.
        lines: where they go, inside a function.
    """

    product: Product
    names: Mapping[str, str]
    scratch: Mapping[str, str]
    use: Arithmetic
    lines: Lines
    _local: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        loops = (*self.product.order.axes, *self.product.order.raxes)
        local = Names([*self.names.values(), *(loop.name for loop in loops)])
        self._local = {word: local.fresh(word) for word in _LOCALS}

    def write(self) -> None:
        """Write the loops."""
        product = self.product
        with ExitStack() as outer:
            tiled = {product.row}
            if product.form == "matrix":
                tiled.add(product.tile[0])
            for loop in product.order.axes[:-1]:
                if loop not in tiled:
                    outer.enter_context(self.lines.loop(loop.name, "0", loop.extent))
            {"matrix": self._tiles, "row": self._one_row, "taps": self._taps}[product.form]()

    # The matrix form.

    def _tiles(self) -> None:
        loop, turns = self.product.tile
        first = self._local["first"]
        behind = self._local["behind"]
        if turns == loop.extent:
            with self.lines.block(""):
                self.lines(f"const int32_t {first} = 0, {behind} = {turns};")
                self._tile()
            return
        with self.lines.loop(first, "0", loop.extent, turns):
            end = f"{self.use('min', 'int32')}({loop.extent}, {first} + {turns})"
            self.lines(f"const int32_t {behind} = {end};")
            self._tile()

    def _tile(self) -> None:
        product = self.product
        local = self._local
        lines = self.lines
        row, column = product.row, product.column
        first = local["first"]
        behind = local["behind"]
        place = local["place"]
        with self._rows():
            self._copy(product.data, f"{self.scratch['rows']} + {place} * {product.depth}")
        group = local["group"]
        line = local["line"]
        each = "" if product.tile[0] == row else f" * {row.extent}"
        lines(f"const int32_t {local['count']} = ({behind} - {first}){each};")
        with self.lines.loop(group, "0", column.extent, COLUMNS):
            with self.lines.loop(line, "0", COLUMNS):
                number = f"{group} + {line}"
                if column.extent % COLUMNS:
                    number = f"{self.use('min', 'int32')}({number}, {column.extent - 1})"
                lines(f"const int32_t {column.name} = {number};")
                self._copy(product.weight, f"{self.scratch['columns']} + {line} * {product.depth}")
            with self.lines.loop(line, "0", local["count"], 2):
                # The last row but one, and the last column, may be computed twice.
                pair = f"{self.use('min', 'int32')}({line}, {local['count']} - 2)"
                lines(f"const int32_t {local['pair']} = {pair};")
                self._dot_products()
        with self._rows():
            sums = f"{place} * {product.columns} + {column.name}"
            self._epilogue(f"{self.scratch['sums']}[{sums}]")

    @contextmanager
    def _rows(self) -> Iterator[None]:
        """Around what is done for each row of a tile; ``place`` is its number there."""
        product = self.product
        local = self._local
        (loop, _), row, first = product.tile, product.row, local["first"]
        number = f"{loop.name} - {first}"
        with ExitStack() as nest:
            nest.enter_context(self.lines.loop(loop.name, first, local["behind"]))
            if loop != row:
                nest.enter_context(self.lines.loop(row.name, "0", row.extent))
                number = f"({number}) * {row.extent} + {row.name}"
            self.lines(f"const int32_t {local['place']} = {number};")
            yield

    def _dot_products(self) -> None:
        product = self.product
        held = self.scratch
        local = self._local
        rows = f"{held['rows']} + {local['pair']} * {product.depth}"
        sums = f"{held['sums']} + {local['pair']} * {product.columns} + {local['group']}"
        given = (rows, held["columns"], product.depth, sums, product.columns)
        self.lines(f"{self.use('dots', 'int16')}({', '.join(map(str, given))});")

    def _copy(self, operand: Operand, target: str) -> None:
        """Copy the values that one sum reads of a factor, as int16."""
        product = self.product
        lines = self.lines
        pointer = self._local["to"]
        place = Affine()
        count = 1
        for loop in reversed(product.order.raxes):
            place = place + Affine(0, {loop.name: count})
            count *= loop.extent
        lines(f"int16_t *const {pointer} = {target};")
        raxes = product.order.raxes
        widens = product.widens
        run = product.run(operand) if widens else raxes[-1:]
        with ExitStack() as nest:
            for loop in raxes[: len(raxes) - len(run)]:
                nest.enter_context(self.lines.loop(loop.name, "0", loop.extent))
            if widens:
                gone = {loop.name for loop in run}
                start = _without(operand.position, gone)
                self._run(operand, turns_of(run), _without(place, gone), start)
            else:
                self._line(operand, run[0], f"{pointer}[{place.text()}]", operand.position)
        if count < product.depth:
            with self.lines.loop(self._local["at"], str(count), product.depth):
                lines(f"{pointer}[{self._local['at']}] = 0;")

    def _run(self, operand: Operand, count: int, place: Affine, position: Affine) -> None:
        """Copies neighbours of a factor, or zeros where its conditions fail."""
        buffer = operand.load.buffer
        to = self._local["to"]
        at = self._local["at"]
        source = f"{self.names[buffer.name]} + {position.text()}"
        copied = f"{self.use('widen', buffer.dtype)}({source}, {count}, {to} + {place.text()});"
        if not operand.conditions:
            self.lines(copied)
            return
        with self.lines.block(f"if ({_all(operand.conditions)})"):
            self.lines(copied)
        with self.lines.block("else"), self.lines.loop(at, "0", count):
            self.lines(f"{to}[{(place + Affine(0, {at: 1})).text()}] = 0;")

    def _line(self, operand: Operand, loop: Loop, target: str, position: Affine) -> None:
        """A loop that copies a factor, or zeros where its conditions fail."""
        inside = [c for c in operand.conditions if loop.name in c.terms]
        before = [c for c in operand.conditions if loop.name not in c.terms]
        value = f"{self.names[operand.load.buffer.name]}[{position.text()}]"
        if inside:
            value = f"(int16_t)({_all(inside)} ? {value} : 0)"
        if not before:
            with self.lines.loop(loop.name, "0", loop.extent):
                self.lines(f"{target} = {value};")
            return
        with self.lines.block(f"if ({_all(before)})"), self.lines.loop(loop.name, "0", loop.extent):
            self.lines(f"{target} = {value};")
        with self.lines.block("else"), self.lines.loop(loop.name, "0", loop.extent):
            self.lines(f"{target} = 0;")

    # The row form.

    def _one_row(self) -> None:
        product = self.product
        held = self.scratch
        group = self._local["group"]
        data = product.data.load.buffer
        weight = product.weight.load.buffer
        column = product.column
        source = (
            f"{self.names[data.name]} + {_without(product.data.position, product.inner).text()}"
        )
        widen = self.use("widen", data.dtype)
        self.lines(f"{widen}({source}, {product.count}, {held['rows']});")
        with self.lines.loop(group, "0", column.extent, COLUMNS):
            number = group
            if column.extent % COLUMNS:
                number = f"{self.use('min', 'int32')}({group}, {column.extent - COLUMNS})"
            self.lines(f"const int32_t {column.name} = {number};")
            place = _without(product.weight.position, product.inner).text()
            given = f"{held['rows']}, {self.names[weight.name]} + {place}, {product.count}"
            dots = self.use("row_dots", weight.dtype)
            self.lines(f"{dots}({given}, {held['sums']} + {column.name});")
        self._epilogue(f"{held['sums']}[{column.name}]")

    # The taps form.

    def _taps(self) -> None:
        product = self.product
        row = self.product.row
        column = self.product.column
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
                nest.enter_context(self.lines.loop(loop.name, "0", loop.extent))
            nest.enter_context(self.lines.loop(pixel, "0", product.width))
            self._line(staged, column, f"{self.scratch['rows']}[{place.text()}]", position)
        place = _without(place, {pixel}) + Affine(0, {row.name: step * column.extent})
        if along is not None:
            place = place + Affine(0, {along.name: tap * column.extent})
        with self.lines.loop(row.name, "0", row.extent):
            with self.lines.loop(column.name, "0", column.extent):
                terms = [
                    self._tap(place, dict(zip((loop.name for loop in product.order.raxes), values)))
                    for values in itertools.product(
                        *(range(loop.extent) for loop in product.order.raxes)
                    )
                ]
                self.lines(f"{self.scratch['sums']}[{column.name}] = {terms[0]}")
                for term in terms[1:]:
                    self.lines(f"    + {term}")
                self.lines.lines[-1] += ";"
            self._epilogue(f"{self.scratch['sums']}[{column.name}]")

    def _tap(self, place: Affine, values: Mapping[str, int]) -> str:
        weight = self.product.weight
        factor = f"{self.scratch['rows']}[{place.with_values(values).text()}]"
        held = self.names[weight.load.buffer.name]
        return f"(int32_t){factor} * (int32_t){held}[{weight.position.with_values(values).text()}]"

    # Both.

    def _epilogue(self, acc: str) -> None:
        product = self.product
        column = product.column
        positions = {k: v for k, v in product.order.positions.items() if isinstance(k, int)}
        fresh = names_apart({*self.names.values(), *self._local.values()})
        printer = ScalarPrinter(self.use, self.names, positions, product.ranges, acc, fresh=fresh)
        with self.lines.loop(column.name, "0", column.extent):
            text = printer.expression(product.block.stored, self.lines)
            out = self.names[product.block.out.name]
            self.lines(f"{out}[{product.order.positions['out'].text()}] = {text};")


_LOCALS = ("first", "behind", "count", "place", "group", "line", "pair", "at", "to")


def _all(conditions: Iterable[Affine]) -> str:
    return " && ".join(f"{condition.text()} >= 0" for condition in conditions)


def _without(value: Affine, names: set[str]) -> Affine:
    return Affine(value.constant, {n: f for n, f in value.terms.items() if n not in names})
