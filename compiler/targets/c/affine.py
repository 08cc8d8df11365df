"""Index expressions as sums of loop variables, which is what loops can be reordered by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from compiler.lir.nodes import Buffer
from compiler.lir.scalars import Axis, Bin, Cast, IntImm, Scalar, Un
from compiler.lir.walk import post_order


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
        """The same with one axis ``joined`` in place of both; see ``joinable``."""
        terms = {n: f for n, f in self.terms.items() if n not in (outer, inner)}
        if inner in self.terms:
            terms[joined] = self.terms[inner]
        return Affine(self.constant, terms)

    def with_values(self, values: Mapping[str, int]) -> Affine:
        """The same where these axes have these values."""
        constant = self.constant + sum(self.terms.get(n, 0) * v for n, v in values.items())
        return Affine(constant, {n: f for n, f in self.terms.items() if n not in values})

    def joinable(self, outer: str, inner: str, inner_extent: int) -> bool:
        """Whether ``outer`` goes on where ``inner`` ends, so that one loop can run over both."""
        return self.terms.get(outer, 0) == self.terms.get(inner, 0) * inner_extent

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


def affine_of(root: Scalar) -> Affine | None:
    """The sum that ``root`` is, or None where it is none; an axis of extent 1 is 0."""
    found: dict[int, Affine | None] = {}
    for node in post_order(root):
        found[id(node)] = _affine(node, found)
    return found[id(root)]


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


def _affine(node: Scalar, found: Mapping[int, Affine | None]) -> Affine | None:
    if isinstance(node, IntImm):
        return Affine(node.value)
    if isinstance(node, Axis):
        return Affine(0, {node.name: 1}) if node.extent > 1 else Affine()
    if isinstance(node, Cast):
        # Indices are small: one that a narrower type cannot hold would be out of range anyway.
        return found[id(node.a)] if node.to in ("int32", "int64") else None
    if isinstance(node, Un):
        inner = found[id(node.a)]
        return inner.scaled(-1) if node.op == "neg" and inner is not None else None
    if not isinstance(node, Bin):
        return None
    left, right = found[id(node.a)], found[id(node.b)]
    if left is None or right is None:
        return None
    if node.op in ("+", "-"):
        return left + right.scaled(1 if node.op == "+" else -1)
    if node.op == "*" and not right.terms:
        return left.scaled(right.constant)
    if node.op == "*" and not left.terms:
        return right.scaled(left.constant)
    return None
