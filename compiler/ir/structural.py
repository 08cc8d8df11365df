"""Structural equality with the path of the first difference; the hash is in structural_hash.

Graph nodes are compared one to one, so that a shared node differs from two equal ones; variables
are compared by the place that binds them. Source: Relay v0.10 node/structural_equal.cc.
"""

from __future__ import annotations

from typing import Any

from compiler.ir.expr import Expr
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.ir.structural_compare import Comparison, Mismatch
from compiler.ir.structural_digest import structural_hash
from compiler.ir.ty import Type

__all__ = ["assert_structural_equal", "structural_equal", "structural_hash"]

Subject = Expr | Type | IRModule | Any


@collector_rests
def structural_equal(a: Subject, b: Subject, map_free_vars: bool = False) -> bool:
    """True when the two are the same up to names of local variables, spans and checked types.

    Args:
        a: an expression, type or module; None equals only None.
        b: the other one.
        map_free_vars: free variables may stand for each other one to one (same annotation).
    """
    return Comparison(map_free_vars).first_difference(a, b) is None


def assert_structural_equal(a: Subject, b: Subject, map_free_vars: bool = False) -> None:
    """Raise unless structurally equal.

    Raises:
        AssertionError: with the access path of the first mismatch and both texts there.
    """
    found = Comparison(map_free_vars).first_difference(a, b)
    if found is not None:
        raise AssertionError(_explain(found))


def _explain(found: Mismatch) -> str:
    return (
        f"not structurally equal at {found.path or 'the root'}: {found.why}\n"
        f"  left:  {_short(found.left)}\n  right: {_short(found.right)}"
    )


def _short(value: Any, limit: int = 400) -> str:
    from compiler.ir.type_errors import call_text

    shown = call_text(value) if isinstance(value, Expr) else str(value)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
