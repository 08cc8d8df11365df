"""Scalar expressions as C: short expressions, long ones cut into named constants.

An expression used twice, and one that grows longer than a line, becomes a ``const`` of its own
before the statement, so that text grows with the number of operations and can be read. What may
only be computed on one side of a select (a guarded load) stays inside it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np

from compiler.lir.affine import Affine
from compiler.lir.ranges import ValueRanges, dtype_range, exact_range, fits, is_whole
from compiler.lir.scalars import (
    COMPARISONS,
    Acc,
    Axis,
    Bin,
    BoolImm,
    Buffer,
    Cast,
    FloatImm,
    IntImm,
    Intrin,
    Load,
    Scalar,
    Select,
    Un,
)
from compiler.lir.walk import post_order
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.c_types import bits_of, c_type, float_literal, int_literal, unsigned_of

_LONGEST = 52
"""Characters of an expression that stays inline."""

_ATOM = 5
_UNARY = 4
_PRODUCT = 3
_SUM = 2
_OTHER = 1
_SIGNS = {"and": "&&", "or": "||", "xor": "!="}


@dataclass(slots=True, eq=False)
class ScalarPrinter:
    """Prints the expressions of one block.

    Args:
        use: collects the C functions that are called.
        names: C name of every buffer, by buffer name.
        positions: row-major position of a load where it is a sum of axes, by id of the load.
        ranges: of the expressions.
        acc: C expression of the accumulator.
        values: C text of axes that are not loop variables of their own name.
        fresh: names for the constants that long expressions are cut into.
    """

    use: Arithmetic
    names: Mapping[str, str]
    positions: Mapping[int, Affine]
    ranges: ValueRanges
    acc: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    fresh: Iterator[str] = field(default_factory=lambda: names_apart(()))
    _texts: dict[int, tuple[str, int]] = field(default_factory=dict)

    def expression(self, root: Scalar, before: Callable[[str], None]) -> str:
        """C expression of ``root``; declarations it needs first are handed to ``before``."""
        order = list(post_order(root, operands_of=self._operands))
        uses = Counter(id(operand) for node in order for operand in self._operands(node))
        always = {id(node) for node in post_order(root, operands_of=_always_computed)}
        guarded_loads: dict[int, bool] = {}
        self._texts = {}
        for node in order:
            below = any(guarded_loads[id(o)] for o in self._operands(node))
            guarded_loads[id(node)] = isinstance(node, Load) or below
            text, rank = self._print(node)
            shared = uses[id(node)] > 1 and rank < _ATOM
            may_move = id(node) in always or not guarded_loads[id(node)]
            if node is not root and may_move and (shared or len(text) > _LONGEST):
                name = next(self.fresh)
                before(f"const {c_type(node.dtype)} {name} = {text};")
                text = name
                rank = _ATOM
            self._texts[id(node)] = text, rank
        return self._texts[id(root)][0]

    def _operands(self, node: Scalar) -> tuple[Scalar, ...]:
        """Return the operands in the text of a node: the index of a load is not among them, where
        it has a position.

        Its axes may have been joined to others and have no loop of their own.
        """
        if id(node) in self.positions:
            return ()
        return node.operands()

    def _print(self, node: Scalar) -> tuple[str, int]:
        if isinstance(node, IntImm):
            return int_literal(node.value, node.dtype), _ATOM if node.value >= 0 else _UNARY
        if isinstance(node, BoolImm):
            return str(int(node.value)), _ATOM
        if isinstance(node, FloatImm):
            return self._float(node), _UNARY
        if isinstance(node, Axis):
            return self.values.get(node.name, node.name if node.extent > 1 else "0"), _ATOM
        if isinstance(node, Acc):
            return self.acc, _UNARY
        if isinstance(node, Load):
            # Not an atom: what is read twice is read once and named.
            return f"{self.names[node.buffer.name]}[{self._position(node)}]", _UNARY
        if isinstance(node, Bin):
            return self._binary(node)
        if isinstance(node, Un):
            return self._unary(node)
        if isinstance(node, Cast):
            return self._cast(node)
        if isinstance(node, Select):
            sides = (self._at(node.condition, _SUM), self._at(node.a, _SUM), self._at(node.b, _SUM))
            return "{} ? {} : {}".format(*sides), _OTHER
        assert isinstance(node, Intrin)
        return self._intrinsic(node)

    def _at(self, node: Scalar, rank: int) -> str:
        """Text of an operand, in parentheses where it binds less than ``rank``."""
        text, own = self._texts[id(node)]
        if own >= rank:
            return text
        return f"({text})"

    def _position(self, node: Load) -> str:
        known = self.positions.get(id(node))
        if known is not None:
            return known.text()
        return position_text(node.buffer, self._index(node))

    def _index(self, node: Load) -> list[str]:
        return [self._at(part, _PRODUCT) for part in node.index]

    def _float(self, node: FloatImm) -> str:
        shown = float_literal(node.value, node.dtype)
        if not math.isfinite(node.value):
            self.use.uses_math_macros = True
            return shown
        # Where floats are computed in 80 bits, an inexact constant has as many without the cast.
        exact = Fraction(shown.removesuffix("f")) == Fraction(node.value)
        if exact or node.dtype != "float32":
            return shown
        return f"(float){shown}"

    def _binary(self, node: Bin) -> tuple[str, int]:
        op = node.op
        if op in COMPARISONS or op in _SIGNS:
            sides = self._at(node.a, _SUM), self._at(node.b, _SUM)
            return f"{sides[0]} {_SIGNS.get(op, op)} {sides[1]}", _OTHER
        if op in ("+", "-", "*"):
            return self._sum_or_product(node)
        if op == "/":
            return f"({c_type(node.dtype)})({self._infix(node, '/', _PRODUCT)})", _UNARY
        if op in ("&", "|", "^"):
            return f"{self._at(node.a, _UNARY)} {op} {self._at(node.b, _UNARY)}", _OTHER
        if op in ("<<", ">>"):
            return self._shift(node)
        if op in ("floordiv", "truncdiv", "floormod") and self._plain_quotient(node):
            return self._infix(node, "%" if op == "floormod" else "/", _PRODUCT), _PRODUCT
        return f"{self.use(op, node.dtype)}({self._plain(node.a)}, {self._plain(node.b)})", _UNARY

    def _plain(self, node: Scalar) -> str:
        return self._texts[id(node)][0]

    def _infix(self, node: Bin, sign: str, rank: int) -> str:
        return f"{self._at(node.a, rank)} {sign} {self._at(node.b, rank + 1)}"

    def _plain_quotient(self, node: Bin) -> bool:
        if not is_whole(node.dtype) or bits_of(node.dtype) < 32:
            return False
        return self.ranges.of(node.a)[0] >= 0 and self.ranges.of(node.b)[0] > 0

    def _exact(self, node: Bin | Un) -> tuple[int, int]:
        found = exact_range(node, [self.ranges.of(operand) for operand in node.operands()])
        return found or dtype_range(node.dtype)

    def _sum_or_product(self, node: Bin) -> tuple[str, int]:
        rank = _PRODUCT if node.op == "*" else _SUM
        dtype = node.dtype
        plain = self._infix(node, node.op, rank)
        if dtype.startswith("float"):
            # The cast drops the precision that some processors keep in registers.
            return f"({c_type(dtype)})({plain})", _UNARY
        # Unsigned arithmetic wraps; operands of fewer than 32 bits are promoted to int.
        wraps = dtype.startswith("u") and bits_of(dtype) >= 32
        if wraps or fits(self._exact(node), dtype):
            return plain, rank
        wide = unsigned_of(dtype)
        sides = (self._at(node.a, _UNARY), self._at(node.b, _UNARY))
        return self.use.wrap(dtype, f"({wide}){sides[0]} {node.op} ({wide}){sides[1]}"), _UNARY

    def _shift(self, node: Bin) -> tuple[str, int]:
        bits = bits_of(node.dtype)
        dtype = node.dtype
        low, high = self.ranges.of(node.b)
        amount = self._at(node.b, _UNARY)
        if not (low >= 0 and high < bits):
            amount = f"(int32_t)((uint32_t){self._at(node.b, _UNARY)} & {bits - 1}u)"
        if node.op == ">>":
            if self.ranges.of(node.a)[0] >= 0:
                return f"{self._at(node.a, _UNARY)} >> {amount}", _OTHER
            return f"{self.use('shift_right', dtype)}({self._plain(node.a)}, {amount})", _UNARY
        shifted = f"({unsigned_of(dtype)}){self._at(node.a, _UNARY)} << {amount}"
        return self.use.wrap(dtype, shifted), _UNARY

    def _unary(self, node: Un) -> tuple[str, int]:
        dtype = node.dtype
        if node.op == "abs" and dtype.startswith("u"):
            return self._texts[id(node.a)]
        if node.op == "abs":
            return f"{self.use('abs', dtype)}({self._plain(node.a)})", _UNARY
        if node.op == "not":
            if dtype == "bool":
                return f"!{self._at(node.a, _ATOM)}", _OTHER
            return f"({c_type(dtype)})~{self._at(node.a, _ATOM)}", _UNARY
        if dtype.startswith("float") or fits(self._exact(node), dtype):
            return f"-{self._at(node.a, _ATOM)}", _UNARY
        wide = unsigned_of(dtype)
        return self.use.wrap(dtype, f"0u - ({wide}){self._at(node.a, _UNARY)}"), _UNARY

    def _cast(self, node: Cast) -> tuple[str, int]:
        source = node.a.dtype
        to = node.to
        if source == to:
            return self._texts[id(node.a)]
        if to == "bool":
            return f"{self._at(node.a, _SUM)} != 0", _OTHER
        if is_whole(source) and is_whole(to):
            if fits(self.ranges.of(node.a), to) or to.startswith("u"):
                return f"({c_type(to)}){self._at(node.a, _UNARY)}", _UNARY
            value = f"({unsigned_of(to)}){self._at(node.a, _UNARY)}"
            return self.use.wrap(to, value), _UNARY
        if is_whole(to):
            return self.use.convert(source, to, self._plain(node.a)), _UNARY
        return f"({c_type(to)}){self._at(node.a, _UNARY)}", _UNARY

    def _intrinsic(self, node: Intrin) -> tuple[str, int]:
        args = [self._plain(arg) for arg in node.args]
        if node.name == "saturating_cast":
            return self._saturated(node), _UNARY
        call = f"{self.use(node.name, node.dtype)}({', '.join(args)})"
        return call, _UNARY

    def _saturated(self, node: Intrin) -> str:
        (value,) = node.args
        source = value.dtype
        to = node.dtype
        if not is_whole(source):
            return self.use.convert(source, to, self._plain(value))
        low, high = self.ranges.of(value)
        bounds = np.iinfo(to)
        text = self._plain(value)
        if high > bounds.max:
            text = f"{self.use('min', source)}({text}, {int_literal(int(bounds.max), source)})"
        if low < bounds.min:
            text = f"{self.use('max', source)}({text}, {int_literal(int(bounds.min), source)})"
        return f"({c_type(to)})({text})"


def names_apart(taken: Collection[str]) -> Iterator[str]:
    """Names for the constants that long expressions are cut into."""
    return (name for name in (f"v{n}" for n in itertools.count()) if name not in taken)


def position_text(buffer: Buffer, index: Sequence[str]) -> str:
    """Row-major position for index texts that are products at least."""
    parts: list[str] = []
    stride = 1
    for extent, part in zip(reversed(buffer.shape), reversed(index)):
        if part != "0":
            parts.append(part if stride == 1 else f"{part} * {stride}")
        stride *= extent
    return " + ".join(reversed(parts)) or "0"


def _always_computed(node: Scalar) -> tuple[Scalar, ...]:
    """The operands that are computed for any conditions of selects."""
    if isinstance(node, Select):
        return (node.condition,)
    return node.operands()


def axes_in(*roots: Scalar) -> set[str]:
    """Axes that expressions mention, positions of loads left out."""

    def outside(node: Scalar) -> tuple[Scalar, ...]:
        if isinstance(node, Load):
            return ()
        return node.operands()

    nodes = post_order(*roots, operands_of=outside)
    return {node.name for node in nodes if isinstance(node, Axis)}
