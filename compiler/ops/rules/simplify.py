"""Simplify operators at inference, replace shorthands, and derive facts of a value from types
alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Expr
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType, Type

SimplifyRule = Callable[[Call, tuple[Expr, ...]], Expr]
"""``rule(ref_call, new_args) -> Expr``: ``ref_call`` is typed, ``new_args`` are rewritten."""

FSimplifyInference: OpRule[SimplifyRule] = OpRule(
    "FSimplifyInference", asked_by="SimplifyInference"
)
"""Replacement of a call."""

FDefinition: OpRule[SimplifyRule] = OpRule("FDefinition", asked_by="LowerTE")
"""The calls whose loops an operator of floats has; a rule of FSimplifyInference counts as one.
SimplifyInference takes the first of several results."""

FCanonicalize: OpRule[SimplifyRule] = OpRule("FCanonicalize", asked_by="CanonicalizeOps")
"""The operators a shorthand stands for."""

FoldFromTypeRule = Callable[[Any, TensorType], NDArray[np.generic]]
"""``rule(attrs, argument type) -> value``; the type is static."""

FFoldFromType: OpRule[FoldFromTypeRule] = OpRule("FFoldFromType", asked_by="FoldConstant")
"""Value of an operator that looks at the type of its argument only."""

TypeOf = Callable[[Expr], Type]
SimplifyExprRule = Callable[[Call, TypeOf], Expr | None]
"""``rule(call, type_of) -> Expr | None``: an expression of the same value and type, or None. The
arguments of ``call`` have been simplified; ``type_of`` knows the types of new nodes too."""

FSimplifyExpr: OpRule[SimplifyExprRule] = OpRule("FSimplifyExpr", asked_by="SimplifyExpr")
"""Algebra that holds for all operands."""
