"""What is known of an integer expression: its terms as a sum, and its smallest and largest value.

Ranges come from the loop variables, the dtypes and the guards around an expression; the verifier
and the simplifier of index arithmetic ask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.lir.scalars import (
    Axis,
    Bin,
    Cast,
    IntImm,
    Intrin,
    Load,
    Scalar,
    Select,
    Un,
    integer_limits,
)

Range = tuple[int, int]
"""Smallest and largest value, both included."""

_NOTHING_KNOWN: Mapping[str, Range] = {}


def linear_terms(expr: Scalar) -> tuple[list[tuple[int, Scalar]], int]:
    """A sum as (factor, rest) pairs and its constant."""
    terms: list[tuple[int, Scalar]] = []
    constant = 0
    stack = [(1, expr)]
    while stack:
        factor, node = stack.pop()
        if isinstance(node, IntImm):
            constant += factor * node.value
        elif isinstance(node, Bin) and node.op in ("+", "-"):
            stack.append((factor if node.op == "+" else -factor, node.b))
            stack.append((factor, node.a))
        elif isinstance(node, Bin) and node.op == "*" and isinstance(node.b, IntImm):
            stack.append((factor * node.b.value, node.a))
        else:
            terms.append((factor, node))
    return terms, constant


def _dtype_range(dtype: str) -> Range | None:
    if dtype == "bool":
        return 0, 1
    if "int" not in dtype:
        return None
    return integer_limits(dtype)


def value_range(expr: Scalar, facts: Mapping[str, Range] = _NOTHING_KNOWN) -> Range | None:
    """Bounds of an integer expression; None where it may leave its dtype or nothing is known.

    Args:
        expr: of an integer dtype.
        facts: what guards say of sums, by the name of ``sum_key``.
    """
    known: dict[int, Range | None] = {}
    stack: list[tuple[Scalar, bool]] = [(expr, False)]
    while stack:
        node, operands_pushed = stack.pop()
        if id(node) in known:
            continue
        operands = () if isinstance(node, Load) else node.operands()
        if operands and not operands_pushed:
            stack.append((node, True))
            stack.extend((operand, False) for operand in operands)
            continue
        held = _range_of(node, known)
        if facts:
            name, constant = sum_key(node)
            told = facts.get(name)
            if told is not None:
                low, high = told[0] + constant, told[1] + constant
                held = (low, high) if held is None else (max(held[0], low), min(held[1], high))
        known[id(node)] = held
    return known[id(expr)]


def _range_of(node: Scalar, known: Mapping[int, Range | None]) -> Range | None:
    if isinstance(node, IntImm):
        return node.value, node.value
    if isinstance(node, Axis):
        return 0, max(node.extent - 1, 0)
    if isinstance(node, Load):
        return _dtype_range(node.dtype)
    own = _dtype_range(node.dtype)
    if own is None:
        return None
    if isinstance(node, Intrin):
        return own
    # Whatever an operand is made of, it is a value of its dtype.
    parts = [known[id(part)] or _dtype_range(part.dtype) for part in node.operands()]
    found = _of_parts(node, parts)
    if found is not None and own[0] <= found[0] and found[1] <= own[1]:
        return found
    return own if isinstance(node, Cast) else None


def _of_parts(node: Scalar, parts: Sequence[Range | None]) -> Range | None:
    """The range from those of the operands, as if nothing wrapped."""
    whole = [part for part in parts if part is not None]
    if len(whole) != len(parts) or not parts:
        return None
    if isinstance(node, Cast):
        return whole[0] if not node.a.dtype.startswith("float") else None
    if isinstance(node, Select):
        return min(whole[1][0], whole[2][0]), max(whole[1][1], whole[2][1])
    if isinstance(node, Un):
        low, high = whole[0]
        if node.op == "not":
            return None
        return (-high, -low) if node.op == "neg" else (max(low, -high, 0), max(high, -low))
    return _combined(node.op, whole[0], whole[1]) if isinstance(node, Bin) else None


def _combined(op: str, a: Range, b: Range) -> Range | None:
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
    if op == "floordiv" and b[0] == b[1] > 0:
        return a[0] // b[0], a[1] // b[0]
    if op == "floormod" and b[0] == b[1] > 0:
        if a[0] // b[0] == a[1] // b[0]:
            return a[0] % b[0], a[1] % b[0]
        return 0, b[0] - 1
    return None


def sum_key(expr: Scalar) -> tuple[str, int]:
    """A sum as a name for its terms and its constant; equal sums have equal names."""
    terms, constant = linear_terms(expr)
    return " ".join(sorted(f"{factor} {_key(node)}" for factor, node in terms)), constant


def _key(expr: Scalar) -> str:
    """The same text for two index expressions of the same structure."""
    words: list[str] = []
    stack: list[Scalar | str] = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            words.append(node)
        elif isinstance(node, IntImm):
            words.append(str(node.value))
        elif isinstance(node, Axis):
            words.append(node.name)
        else:
            name = getattr(node, "op", None) or getattr(node, "name", "")
            where = node.buffer.name if isinstance(node, Load) else ""
            words.append(f"{type(node).__name__} {name}{where} {node.dtype}(")
            stack.append(")")
            stack.extend(node.operands())
    return " ".join(words)
