"""Ordered pass lists and the plain ways to run a module."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from compiler.errors import EvaluationError, legal_names
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.targets.reference.executor import ReferenceExecutor
from compiler.targets.reference.inputs import named_inputs

EXECUTORS = ("reference",)


def evaluate(
    mod: IRModule | Expr,
    inputs: Mapping[str, Any] | Sequence[Any] = (),
    executor: str = "reference",
    function: str = "main",
    tap: Callable[[Expr, Any], None] | None = None,
) -> list[NDArray[Any]]:
    """Run one function of a module once.

    Args:
        mod: a module, or an expression (wrapped over its free variables).
        inputs: arrays by parameter name, or in the order of the parameters.
        executor: which implementation; "reference" computes with numpy.
        function: name of the global function.
        tap: called with every evaluated node and its value, in the order of evaluation.
    Returns:
        The results, tuples flattened from left to right.
    Raises:
        TypeInferenceError: the module is ill-typed.
        EvaluationError: an input does not fit, or the program cannot go on.
    """
    if executor not in EXECUTORS:
        raise EvaluationError(
            f"unknown executor {executor!r}", fix=legal_names(executor, EXECUTORS)
        )
    if isinstance(mod, Expr):
        mod = IRModule.from_expr(mod)
    run = ReferenceExecutor(mod, function, tap)
    return run.run(named_inputs(mod[function], inputs))
