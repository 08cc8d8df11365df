"""Visitors: the order of the handlers and the use counts."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from compiler import relay
from compiler.errors import DeepGraphError
from compiler.ir.expr import Call, Expr, Op, Var
from compiler.ir.functor import ExprVisitor, MixedModeVisitor, UseVarVisitor
from compiler.ir.functor.expr_functor import KIND_NAMES

DEEP = 10_000


def exp(x: Expr) -> Call:
    return relay.op.exp(x)


def add(x: Expr, y: Expr) -> Call:
    return relay.op.add(x, y)


def recorder(base: type[ExprVisitor], names: dict[Expr, str], *args: Any) -> Any:
    """A visitor of class ``base`` that notes every handler when it completes."""

    def handler(kind: str) -> Any:
        inherited = getattr(base, f"visit_{kind}")

        def note(self: Any, node: Expr) -> None:
            inherited(self, node)
            self.order.append(names.get(node, node.name if isinstance(node, Op) else "?"))

        return note

    cls = type("Recorder", (base,), {f"visit_{k}": handler(k) for k in KIND_NAMES.values()})
    visitor = cls(*args)
    visitor.order = []
    return visitor


def counts(visitor: ExprVisitor, names: dict[Expr, str]) -> dict[str, int]:
    return {name: visitor.use_count(node) for node, name in names.items()}


class SharedDag:
    """(m, l) with m = l + r, l and r two exp calls of x."""

    def __init__(self) -> None:
        self.x = relay.var("x", (2,))
        left, right = exp(self.x), exp(self.x)
        total = add(left, right)
        self.root = relay.Tuple((total, left))
        self.names: dict[Expr, str] = {
            self.x: "x",
            left: "l",
            right: "r",
            total: "m",
            self.root: "tuple",
            Op.get("exp"): "exp",
            Op.get("add"): "add",
        }


@pytest.mark.parametrize("base", [ExprVisitor, MixedModeVisitor])
def test_shared_nodes_are_handled_once_in_post_order(base: type[ExprVisitor]) -> None:
    dag = SharedDag()
    visitor = recorder(base, dag.names)
    visitor.visit(dag.root)
    assert visitor.order == ["add", "exp", "x", "l", "r", "m", "tuple"]
    expected = {"x": 2, "l": 2, "r": 1, "m": 1, "tuple": 1, "exp": 2, "add": 1}
    assert counts(visitor, dag.names) == expected


@pytest.mark.parametrize("base", [ExprVisitor, MixedModeVisitor])
def test_a_node_used_three_times_counts_three(base: type[ExprVisitor]) -> None:
    x = relay.var("x", (2,))
    t = exp(x)
    u = add(t, t)
    w = add(u, t)
    names: dict[Expr, str] = {x: "x", t: "t", u: "u", w: "w"}
    visitor = recorder(base, names)
    visitor.visit(w)
    assert visitor.order == ["add", "exp", "x", "t", "u", "w"]
    assert counts(visitor, names) == {"x": 1, "t": 3, "u": 1, "w": 1}
    assert visitor.use_count(Op.get("add")) == 2


@pytest.mark.parametrize("base", [ExprVisitor, MixedModeVisitor])
def test_a_let_visits_value_then_variable_then_body(base: type[ExprVisitor]) -> None:
    x, v = relay.var("x", (2,)), relay.var("v")
    value, body = exp(x), add(v, v)
    let = relay.Let(v, value, body)
    names: dict[Expr, str] = {x: "x", v: "v", value: "value", body: "body", let: "let"}
    visitor = recorder(base, names)
    visitor.visit(let)
    assert visitor.order == ["exp", "x", "value", "v", "add", "body", "let"]


def test_every_let_of_a_chain_is_handled_once_innermost_first() -> None:
    x, a, b = relay.var("x", (2,)), relay.var("a"), relay.var("b")
    inner = relay.Let(b, exp(a), b)
    outer = relay.Let(a, exp(x), inner)
    visitor = recorder(MixedModeVisitor, {inner: "inner", outer: "outer"})
    visitor.visit(outer)
    assert [n for n in visitor.order if n in ("inner", "outer")] == ["inner", "outer"]
    assert visitor.use_count(inner) == visitor.use_count(outer) == 1


def test_not_overridden_handlers_walk_iteratively_with_the_same_counters() -> None:
    dag = SharedDag()
    visitor = ExprVisitor()
    visitor.visit(dag.root)
    assert counts(visitor, dag.names) == {
        "x": 2,
        "l": 2,
        "r": 1,
        "m": 1,
        "tuple": 1,
        "exp": 2,
        "add": 1,
    }


def test_visit_limit_two_reaches_shared_nodes_twice() -> None:
    dag = SharedDag()
    visitor = recorder(MixedModeVisitor, dag.names, 2)
    visitor.visit(dag.root)
    assert visitor.order == ["add", "exp", "x", "l", "exp", "x", "r", "m", "l", "tuple"]
    assert counts(visitor, dag.names) | {"add": 1} == {
        "x": 3,
        "exp": 3,
        "l": 2,
        "r": 1,
        "m": 1,
        "tuple": 1,
        "add": 1,
    }


@pytest.mark.parametrize(("limit", "order"), [(1, ["add", "x", "y"]), (2, ["add", "x", "x", "y"])])
def test_an_argument_used_twice_by_one_call(limit: int, order: list[str]) -> None:
    x = relay.var("x", (2,))
    y = add(x, x)
    visitor = recorder(MixedModeVisitor, {x: "x", y: "y"}, limit)
    visitor.visit(y)
    assert visitor.order == order
    assert visitor.use_count(x) == 2


@pytest.mark.parametrize(("base", "uses"), [(ExprVisitor, 2), (MixedModeVisitor, 1)])
def test_edges_of_an_if_are_counted_by_the_natural_visitor_only(
    base: type[ExprVisitor], uses: int
) -> None:
    c, x = relay.var("c", (), "bool"), relay.var("x", (2,))
    visitor = recorder(base, {x: "x"})
    visitor.visit(relay.If(c, x, x))
    assert visitor.use_count(x) == uses
    assert visitor.order.count("x") == 1


@pytest.mark.parametrize("limit", [0, 10])
def test_visit_limit_outside_one_to_nine_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        MixedModeVisitor(limit)


@cache
def deep_chain() -> tuple[Var, Expr]:
    x = relay.var("x", (2,))
    z: Expr = x
    one, plus = relay.const(1.0), Op.get("add")
    for _ in range(DEEP):
        z = Call(plus, (z, one))
    return x, z


def test_a_chain_of_10000_calls_is_walked_by_both_visitors() -> None:
    x, z = deep_chain()
    natural, mixed = ExprVisitor(), MixedModeVisitor()
    natural.visit(z)
    mixed.visit(z)
    assert natural.use_count(x) == mixed.use_count(x) == 1
    assert natural.use_count(Op.get("add")) == DEEP


def test_natural_recursion_on_a_deep_chain_is_told_and_survived() -> None:
    class Natural(ExprVisitor):
        def visit_call(self, call: Call, *args: Any) -> None:
            for child in call.operands():
                self.visit(child)

    _, z = deep_chain()
    with pytest.raises(DeepGraphError, match="Natural"):
        Natural().visit(z)
    visitor = Natural()
    visitor.visit(exp(relay.var("x", (2,))))
    assert visitor.use_count(Op.get("exp")) == 1


def test_use_var_asks_for_the_very_variable() -> None:
    x, x2, y = relay.var("x", (2,)), relay.var("x", (2,)), relay.var("y", (2,))
    fn = relay.Function((y,), add(x, y))
    assert UseVarVisitor.use_var(x, fn)
    assert not UseVarVisitor.use_var(x2, fn)
    assert UseVarVisitor.use_var(y, fn)


def test_use_var_finds_a_variable_at_the_bottom_of_a_deep_chain() -> None:
    x, z = deep_chain()
    assert UseVarVisitor.use_var(x, z)
    assert not UseVarVisitor.use_var(relay.var("x", (2,)), z)
