"""Dispatch on kinds of expressions, types and patterns."""

from __future__ import annotations

from typing import Any

import pytest

from compiler import relay
from compiler.errors import DeepGraphError
from compiler.ir.adt import Constructor, PatternConstructor, PatternTuple, PatternVar
from compiler.ir.expr import Call, Constant, Expr, TempExpr, Var
from compiler.ir.functor import (
    ExprFunctor,
    MemoizedFunctor,
    PatternMutator,
    PatternVisitor,
)
from compiler.ir.ty import GlobalTypeVar, TensorType


class Names(ExprFunctor[str]):
    def visit_var(self, var: Var, *args: Any) -> str:
        return var.name_hint + "".join(args)

    def visit_constant(self, constant: Constant, *args: Any) -> str:
        return str(constant.data)


def test_visit_dispatches_on_the_kind_and_hands_arguments_on() -> None:
    assert Names().visit(relay.var("x"), "!", "?") == "x!?"
    assert Names().visit(relay.const(3, "int32")) == "3"


def test_a_kind_without_handler_is_named_with_the_class() -> None:
    with pytest.raises(NotImplementedError, match="Expr kind Tuple not handled by Names"):
        Names().visit(relay.Tuple(()))


def test_a_temporary_expression_outside_its_pass_is_an_error() -> None:
    with pytest.raises(NotImplementedError, match="TempExpr"):
        Names().visit(TempExpr())


def test_memoized_functor_asks_the_handler_once_per_node() -> None:
    class Count(MemoizedFunctor[int]):
        calls = 0

        def visit_default(self, expr: Expr, *args: Any) -> int:
            self.calls += 1
            return self.calls

    x, functor = relay.var("x"), Count()
    assert functor.visit(x) == functor.visit(x) == 1
    assert functor.visit(relay.var("x")) == 2


SCALAR = TensorType((), "float32")


def test_pattern_visitor_and_mutator_reach_bound_variables() -> None:
    a, b = relay.var("a"), relay.var("b")
    cons = Constructor("Cons", (SCALAR, SCALAR), GlobalTypeVar("List"), 0)
    pattern = PatternTuple((PatternVar(a), PatternConstructor(cons, (PatternVar(b),))))

    class Found(PatternVisitor):
        def __init__(self) -> None:
            self.vars: list[Var] = []

        def visit_var(self, var: Var) -> None:
            self.vars.append(var)

    class Rename(PatternMutator):
        def visit_var(self, var: Var) -> Expr:
            return relay.var("c") if var is b else var

    visitor = Found()
    visitor.visit(pattern)
    assert visitor.vars == [a, b]
    assert PatternMutator().visit(pattern) is pattern
    new = Rename().visit(pattern)
    assert isinstance(new, PatternTuple)
    assert new.patterns[0] is pattern.patterns[0]
    assert new.patterns[1] is not pattern.patterns[1]


@pytest.mark.parametrize("base", [ExprFunctor, MemoizedFunctor])
def test_recursion_on_a_deep_graph_is_a_clear_error(base: type[Any]) -> None:
    class Depth(base):  # type: ignore[misc]
        def visit_call(self, call: Call) -> int:
            return int(self.visit(call.args[0])) + 1

        def visit_var(self, var: Var) -> int:
            return 0

    value: Expr = relay.var("x", ())
    for _ in range(20):
        value = relay.op.exp(value)
    assert Depth().visit(value) == 20
    for _ in range(5_000):
        value = relay.op.exp(value)
    with pytest.raises(DeepGraphError, match="Depth"):
        Depth().visit(value)
