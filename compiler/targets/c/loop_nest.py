"""A Compute block as C loops, in one of three forms.

    for (y …) for (x …) out[…] = …;                            no reduction

    for (o …) {                                                the sum runs innermost
        int32_t acc = 0;
        for (k …) acc += …;
        out[…] = …;
    }

    for (o …) for (y …) {                                      a row of sums
        int32_t acc[112];
        for (x …) acc[x] = 0;
        for (c …) for (i …) for (j …) for (x …) acc[x] += …;
        for (x …) out[…] = …;
    }

Values do not depend on the form: sums of integers are exact or wrap in any order, and every sum of
floats adds its terms in row-major order of the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property

from compiler.lir.affine import Affine
from compiler.lir.nodes import Compute
from compiler.lir.ranges import ValueRanges, is_whole
from compiler.lir.scalars import Acc, Axis, Scalar
from compiler.lir.walk import loads, post_order
from compiler.targets.c.accumulator import Accumulator, accumulator_of
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.guards import split_guards
from compiler.targets.c.lines import Lines
from compiler.targets.c.loop_order import Loop, Order, joined_order, row_of
from compiler.targets.c.scalar_printer import ScalarPrinter, names_apart
from compiler.targets.c.source_file import ROLLED

LONGEST_ROW = 512
"""Accumulators kept at once: 2 KiB of int32, beside the rows that are read in the first cache."""
TERMS_AT_ONCE = 4
"""Terms that join an accumulator between reading and writing it."""

_SHORT = 8
"""Iterations of an innermost loop that stays a loop."""

MOST_COPIES = 7
"""Iterations of a loop that may be written out: the width of a kernel."""

_ARG = ("argmax", "argmin")
_NO_VALUES: Mapping[str, int] = {}


class LoopNest:
    """One block on its way to C.

    Args:
        block: verified; names of its axes are legal in C.
        names: C name of every buffer.
        use: collects the C functions that are called.
        lines: where they go, inside a function.
    """

    def __init__(
        self, block: Compute, names: Mapping[str, str], use: Arithmetic, lines: Lines
    ) -> None:
        self._block = block
        self._names = names
        self._use = use
        self._lines = lines
        self._ranges = ValueRanges()
        self._conditions: list[Affine] = []
        self._expr = block.expr
        if block.raxes and block.combiner not in _ARG:
            inner = {a.name for a in block.raxes}
            self._expr, self._conditions = split_guards(
                block, self._expr, lambda value: bool(inner & set(value.terms))
            )
        self._result = block.stored
        if block.raxes:
            self._ranges = ValueRanges(self._accumulator.range)
        self._order = self._joined_order()
        self._extents = {a.name: a.extent for a in (*block.axes, *block.raxes)}

    def write(self) -> None:
        """Write the loops."""
        if not any(isinstance(node, Acc) for node in post_order(self._result)):
            # No reduction, or one whose epilogue does without it.
            self._conditions = []
            with self._loops(self._order.axes, rolled=True):
                self._store(self._result, "")
            return
        if self._row is None:
            self._sum_innermost()
        else:
            with self._loops(self._order.axes[:-1]):
                self._row_of_sums(self._row)

    # What is computed.

    @cached_property
    def _accumulator(self) -> Accumulator:
        return accumulator_of(self._block, self._expr, self._ranges)

    def _joined_order(self) -> Order:
        block = self._block
        fixed = {name for condition in self._conditions for name in condition.terms}
        if block.combiner in _ARG:
            fixed |= {a.name for a in block.raxes}
        roots = (self._expr, self._result)
        names = self._names.values()
        return joined_order(block, roots, self._raxes(), fixed, names)

    def _raxes(self) -> list[Axis]:
        """The loops of the reduction; loops with their own bounds come first where that is free.

        Integers may be combined in any order. A loop without bounds can then add several terms at
        once, and the bounds are computed less often.
        """
        block = self._block
        if block.combiner in _ARG or not is_whole(self._expr.dtype):
            return list(block.raxes)
        bounded = {name for condition in self._conditions for name in condition.terms}
        return sorted(block.raxes, key=lambda axis: axis.name not in bounded)

    # The forms of a reduction.

    def _sum_innermost(self) -> None:
        combiner = self._block.combiner
        acc = self._accumulator
        with self._loops(self._order.axes):
            self._lines(f"{acc.kind} acc = {self._init()};")
            if combiner not in _ARG:
                with self._loops(self._order.raxes):
                    self._join("acc", {})
                self._store(self._result, acc.finished("acc", self._use))
                return
            self._lines("int32_t best = 0;")
            with self._loops(self._order.raxes):
                self._keep_best()
            self._store(self._result, "best")

    def _row_of_sums(self, row: Loop) -> None:
        length = _row_length(row.extent)
        whole: Bounds = ("0", str(row.extent))
        slot = f"acc[{row.name}]"
        tiles: AbstractContextManager[None] = nullcontext()
        if length < row.extent:
            whole = (f"{row.name}_first", f"{row.name}_end")
            slot = f"acc[{row.name} - {whole[0]}]"
            tiles = self._lines.loop(whole[0], "0", row.extent, length)
        with tiles:
            if length < row.extent:
                end = f"{whole[0]} + {length}"
                if row.extent % length:
                    end = f"{self._use('min', 'int32')}({end}, {row.extent})"
                self._lines(f"const int32_t {whole[1]} = {end};")
            self._lines(f"{self._accumulator.kind} acc[{length}];")
            with self._for(row, whole, 1):
                self._lines(f"{slot} = {self._init()};")
            self._add_rows(row, whole, slot, self._order.raxes, {})
            with self._for(row, whole, 1):
                self._store(self._result, self._accumulator.finished(slot, self._use))

    def _add_rows(
        self, row: Loop, whole: Bounds, slot: str, raxes: Sequence[Loop], fixed: Mapping[str, int]
    ) -> None:
        """The loops ``raxes`` around the loop over the row; ``fixed`` axes have these values."""
        if raxes and raxes[0].name in self._written_out:
            for value in range(raxes[0].extent):
                self._add_rows(row, whole, slot, raxes[1:], {**fixed, raxes[0].name: value})
            return
        if len(raxes) > 1:
            with self._loops(raxes[:1]):
                self._add_rows(row, whole, slot, raxes[1:], fixed)
            return
        at_once = self._terms_at_once(raxes[0]) if raxes else 1
        with self._loops(raxes, at_once):
            conditions = [condition.with_values(fixed) for condition in self._bounding(row)]
            bounds = bounds_of(row, whole, conditions, self._extents, self._use)
            with self._for(row, bounds, 1):
                for term in range(at_once):
                    self._join(slot, {raxes[0].name: term} if raxes else {}, fixed)

    @cached_property
    def _written_out(self) -> frozenset[str]:
        """Short loops that only move the ends of the row: written out, its ends are numbers."""
        row = self._order.axes[-1]
        if row.extent > LONGEST_ROW:
            return frozenset()
        with_row = {n for c in self._conditions if row.name in c.terms for n in c.terms}
        without = {n for c in self._conditions if row.name not in c.terms for n in c.terms}
        short = {loop.name for loop in self._order.raxes if loop.extent <= MOST_COPIES}
        return frozenset((with_row - without) & short)

    def _terms_at_once(self, loop: Loop) -> int:
        bounded = {name for condition in self._conditions for name in condition.terms}
        if loop.name in bounded or self._block.combiner != "sum":
            return 1
        return max(n for n in range(1, TERMS_AT_ONCE + 1) if loop.extent % n == 0)

    # Statements.

    def _init(self) -> str:
        assert self._block.init is not None
        return self._printer({}).expression(self._block.init, self._lines)

    def _join(
        self, slot: str, ahead: Mapping[str, int], fixed: Mapping[str, int] = _NO_VALUES
    ) -> None:
        term = self._printer(ahead, fixed=fixed).expression(self._expr, self._lines)
        self._lines(self._accumulator.joined(slot, term, self._use))

    def _keep_best(self) -> None:
        """The first best term, a NaN being better than any number."""
        place = Affine()
        for axis in self._block.raxes:
            place = place.scaled(axis.extent) + Affine(0, {axis.name: 1} if axis.extent > 1 else {})
        kind = self._accumulator.kind
        term = self._printer({}).expression(self._expr, self._lines)
        self._lines(f"const {kind} term = {term};")
        better = f"term {'>' if self._block.combiner == 'argmax' else '<'} acc"
        if self._expr.dtype.startswith("float"):
            better = f"{better} || (term != term && acc == acc)"
        with self._lines.block(f"if ({better})"):
            self._lines("acc = term;")
            self._lines(f"best = {place.text()};")

    def _store(self, value: Scalar, acc: str) -> None:
        block = self._block
        printer = self._printer({}, acc)
        place = self._order.positions["out"].text()
        text = printer.expression(value, self._lines)
        self._lines(f"{self._names[block.out.name]}[{place}] = {text};")

    def _printer(
        self, ahead: Mapping[str, int], acc: str = "", fixed: Mapping[str, int] = _NO_VALUES
    ) -> ScalarPrinter:
        """A printer that reads ``ahead[axis]`` iterations ahead, with the values of some axes."""
        moved = {name: step for name, step in ahead.items() if step}
        positions: dict[int, Affine] = {}
        for load, position in self._order.positions.items():
            if isinstance(load, int):
                steps = sum(position.terms.get(name, 0) * step for name, step in moved.items())
                positions[load] = (position + Affine(steps)).with_values(fixed)
        values = {name: f"({name} + {step})" for name, step in moved.items()}
        values.update((name, str(value)) for name, value in fixed.items())
        return ScalarPrinter(
            self._use, self._names, positions, self._ranges, acc, values, self._fresh
        )

    @cached_property
    def _fresh(self) -> Iterator[str]:
        """Names for constants within the block."""
        return names_apart({*self._names.values(), *self._extents})

    # Loops.

    def _bounding(self, loop: Loop) -> list[Affine]:
        """The conditions whose innermost loop this is."""
        loops = (*self._order.raxes, *([self._row] if self._row is not None else []))
        found = []
        for condition in self._conditions:
            mentioned = [inner.name for inner in loops if inner.name in condition.terms]
            if mentioned and mentioned[-1] == loop.name:
                found.append(condition)
        return found

    @cached_property
    def _row(self) -> Loop | None:
        """The loop along which sums are kept; None where the sum runs innermost."""
        if self._block.combiner in _ARG:
            return None
        reduced = [id(n) for n in loads(self._expr) if id(n) in self._order.positions]
        return row_of(self._order, reduced)

    @contextmanager
    def _loops(
        self, loops: Sequence[Loop], last_step: int = 1, rolled: bool = False
    ) -> Iterator[None]:
        """Loops around what is written meanwhile; the innermost goes ``last_step`` at a time, and
        stays a loop if it is short and ``rolled``."""
        if not loops:
            yield
            return
        whole = ("0", str(loops[0].extent))
        bounds = bounds_of(loops[0], whole, self._bounding(loops[0]), self._extents, self._use)
        with (
            self._for(loops[0], bounds, last_step if len(loops) == 1 else 1, rolled),
            self._loops(loops[1:], last_step, rolled),
        ):
            yield

    @contextmanager
    def _for(self, loop: Loop, bounds: Bounds, step: int, rolled: bool = False) -> Iterator[None]:
        name = loop.name
        if rolled and loop == self._order.axes[-1] and loop.extent <= _SHORT:
            self._lines(ROLLED)
        first, behind = bounds
        if "(" in first or " " in first:
            self._lines(f"const int32_t {name}_from = {first};")
            first = f"{name}_from"
        if "(" in behind or " " in behind:
            self._lines(f"const int32_t {name}_to = {behind};")
            behind = f"{name}_to"
        with self._lines.loop(name, first, behind, step):
            yield


def _row_length(extent: int) -> int:
    """Accumulators at a time: all, else a divisor of the extent, else as many as are kept."""
    if extent <= LONGEST_ROW:
        return extent
    parts = next(n for n in range(2, extent + 1) if extent % n == 0 and extent // n <= LONGEST_ROW)
    if extent // parts >= LONGEST_ROW // 4:
        return extent // parts
    return LONGEST_ROW


Bounds = tuple[str, str]
"""C text of the first iteration and of the one behind the last."""


def bounds_of(
    loop: Loop,
    whole: Bounds,
    conditions: Sequence[Affine],
    extents: Mapping[str, int],
    use: Arithmetic,
) -> Bounds:
    """Return the bounds of a loop in which no condition is negative.

    Args:
        loop: the innermost loop that the conditions mention.
        whole: its bounds without conditions.
        conditions: sums that must not be negative, each with a term of the loop.
        extents: of all axes in the conditions.
        use: collects the C functions that are called.
    """
    first, behind = whole
    for condition in conditions:
        factor = condition.terms[loop.name]
        others = {name: f for name, f in condition.terms.items() if name != loop.name}
        rest = Affine(condition.constant, others)
        if factor > 0:
            least = rest.scaled(-1) + Affine(factor - 1)
            if least.range(extents)[1] // factor > 0:
                first = _call(use, "max", first, _quotient(least, factor, use))
        else:
            bound = rest + Affine(-factor)
            if bound.range(extents)[0] // -factor < loop.extent:
                behind = _call(use, "min", behind, _quotient(bound, -factor, use))
    return first, behind


def _call(use: Arithmetic, operation: str, a: str, b: str) -> str:
    if a.lstrip("-").isdigit() and b.lstrip("-").isdigit():
        return str(min(int(a), int(b)) if operation == "min" else max(int(a), int(b)))
    return f"{use(operation, 'int32')}({a}, {b})"


def _quotient(value: Affine, divisor: int, use: Arithmetic) -> str:
    if divisor == 1:
        return value.text()
    if not value.terms:
        return str(value.constant // divisor)
    return f"{use('floordiv', 'int32')}({value.text()}, {divisor})"
