from __future__ import annotations

from weakref import ref

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import BindError
from compiler.ir.adt import Clause, Constructor, Match, PatternConstructor, PatternVar
from compiler.ir.analysis import (
    all_vars,
    bind,
    bound_vars,
    count_uses,
    extract_calls,
    free_vars,
    is_constant_expr,
    post_order,
    well_formed,
)
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    TempExpr,
    Tuple,
    Var,
    call_op,
)
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import substitute
from compiler.ir.ty import GlobalTypeVar, TensorType
from compiler.ir.walk import mentions, nodes_of, operators_of


def const(value: float = 1) -> Constant:
    return Constant(np.float32(value))


class TestWalks:
    def test_post_order_of_a_function_is_the_same_when_it_is_walked_again(self) -> None:
        x, y = relay.var("x", (2,)), relay.var("y", (2,))
        body: Expr = y
        for _ in range(100):
            body = relay.op.add(body, relay.op.tanh(x))
        fn = relay.Function((x, y), body)
        order = list(post_order(fn))
        assert order[:2] == [x, y]
        assert order[-2:] == [body, fn]
        assert len(order) == len(set(order))
        for root in (fn, body):
            assert list(post_order(root)) == list(post_order(root))
        assert [node for node in post_order(body) if node not in (x, y)] == order[2:-1]
        assert nodes_of(fn) == tuple(post_order(body))
        assert nodes_of(fn) is nodes_of(fn)
        assert nodes_of(fn.with_fields(body=relay.op.tanh(body))) is not nodes_of(fn)

    def test_a_function_keeps_the_operators_that_it_mentions(self) -> None:
        x = relay.var("x", (2,))
        inner = relay.Function((x,), relay.op.exp(x))
        fn = relay.Function((x,), relay.op.add(Call(inner, (x,)), relay.op.tanh(x)))
        assert operators_of(fn) == {Op.get(name) for name in ("add", "exp", "tanh")}
        assert operators_of(fn) is operators_of(fn)
        assert operators_of(fn.with_fields(body=x)) == set()
        assert mentions(fn, ("exp", "cast"))
        assert not mentions(fn, ("cast",))

    def test_a_copy_over_the_same_body_keeps_the_order(self) -> None:
        x, y = relay.var("x", (2,)), relay.var("y", (2,))
        fn = relay.Function((x,), relay.op.tanh(x))
        assert fn.with_fields(params=(x, y)).nodes is None  # nobody has asked for it
        order = nodes_of(fn)
        for copy in (fn.with_fields(params=(x, y)), fn.with_attr("Primitive", 1)):
            assert nodes_of(copy) is order
            assert operators_of(copy) is operators_of(fn)

    def test_a_replacement_of_the_same_type_keeps_the_types_above_it(self) -> None:
        x, y = relay.var("x", (2, 3)), relay.var("y", (2, 3))
        mod = infer_module(IRModule({"main": Function((x, y), relay.op.tanh(relay.op.add(x, y)))}))
        main: Function = mod["main"]
        same = substitute(main.body, {main.params[1]: Constant(np.zeros((2, 3), np.float32))})
        assert same.checked_type == main.body.checked_type
        other = substitute(main.body, {main.params[1]: Constant(np.zeros((1, 3), np.float32))})
        assert other.checked_type_or_none is None

    def test_a_walk_keeps_no_graph_alive(self) -> None:
        body: Call = relay.op.tanh(relay.var("x", (2,)))
        for _ in range(100):
            body = relay.op.tanh(body)
        list(post_order(body))
        inner, outer = ref(body.args[0]), ref(body)
        del body
        assert inner() is None
        assert outer() is None

    def test_post_order_gives_operands_first_and_each_node_once(self) -> None:
        x = Var("x")
        t = x + x
        root = t * t
        order = list(post_order(root))
        assert order.index(x) < order.index(t) < order.index(root)
        assert len(order) == len(set(order)) == 5

    def test_uses_are_edges(self) -> None:
        x = Var("x")
        t = x + x
        uses = count_uses(Tuple((t, t, x)))
        assert (uses[x], uses[t]) == (3, 2)

    def test_calls_of_one_operator(self) -> None:
        x = Var("x")
        a, b = call_op("nn.relu", x), call_op("exp", x)
        assert extract_calls(Tuple((b, a)), "nn.relu") == [a]

    def test_constant_expressions_reach_no_variable(self) -> None:
        assert is_constant_expr(const() + const())
        assert not is_constant_expr(const() + Var("x"))


class TestVariables:
    def test_free_bound_and_all_come_in_order_of_occurrence(self) -> None:
        x, y, z, v = (Var(n) for n in "xyzv")
        expr = Let(v, y + x, Function((z,), (z + v) + x))
        assert free_vars(expr) == [y, x]
        assert set(bound_vars(expr)) == {v, z}
        assert set(all_vars(expr)) == {v, x, y, z}

    def test_pattern_variables_are_bound(self) -> None:
        h = Var("h")
        con = Constructor("Some", (TensorType(()),), GlobalTypeVar("Option"), 0)
        match = Match(Var("d"), (Clause(PatternConstructor(con, (PatternVar(h),)), h + h),))
        assert bound_vars(match) == [h]
        assert [v.name_hint for v in free_vars(match)] == ["d"]


