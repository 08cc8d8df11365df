"""Bounds of an integer expression: its smallest and its largest value.

Ranges come from the loop variables, the dtypes, the operations and the guards around an expression.
The verifier, the simplifier of index arithmetic and the C printer ask. The C printer asks so that
plain arithmetic is used where it is safe: a product of two int8 loads widened to int32 lies in
[-16256, 16384], so a sum of a thousand of them needs no protection against overflow. The engine
bounds its elementwise operators by the same arithmetic.

The proof of a module has intervals of its own (``compiler/ranges/interval.py``): it checks what is
derived here and shares no code with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from compiler.ir.ty import integer_range
from compiler.lir.affine import quotient_key, sum_key
from compiler.lir.scalars import (
    Acc,
    Axis,
    Bin,
    BoolImm,
    Cast,
    IntImm,
    Intrin,
    Load,
    Scalar,
    Select,
    Un,
)

Range = tuple[int, int]
"""Smallest and largest value, both included."""

_NOTHING_KNOWN: Mapping[str, Range] = {}


def dtype_range(dtype: str) -> Range:
    """Bounds of an integer dtype; bool is 0 to 1.

    Raises:
        ValueError: a float dtype.
    """
    if dtype == "bool":
        return (0, 1)
    return integer_range(dtype)


def is_whole(dtype: str) -> bool:
    """Integers and bool."""
    return not dtype.startswith("float")


def fits(values: Range, dtype: str) -> bool:
    """Return whether every value of a range exists in an integer dtype."""
    low, high = dtype_range(dtype)
    return low <= values[0] and values[1] <= high


@dataclass(slots=True, eq=False)
class ValueRanges:
    """Ranges of expressions, each found once.

    Args:
        acc: range of the accumulator in an epilogue; None: that of its dtype.
        facts: what guards say of sums, by the name of ``sum_key``.
        index_only: look through the operations of index arithmetic alone. Loops are simplified by
            such ranges when they are built, and keep the clips that quantization has put there.
    """

    acc: Range | None = None
    facts: Mapping[str, Range] = field(default_factory=dict)
    index_only: bool = False
    _found: dict[int, Range | None] = field(default_factory=dict)
    # Keeps the scalars alive whose ids are keys.
    _kept: list[Scalar] = field(default_factory=list)

    def of(self, root: Scalar) -> Range:
        """Range of an integer expression, all its dtype holds where it may wrap."""
        return self.exact(root) or dtype_range(root.dtype)

    def exact(self, root: Scalar) -> Range | None:
        """Range of an integer expression; None where it may leave its dtype or nothing is known."""
        stack: list[tuple[Scalar, bool]] = [(root, False)]
        while stack:
            node, operands_pushed = stack.pop()
            if id(node) in self._found:
                continue
            operands = () if isinstance(node, Load) else node.operands()
            if operands and not operands_pushed:
                stack.append((node, True))
                stack.extend((operand, False) for operand in operands)
                continue
            self._kept.append(node)
            self._found[id(node)] = self._told(node, self._range(node))
        return self._found[id(root)]

    def _told(self, node: Scalar, found: Range | None) -> Range | None:
        """``found`` and what the guards say."""
        if not self.facts:
            return found
        whole = None if found is None else quotient_key(node)  # one that may wrap has none
        for name, constant, divisor in filter(None, ((*sum_key(node), 1), whole)):
            told = self.facts.get(name)
            if told is not None:
                low, high = ((end + constant) // divisor for end in told)
                if found is None:
                    found = (low, high)
                else:
                    found = (max(found[0], low), min(found[1], high))
        return found

    def _range(self, node: Scalar) -> Range | None:
        if isinstance(node, IntImm):
            return node.value, node.value
        if self.index_only and isinstance(node, BoolImm | Acc):
            return None
        if isinstance(node, BoolImm):
            return int(node.value), int(node.value)
        if isinstance(node, Axis):
            return 0, max(node.extent - 1, 0)
        if not is_whole(node.dtype):
            return None
        own = dtype_range(node.dtype)
        if isinstance(node, Load):
            return own
        if isinstance(node, Acc):
            if self.acc is None:
                return own
            return self.acc
        # Whatever an operand is made of, it is a value of its dtype.
        parts = [
            self._found[id(part)] or (dtype_range(part.dtype) if is_whole(part.dtype) else None)
            for part in node.operands()
        ]
        if isinstance(node, Intrin):
            if self.index_only:
                return own
            return _of_intrinsic(node, parts[0], own)
        if self.index_only and isinstance(node, Bin) and not _of_indices(node, parts[1]):
            return None
        found = exact_range(node, parts)
        if found is not None and own[0] <= found[0] and found[1] <= own[1]:
            return found
        if isinstance(node, Cast):
            return own
        return None


def value_range(expr: Scalar, facts: Mapping[str, Range] = _NOTHING_KNOWN) -> Range | None:
    """``ValueRanges.exact`` of one index expression.

    Args:
        expr: of an integer dtype.
        facts: what guards say of sums, by the name of ``sum_key``.
    """
    return ValueRanges(facts=facts, index_only=True).exact(expr)


def exact_range(node: Scalar, operands: Sequence[Range | None]) -> Range | None:
    """Range of the mathematical result, before it wraps; None where nothing is known.

    Args:
        node: an operation.
        operands: ranges of its operands; None for floats.
    """
    parts = [part for part in operands if part is not None]
    if len(parts) != len(operands) or not parts:
        return None
    if isinstance(node, Cast):
        if node.to != "bool":
            return parts[0]
        return None
    if isinstance(node, Select):
        return min(parts[1][0], parts[2][0]), max(parts[1][1], parts[2][1])
    if isinstance(node, Un):
        low, high = parts[0]
        if node.op == "not":
            return None
        if node.op == "neg":
            return (-high, -low)
        return (max(low, -high, 0), max(high, -low))
    if isinstance(node, Bin):
        return _of_binary(node, parts[0], parts[1])
    return None


def _of_indices(node: Bin, divisor: Range | None) -> bool:
    """Return whether index arithmetic has this operation: sums, products, bounds, constant
    divisors."""
    if node.op in ("floordiv", "floormod"):
        return divisor is not None and divisor[0] == divisor[1] > 0
    return node.op in ("+", "-", "*", "min", "max")


def _of_intrinsic(node: Intrin, first: Range | None, own: Range) -> Range:
    low, high = own
    if node.name == "saturating_cast" and first is not None:
        return min(max(first[0], low), high), max(min(first[1], high), low)
    if node.name == "isqrt":
        return 0, 2**31 - 1
    return own


def arithmetic_range(op: str, a: Range, b: Range) -> Range | None:
    """Range of ``a op b`` of whole numbers, before it wraps; None of other operations.

    Args:
        op: "+", "-", "*", "min" or "max".
    """
    if op == "+":
        return a[0] + b[0], a[1] + b[1]
    if op == "-":
        return a[0] - b[1], a[1] - b[0]
    if op == "*":
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if op == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if op == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    return None


def _of_binary(node: Bin, a: Range, b: Range) -> Range | None:
    op = node.op
    if (found := arithmetic_range(op, a, b)) is not None:
        return found
    if op in ("<<", ">>"):
        if b[0] != b[1] or not 0 <= b[0] < 8 * np.dtype(node.a.dtype).itemsize:
            return None
        if op == "<<":
            return (a[0] << b[0], a[1] << b[0])
        return (a[0] >> b[0], a[1] >> b[0])
    if op == "floormod" and b[0] == b[1] > 0 and a[0] // b[0] == a[1] // b[0]:
        return a[0] % b[0], a[1] % b[0]
    if op == "floormod" and b[0] > 0:
        return 0, b[1] - 1 if a[0] < 0 else min(a[1], b[1] - 1)
    if op == "floordiv" and b[0] == b[1] > 0:
        return a[0] // b[0], a[1] // b[0]
    if op in ("floordiv", "truncdiv") and a[0] >= 0 and b[0] > 0:
        return a[0] // b[1], a[1] // b[0]
    return None
