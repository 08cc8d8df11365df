"""Conditions under which a point adds nothing to a reduction, turned into bounds of the loops.

A padded convolution reads ``select(0 <= y + i - 1 && y + i - 1 < 8, data, 0) * weight``. Where the
condition fails, 0 is added: the loop over ``i`` may as well not visit that point. Conditions that
are sums of loop variables become first and last iterations of the innermost loop they mention, and
the body is left without a branch.

Only where it is exact: a guarded value that is the combiner's neutral element, products of
integers, widening casts.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.lir.affine import Affine, affine_of
from compiler.lir.index import all_of, conjuncts
from compiler.lir.nodes import Compute
from compiler.lir.ranges import is_whole
from compiler.lir.scalars import Bin, Cast, FloatImm, IntImm, Scalar, Select

_DEEPEST = 32
"""Operations around a guard that are looked through."""


def split_guards(
    block: Compute, expr: Scalar, bounded: Callable[[Affine], bool]
) -> tuple[Scalar, list[Affine]]:
    """The addend of a reduction without the guards that become loop bounds, and the sums of axes
    that are not negative where these guards hold.

    Args:
        block: a reduction with sum, prod, max or min.
        expr: its expression.
        bounded: whether a loop can take over the condition that this sum is not negative.
    """
    conditions: list[Affine] = []
    summed = block.combiner == "sum"
    if not summed and block.combiner not in ("max", "min"):
        return expr, conditions
    neutral = 0 if summed else getattr(block.init, "value", None)

    def strip(node: Scalar, depth: int = 0) -> Scalar:
        if depth > _DEEPEST:
            return node
        if isinstance(node, Select) and _is(node.b, neutral):
            kept: list[Scalar] = []
            for part in conjuncts(node.condition):
                values = _not_negative(part)
                if values is not None and all(bounded(value) for value in values):
                    conditions.extend(values)
                else:
                    kept.append(part)
            inner = strip(node.a, depth + 1)
            guard = all_of(kept)
            if guard is None:
                return inner
            return Select(guard, inner, node.b)
        if not summed:
            return node
        if isinstance(node, Cast) and is_whole(node.to) and is_whole(node.a.dtype):
            stripped = strip(node.a, depth + 1)
            if stripped is node.a:
                return node
            return Cast(node.to, stripped)
        if isinstance(node, Bin) and node.op == "*" and is_whole(node.dtype):
            # 0 times anything is 0, and adds nothing.
            a, b = (strip(side, depth + 1) for side in (node.a, node.b))
            if a is node.a and b is node.b:
                return node
            return Bin("*", a, b)
        return node

    return strip(expr), conditions


def _is(node: Scalar, number: float | None) -> bool:
    return isinstance(node, IntImm | FloatImm) and node.value == number


def _not_negative(node: Scalar) -> tuple[Affine, ...] | None:
    """The sums that are not negative exactly when the comparison holds."""
    if not isinstance(node, Bin) or node.op not in ("<", "<=", ">", ">=", "=="):
        return None
    a = affine_of(node.a)
    b = affine_of(node.b)
    if a is None or b is None:
        return None
    if node.op == "==":
        return b + a.scaled(-1), a + b.scaled(-1)
    larger, smaller = (b, a) if node.op in ("<", "<=") else (a, b)
    strict = Affine(-1) if node.op in ("<", ">") else Affine()
    return (larger + smaller.scaled(-1) + strict,)
