"""Integer expressions as sums: terms, a name for equal sums, and sums of loop variables alone.

Index arithmetic is simplified by terms (``index.py``). Guards are recognised by names
(``verify.py``, ``ranges.py``). Code generators reorder loops by sums of loop variables, ``Affine``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compiler.lir.scalars import (
    Axis,
    Bin,
    BoolImm,
    Buffer,
    Cast,
    FloatImm,
    IntImm,
    Load,
    Scalar,
    Un,
)


@dataclass(frozen=True, slots=True)
class Affine:
    """``constant`` + the sum of ``terms[axis name]`` * axis; no term is 0."""

    constant: int = 0
    terms: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Affine) -> Affine:
        terms = dict(self.terms)
        for name, factor in other.terms.items():
            terms[name] = terms.get(name, 0) + factor
        return Affine(self.constant + other.constant, {n: f for n, f in terms.items() if f})

    def scaled(self, factor: int) -> Affine:
        """``factor`` times this."""
        if factor == 0:
            return Affine()
        return Affine(self.constant * factor, {n: f * factor for n, f in self.terms.items()})

    def range(self, extents: Mapping[str, int]) -> tuple[int, int]:
        """Smallest and largest value while every axis runs from 0 to its extent - 1."""
        low = high = self.constant
        for name, factor in self.terms.items():
            reach = factor * (extents[name] - 1)
            low, high = low + min(reach, 0), high + max(reach, 0)
        return low, high

    def with_axes_joined(self, outer: str, inner: str, joined: str) -> Affine:
        """The same with one axis ``joined`` in place of both, where ``outer`` goes on where
        ``inner`` ends."""
        terms = {n: f for n, f in self.terms.items() if n not in (outer, inner)}
        if inner in self.terms:
            terms[joined] = self.terms[inner]
        return Affine(self.constant, terms)

    def with_values(self, values: Mapping[str, int]) -> Affine:
        """The same where these axes have these values."""
        constant = self.constant + sum(self.terms.get(n, 0) * v for n, v in values.items())
        return Affine(constant, {n: f for n, f in self.terms.items() if n not in values})

    def text(self) -> str:
        """C expression, largest factors first: ``c * 3136 + y * 56 + x - 1``."""
        parts: list[str] = []
        for name, factor in sorted(self.terms.items(), key=lambda t: -abs(t[1])):
            size = abs(factor)
            term = name if size == 1 else f"{name} * {size}"
            if factor < 0:
                parts.append(f"- {term}" if parts else f"-{term}")
            else:
                parts.append(f"+ {term}" if parts else term)
        if self.constant or not parts:
            size = abs(self.constant)
            sign = "-" if self.constant < 0 else "+"
            parts.append(f"{sign} {size}" if parts else str(self.constant))
        return " ".join(parts)


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


def sum_key(expr: Scalar) -> tuple[str, int]:
    """A sum as a name for its terms and its constant; equal sums have equal names."""
    terms, constant = linear_terms(expr)
    return _name(terms), constant


def quotient_key(expr: Scalar) -> tuple[str, int, int] | None:
    """``sum_key`` of a sum, and the number by which it is divided and rounded down: ``i +
    floordiv(y, 2)`` is ``floordiv(2 * i + y, 2)``. None for sums without a quotient."""
    terms, constant = linear_terms(expr)
    for factor, node in terms:
        if factor == 1 and isinstance(node, Bin) and node.op == "floordiv":
            inner, more = linear_terms(node.a)
            divisor = node.b.value if isinstance(node.b, IntImm) else 0
            if divisor > 0:
                others = [(f * divisor, other) for f, other in terms if other is not node]
                return _name([*inner, *others]), constant * divisor + more, divisor
    return None


def _name(terms: Sequence[tuple[int, Scalar]]) -> str:
    return " ".join(sorted(f"{factor} {_key(node)}" for factor, node in terms))


def _key(expr: Scalar) -> str:
    """The same text for two index expressions of the same structure, in O(nodes)."""
    words: list[str] = []
    stack: list[Scalar | str] = [expr]
    while stack:
        node = stack.pop()
        if isinstance(node, str):
            words.append(node)
        elif isinstance(node, IntImm | FloatImm | BoolImm):
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


def affine_of(root: Scalar) -> Affine | None:
    """The sum of loop variables that ``root`` is, or None where it is none; an axis of extent 1
    is 0."""
    total = Affine()
    stack = [(1, root)]
    while stack:
        outer, node = stack.pop()
        terms, constant = linear_terms(node)
        total = total + Affine(outer * constant)
        for inner, rest in terms:
            factor = outer * inner
            if isinstance(rest, Axis):
                if rest.extent > 1:
                    total = total + Affine(0, {rest.name: 1}).scaled(factor)
            elif isinstance(rest, Cast) and rest.to in ("int32", "int64"):
                # Indices are small: one that a narrower type cannot hold would be out of range.
                stack.append((factor, rest.a))
            elif isinstance(rest, Un) and rest.op == "neg":
                stack.append((-factor, rest.a))
            elif isinstance(rest, Bin) and rest.op == "*":
                left = _constant(rest.a)
                right = _constant(rest.b)
                if left is None and right is None:
                    return None
                if right is not None:
                    stack.append((factor * right, rest.a))
                else:
                    stack.append((factor * (left or 0), rest.b))
            else:
                return None
    return total


def _constant(expr: Scalar) -> int | None:
    """The value of a sum of constants and axes of extent 1; None for any other."""
    terms, constant = linear_terms(expr)
    single = all(isinstance(rest, Axis) and rest.extent == 1 for _, rest in terms)
    if single:
        return constant
    return None


def flat_index(buffer: Buffer, index: Sequence[Scalar]) -> Affine | None:
    """Row-major position in ``buffer``, or None where an index is no sum of axes."""
    position = Affine()
    stride = 1
    for extent, part in zip(reversed(buffer.shape), reversed(index), strict=True):
        along = affine_of(part)
        if along is None:
            return None
        position = position + along.scaled(stride)
        stride *= extent
    return position
