"""First and last iterations of loops that take over guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compiler.lir.affine import Affine
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.loop_order import Loop

Bounds = tuple[str, str]
"""C text of the first iteration and of the one behind the last."""


def bounds_of(
    loop: Loop,
    whole: Bounds,
    conditions: Sequence[Affine],
    extents: Mapping[str, int],
    use: Arithmetic,
) -> Bounds:
    """Where a loop runs so that no condition is negative.

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