class TestBind:
    def test_a_bound_parameter_leaves_the_function(self) -> None:
        x, y = Var("x"), Var("y")
        c = const()
        bound = bind(Function((x, y), x + y), {x: c})
        assert isinstance(bound, Function)
        assert bound.params == (y,)
        assert bound.body.operands()[1] is c

    def test_new_free_variables_join_the_parameters(self) -> None:
        x, y, z = Var("x"), Var("y"), Var("z")
        bound = bind(Function((x, y), x + y), {x: call_op("add", z, y)})
        assert isinstance(bound, Function)
        assert bound.params == (y, z)

    def test_captured_variables_stay_captured(self) -> None:
        x, outer = Var("x"), Var("outer")
        bound = bind(Function((x,), x + outer), {x: call_op("exp", outer)})
        assert isinstance(bound, Function)
        assert bound.params == ()

    def test_sharing_survives(self) -> None:
        x = Var("x")
        t = x + x
        bound = bind(t * t, {x: const()})
        assert bound.operands()[1] is bound.operands()[2]

    def test_nothing_to_bind_returns_the_same_object(self) -> None:
        x = Var("x")
        fn = Function((x,), x + x)
        assert bind(fn, {}) is fn
        assert bind(fn, {Var("x"): const()}) is fn

    def test_an_inner_binder_is_refused(self) -> None:
        x, v = Var("x"), Var("v")
        with pytest.raises(BindError, match="%v"):
            bind(Let(v, x, v), {v: const()})
        with pytest.raises(BindError, match="%x"):
            bind(Tuple((Function((x,), x),)), {x: const()})


class Leftover(TempExpr):
    __slots__ = ()


def problems(expr: Expr) -> str:
    return "; ".join(str(p) for p in well_formed(expr))


class TestWellFormed:
    def test_a_sound_module_has_no_problem(self) -> None:
        mod = compiler.parse(
            '#[version = "0.0.5"]\ndef @main(%c: bool) { let %x = 1f; if (%c) { %x } else { 2f } }'
        )
        assert well_formed(mod) == []

    def test_an_unbound_variable(self) -> None:
        assert "%x is not bound" in problems(Function((), Var("x")))
        assert problems(Var("x")) == ""

    def test_a_variable_outside_its_scope(self) -> None:
        v, c = Var("v"), Var("c")
        leaked = Function((c,), If(c, Let(v, const(), v), v))
        assert "%v is used outside its scope" in problems(leaked)
        early = Function((), Tuple((v, Let(v, const(), v))))
        assert "%v" in problems(early)

    def test_a_shared_node_takes_no_variable_out_of_its_scope(self) -> None:
        v, x, c = Var("v"), Var("x"), Var("c")
        shared = call_op("exp", v)
        inside = {
            "let": Let(v, const(), shared),
            "function": Call(Function((v,), shared), (const(),)),
            "branch": If(c, Let(v, const(), shared), const()),
        }
        for value in inside.values():
            assert problems(Function((c,), value)) == ""
            for both in (Tuple((value, shared)), Tuple((shared, value))):
                assert problems(Function((c,), both)) == "%v is used outside its scope"
        recursive = Let(v, Function((x,), Call(v, (x,))), v)
        assert problems(Function((), recursive)) == ""

    def test_a_variable_bound_twice(self) -> None:
        x = Var("x")
        assert "%x is bound twice" in problems(Function((x, x), x))
        assert "%x is bound twice" in problems(Function((x,), Let(x, const(), x)))

    def test_a_value_is_not_in_the_scope_of_its_let_unless_it_is_a_function(self) -> None:
        v = Var("v")
        assert "%v" in problems(Function((), Let(v, v + v, v)))
        y = Var("y")
        assert problems(Function((), Let(v, Function((y,), v), v))) == ""

    def test_a_temporary_expression(self) -> None:
        assert "Leftover" in problems(call_op("exp", Leftover()))

    def test_a_primitive_function_holds_operators_only(self) -> None:
        x = Var("x")
        good = Function((x,), call_op("exp", Tuple((x,)))).with_attr("Primitive", 1)
        assert problems(good) == ""
        f = GlobalVar("f")
        from compiler.ir.expr import Call

        bad = Function((x,), Call(f, (x,))).with_attr("Primitive", 1)
        assert "Primitive" in problems(bad)

    def test_modules_are_checked_function_by_function(self) -> None:
        mod = IRModule({"a": Function((), Var("p")), "b": Function((), Var("q"))})
        assert len(well_formed(mod)) == 2


def test_a_primitive_function_may_not_capture() -> None:
    x, y = relay.var("x", (2,)), relay.var("y", (2,))
    kernel = relay.Function((x,), relay.op.add(x, y)).with_attr("Primitive", 1)
    problems = well_formed(relay.Function((y,), relay.Call(kernel, (y,))))
    assert [p.what for p in problems] == ["a Primitive function may not hold %y"]
