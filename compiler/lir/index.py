"""Index arithmetic: built simplified, and bounded.

A sum is held as its terms in the order written, then the constant: y + i - 1. Quotients and
remainders by a constant drop what the ranges of the loop variables decide, so that a chain of
reshapes reads as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.lir.scalars import (
    INDEX_DTYPE,
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

_LIMIT = (1 << 31) - 1
_NOTHING_KNOWN: Mapping[str, Range] = {}


def imm(value: int) -> IntImm:
    """An index constant."""
    return IntImm(int(value))


def binary(op: str, a: Scalar, b: Scalar) -> Scalar:
    """``a op b`` of index dtype (or a comparison), simplified where that is safe."""
    if a.dtype != INDEX_DTYPE:
        return Bin(op, a, b)
    if op in ("+", "-"):
        return plus(a, b if op == "+" else times(b, -1))
    if op == "*":
        return times(a, b.value) if isinstance(b, IntImm) else Bin(op, a, b)
    if op in ("floordiv", "floormod") and isinstance(b, IntImm) and b.value > 0:
        return floordiv(a, b.value) if op == "floordiv" else floormod(a, b.value)
    if op in ("min", "max") and isinstance(b, IntImm):
        return _bounded(op, a, b)
    return Bin(op, a, b)


def _bounded(op: str, a: Scalar, b: IntImm) -> Scalar:
    held = value_range(a)
    if held is not None:
        low, high = held
        if (low >= b.value) if op == "max" else (high <= b.value):
            return a
        if (high <= b.value) if op == "max" else (low >= b.value):
            return b
    return Bin(op, a, b)


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


def _sum(terms: Sequence[tuple[int, Scalar]], constant: int) -> Scalar:
    total: Scalar | None = None
    for factor, node in terms:
        if factor == 0:
            continue
        size = abs(factor)
        piece = node if size == 1 else Bin("*", node, imm(size))
        if total is None:
            total = piece if factor > 0 else Bin("*", node, imm(factor))
        else:
            total = Bin("+" if factor > 0 else "-", total, piece)
    if total is None:
        return imm(constant)
    if constant:
        total = Bin("+" if constant > 0 else "-", total, imm(abs(constant)))
    return total


def _merged(terms: Sequence[tuple[int, Scalar]]) -> list[tuple[int, Scalar]]:
    """Terms of one loop variable added up."""
    found: dict[object, int] = {}
    merged: list[tuple[int, Scalar]] = []
    for factor, node in terms:
        key: object = node.name if isinstance(node, Axis) else id(node)
        if key in found:
            place = found[key]
            merged[place] = (merged[place][0] + factor, node)
        else:
            found[key] = len(merged)
            merged.append((factor, node))
    return merged


def plus(a: Scalar, b: Scalar | int) -> Scalar:
    """a + b."""
    if isinstance(b, int):
        b = imm(b)
    if isinstance(b, IntImm) and b.value == 0:
        return a
    left, c = linear_terms(a)
    right, d = linear_terms(b)
    return _sum(_merged([*left, *right]), _wrapped(c + d))


def times(a: Scalar, factor: int) -> Scalar:
    """a * factor."""
    if factor == 1:
        return a
    terms, constant = linear_terms(a)
    return _sum([(f * factor, node) for f, node in terms], _wrapped(constant * factor))


def _wrapped(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def _split(a: Scalar, divisor: int) -> tuple[Scalar, Scalar, Range | None]:
    """a = divisor * whole + rest, and the range of the rest."""
    terms, constant = linear_terms(a)
    whole = [(f // divisor, node) for f, node in terms if f % divisor == 0]
    rest = [(f, node) for f, node in terms if f % divisor]
    left = _sum(rest, constant)
    held = value_range(left)
    if held is not None and held[0] // divisor == held[1] // divisor:
        # The rest lies within one period: its quotient is known.
        quotient = held[0] // divisor
        shifted = (held[0] - quotient * divisor, held[1] - quotient * divisor)
        return _sum(whole, quotient), _sum(rest, constant - quotient * divisor), shifted
    quotient = constant // divisor
    return _sum(whole, quotient), _sum(rest, constant - quotient * divisor), None


def floordiv(a: Scalar, divisor: int) -> Scalar:
    """Floor of a / divisor, for a divisor > 0."""
    if divisor == 1:
        return a
    if value_range(a) is None:
        # The sum may wrap, and a wrapped sum has another quotient.
        return Bin("floordiv", a, imm(divisor))
    whole, rest, within = _split(a, divisor)
    if within is not None:
        return whole
    if isinstance(rest, Bin) and rest.op == "floordiv" and isinstance(rest.b, IntImm):
        inner = rest.b.value * divisor
        return plus(whole, floordiv(rest.a, inner))
    return plus(whole, Bin("floordiv", rest, imm(divisor)))


def floormod(a: Scalar, divisor: int) -> Scalar:
    """a - divisor * floor(a / divisor), for a divisor > 0."""
    if divisor == 1:
        return imm(0)
    if value_range(a) is None:
        return Bin("floormod", a, imm(divisor))
    _, rest, within = _split(a, divisor)
    return rest if within is not None else Bin("floormod", rest, imm(divisor))


def within(index: Scalar, size: int) -> Scalar | None:
    """The condition 0 <= index < size; None where it always holds."""
    low, high = value_range(index) or (-_LIMIT, _LIMIT)
    conditions: list[Scalar] = []
    if low < 0:
        conditions.append(Bin(">=", index, imm(0)))
    if high >= size:
        conditions.append(Bin("<", index, imm(size)))
    return all_of(conditions)


def all_of(conditions: Sequence[Scalar | None]) -> Scalar | None:
    """Their conjunction, None for an empty one; None stands for True."""
    leaves: list[Scalar] = []
    stack = [condition for condition in reversed(conditions) if condition is not None]
    while stack:
        node = stack.pop()
        if isinstance(node, Bin) and node.op == "and":
            stack += [node.b, node.a]
        else:
            leaves.append(node)
    total: Scalar | None = None
    for leaf in leaves:
        total = leaf if total is None else Bin("and", total, leaf)
    return total


def clamped(value: Scalar, size: int) -> Scalar:
    """An integer of any dtype as an index within [0, size), nearest where it is outside."""
    if value.dtype == INDEX_DTYPE:
        return binary("min", binary("max", value, imm(0)), imm(size - 1))
    # Clamped in its own dtype, then narrowed: the other way round would wrap.
    dtype = value.dtype
    largest = integer_limits(dtype)[1]
    held = value if dtype.startswith("u") else Bin("max", value, IntImm(0, dtype))
    if size - 1 < largest:
        held = Bin("min", held, IntImm(size - 1, dtype))
    return Cast(INDEX_DTYPE, held)


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
    return " ".join(f"{factor} {_key(node)}" for factor, node in terms), constant


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
