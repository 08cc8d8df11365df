"""Index arithmetic: built simplified, and bounded.

A sum is held as its terms in the order written, then the constant: y + i - 1. Quotients and
remainders by a constant drop what the ranges of the loop variables decide, so that a chain of
reshapes reads as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from compiler.ir.ty import integer_range
from compiler.lir.affine import linear_terms
from compiler.lir.ranges import Range, value_range
from compiler.lir.scalars import INDEX_DTYPE, Axis, Bin, Cast, IntImm, Scalar

_LIMIT = (1 << 31) - 1


def imm(value: int) -> IntImm:
    """An index constant."""
    return IntImm(int(value))


def binary(op: str, a: Scalar, b: Scalar) -> Scalar:
    """``a op b`` of index dtype, simplified where that is safe."""
    if op in ("+", "-"):
        return plus(a, b if op == "+" else times(b, -1))
    if op == "*":
        if isinstance(b, IntImm):
            return times(a, b.value)
        return Bin(op, a, b)
    if op in ("floordiv", "floormod") and isinstance(b, IntImm) and b.value > 0:
        if op == "floordiv":
            return floordiv(a, b.value)
        return floormod(a, b.value)
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


def _sum(terms: Sequence[tuple[int, Scalar]], constant: int) -> Scalar:
    """The sum written out, starting with a term that is added if there is one."""
    pieces = [(factor, node) for factor, node in terms if factor]
    if not pieces:
        return imm(constant)
    pieces.sort(key=lambda piece: piece[0] < 0)
    total: Scalar | None = None
    if pieces[0][0] < 0 and constant:
        total = imm(constant)
        constant = 0
    for factor, node in pieces:
        size = abs(factor)
        piece = node if size == 1 else Bin("*", node, imm(size))
        if total is None:
            total = piece if factor > 0 else Bin("*", node, imm(factor))
        else:
            total = Bin("+" if factor > 0 else "-", total, piece)
    assert total is not None
    if constant:
        total = Bin("+" if constant > 0 else "-", total, imm(abs(constant)))
    return total


def _merged(terms: Sequence[tuple[int, Scalar]]) -> list[tuple[int, Scalar]]:
    """Terms of one loop variable added up."""
    merged: dict[object, tuple[int, Scalar]] = {}
    for factor, node in terms:
        key: object = node.name if isinstance(node, Axis) else id(node)
        before = merged[key][0] if key in merged else 0
        merged[key] = (before + factor, node)
    return list(merged.values())


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
    if within is not None:
        return rest
    return Bin("floormod", rest, imm(divisor))


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
    total: Scalar | None = None
    for leaf in conjuncts(*(condition for condition in conditions if condition is not None)):
        total = leaf if total is None else Bin("and", total, leaf)
    return total


def conjuncts(*conditions: Scalar) -> Iterator[Scalar]:
    """Yield the conditions that have to hold, from left to right, none with an "and" of its own."""
    stack = list(reversed(conditions))
    while stack:
        node = stack.pop()
        if isinstance(node, Bin) and node.op == "and":
            stack += [node.b, node.a]
        else:
            yield node


def clamped(value: Scalar, size: int) -> Scalar:
    """An integer of any dtype as an index within [0, size), nearest where it is outside."""
    if value.dtype == INDEX_DTYPE:
        return binary("min", binary("max", value, imm(0)), imm(size - 1))
    # Clamped in its own dtype, then narrowed: the other way round would wrap.
    dtype = value.dtype
    largest = integer_range(dtype)[1]
    if dtype.startswith("u"):
        held = value
    else:
        held = Bin("max", value, IntImm(0, dtype))
    if size - 1 < largest:
        held = Bin("min", held, IntImm(size - 1, dtype))
    return Cast(INDEX_DTYPE, held)
