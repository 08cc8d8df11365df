"""FCanonicalize: the operators a shorthand stands for. CanonicalizeOps asks."""

from __future__ import annotations

from collections.abc import Callable

from compiler.ir.expr import Call, Expr
from compiler.ir.op import OpRule

CanonicalizeRule = Callable[[Call, tuple[Expr, ...]], Expr]
"""``rule(ref_call, new_args) -> Expr``: ``ref_call`` is typed, ``new_args`` are rewritten."""

FCanonicalize: OpRule[CanonicalizeRule] = OpRule("FCanonicalize", asked_by="CanonicalizeOps")
