"""Mutators and rewriters: identity laws, sharing, order, binders, loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from compiler import relay
from compiler.errors import DeepGraphError, MutatorError, RewriteLoopError
from compiler.ir.adt import Clause, Constructor, Match, PatternVar, RefCreate, RefRead, RefWrite
from compiler.ir.expr import Call, Expr, Function, Let, Op, Tuple, TupleGetItem, Var, is_op_call
from compiler.ir.functor import (
    ComposedRewriter,
    ExprMutator,
    ExprRewriter,
    MixedModeMutator,
    post_order_rewrite,
    rewrite_until_stable,
)
from compiler.ir.inference.infer_type import infer_expr
from compiler.ir.structural import structural_equal
from compiler.ir.ty import GlobalTypeVar, TensorType
from compiler.span import Span
from tests.compiler.work import calls_of
from tests.each import each

Rewriting = Callable[[Expr], Expr]

IDENTITIES: list[Rewriting] = [
    lambda e: ExprMutator().visit(e),
    lambda e: MixedModeMutator().visit(e),
    lambda e: MixedModeMutator(pre=True).visit(e),
    lambda e: post_order_rewrite(e, ExprRewriter()),
]


def one_of_every_kind() -> list[Expr]:
    x, y, c = relay.var("x", (2,)), relay.var("y", (2,)), relay.var("c", (), "bool")
    nil = Constructor("Nil", (), GlobalTypeVar("List"), 0)
    total = relay.op.add(x, y)
    return [
        x,
        relay.GlobalVar("main"),
        relay.const(1.0),
        Op.get("add"),
        nil,
        total,
        relay.Tuple((x, total)),
        relay.Tuple(()),
        relay.TupleGetItem(relay.Tuple((x, y)), 1),
        relay.Function((x,), total),
        relay.Let(x, relay.const([1.0, 2.0]), total),
        relay.If(c, x, y),
        RefCreate(x),
        RefRead(RefCreate(x)),
        RefWrite(RefCreate(x), y),
        Match(Call(nil, ()), (Clause(PatternVar(x), total),), False),
    ]


@pytest.mark.parametrize("expr", one_of_every_kind(), ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("run", IDENTITIES, ids=["mutator", "mixed", "mixed-pre", "rewriter"])
def test_nothing_to_do_returns_the_very_expression(run: Rewriting, expr: Expr) -> None:
    assert run(expr) is expr


@pytest.mark.parametrize("run", IDENTITIES, ids=["mutator", "mixed", "mixed-pre", "rewriter"])
def test_a_graph_of_two_to_the_hundred_paths_takes_linear_time(run: Rewriting) -> None:
    y: Expr = relay.const(1.0)
    for _ in range(100):
        y = relay.op.add(y, y)
    assert calls_of(lambda: run(y)) < 100 * 60
    assert run(y) is y


@cache
def deep_graphs() -> tuple[Expr, Expr]:
    """A chain of 10,000 calls, and one of 5,000 lets."""
    x, add = relay.var("x", (2,)), Op.get("add")
    calls: Expr = x
    for _ in range(10_000):
        calls = Call(add, (calls, x))
    lets: Expr = x
    for _ in range(5_000):
        lets = Let(relay.var("v"), Call(add, (x, x)), lets)
    return calls, lets


@pytest.mark.parametrize("run", IDENTITIES, ids=["mutator", "mixed", "mixed-pre", "rewriter"])
def test_deep_chains_of_calls_and_lets_pass(run: Rewriting) -> None:
    for deep in each(deep_graphs()):
        assert run(deep) is deep


class ExpToTanh(ExprRewriter):
    def rewrite_call(self, pre: Call, post: Any) -> Expr:
        return relay.op.tanh(post.args[0]) if is_op_call(pre, "exp") else post


def test_a_rewritten_shared_node_stays_one_object() -> None:
    x = relay.var("x", (2,))
    t = relay.op.exp(x)
    new = post_order_rewrite(relay.Tuple((relay.op.add(t, t), t)), ExpToTanh())
    assert isinstance(new, Tuple)
    total, item = new.fields
    assert isinstance(total, Call)
    assert total.args[0] is total.args[1] is item
    assert is_op_call(item, "tanh")


def test_a_rebuilt_node_keeps_span_and_attrs_and_drops_its_type() -> None:
    span = Span("onnx:total")
    mod = relay.module(
        Call(
            Op.get("add"), (relay.op.exp(relay.var("x", (2,))), relay.const([1.0, 2.0])), span=span
        )
    )
    call = mod["main"].body
    assert call.checked_type == TensorType((2,))
    new = post_order_rewrite(call, ExpToTanh())
    assert new.span is call.span
    assert new.checked_type_or_none is None


def test_rewrites_run_once_per_node_in_post_order() -> None:
    class Note(MixedModeMutator):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Expr] = []

        def rewrite_call(self, pre: Call, post: Call) -> Expr:
            self.seen.append(pre)
            return post

    x = relay.var("x", (2,))
    left, right = relay.op.exp(x), relay.op.tanh(x)
    total = relay.op.add(left, right)
    root = relay.op.add(total, left)
    note = Note()
    note.visit(root)
    assert note.seen == [left, right, total, root]


def test_hooks_of_tuples_see_original_and_rebuilt_node() -> None:
    class TakeField(MixedModeMutator):
        def rewrite_tuple_getitem(self, pre: TupleGetItem, post: TupleGetItem) -> Expr:
            assert isinstance(post.tuple, Tuple)
            return post.tuple.fields[post.index]

    x, y = relay.var("x"), relay.var("y")
    item = relay.TupleGetItem(relay.Tuple((x, y)), 1)
    assert TakeField().visit(relay.op.exp(item)).args[0] is y  # type: ignore[attr-defined]


def test_pre_rewrites_run_from_the_root_before_children() -> None:
    class DoubleNegation(MixedModeMutator):
        def pre_rewrite_call(self, call: Call) -> Expr | None:
            inner = call.args[0]
            if is_op_call(call, "negative") and is_op_call(inner, "negative"):
                assert isinstance(inner, Call)
                return inner.args[0]
            return None

    x = relay.var("x", (2,))
    z: Expr = x
    for _ in range(7):
        z = relay.op.negative(z)
    new = DoubleNegation(pre=True).visit(z)
    assert structural_equal(new, relay.op.negative(x), map_free_vars=False)
    # Without the flag the hook is not asked.
    assert DoubleNegation().visit(z) is z


def test_a_pre_rewrite_that_never_rests_is_an_error() -> None:
    class Swap(MixedModeMutator):
        def pre_rewrite_call(self, call: Call) -> Expr | None:
            return relay.op.add(call.args[1], call.args[0])

    with pytest.raises(RewriteLoopError, match="16"):
        Swap(pre=True).visit(relay.op.add(relay.var("x"), relay.var("y")))


def test_every_let_of_a_chain_is_offered_once() -> None:
    class Lets(ExprRewriter):
        def __init__(self) -> None:
            self.seen: list[Let] = []

        def rewrite_let(self, pre: Let, post: Any) -> Expr:
            self.seen.append(pre)
            return post  # type: ignore[no-any-return]

    x, a, b = relay.var("x", (2,)), relay.var("a"), relay.var("b")
    inner = relay.Let(b, relay.op.exp(a), b)
    outer = relay.Let(a, relay.op.exp(x), inner)
    lets = Lets()
    post_order_rewrite(outer, lets)
    assert lets.seen == [inner, outer]


@pytest.mark.parametrize("binder", ["param", "let"])
def test_a_binder_must_stay_a_variable(binder: str) -> None:
    class Constants(ExprRewriter):
        def rewrite_var(self, pre: Var, post: Expr) -> Expr:
            return relay.const(1.0)

    v = relay.var("v", ())
    expr: Expr = relay.Function((v,), v) if binder == "param" else relay.Let(v, relay.const(2.0), v)
    with pytest.raises(MutatorError, match="%v"):
        post_order_rewrite(expr, Constants())


def test_a_renamed_variable_is_renamed_at_its_binder_too() -> None:
    class Retype(ExprMutator):
        def visit_type(self, ty: Any) -> Any:
            return TensorType(ty.shape, "float16")

    x = relay.var("x", (2,))
    new = Retype().visit(relay.Function((x,), relay.op.exp(x)))
    assert isinstance(new, Function)
    assert new.params[0].type_annotation == TensorType((2,), "float16")
    assert new.body.args[0] is new.params[0]  # type: ignore[attr-defined]


def test_composed_rewriters_see_each_others_results() -> None:
    class TanhToSigmoid(ExprRewriter):
        def rewrite_call(self, pre: Call, post: Any) -> Expr:
            return relay.op.sigmoid(post.args[0]) if is_op_call(post, "tanh") else post

    x = relay.var("x", (2,))
    new = post_order_rewrite(relay.op.exp(x), ComposedRewriter([ExpToTanh(), TanhToSigmoid()]))
    assert is_op_call(new, "sigmoid")


def test_rewriting_until_stable_stops_or_says_that_it_does_not() -> None:
    class Grow(ExprRewriter):
        def rewrite_call(self, pre: Call, post: Any) -> Expr:
            return relay.op.exp(post)

    x = relay.var("x", (2,))
    assert is_op_call(rewrite_until_stable(ExpToTanh(), relay.op.exp(x)), "tanh")
    with pytest.raises(RewriteLoopError, match="3 rounds"):
        rewrite_until_stable(Grow(), relay.op.exp(x), max_iters=3)


def test_a_mutator_with_its_own_call_handler_survives_deep_graphs() -> None:
    class Natural(ExprMutator):
        def visit_call(self, call: Call, *args: Any) -> Expr:
            return super().visit_call(call)

    x = relay.var("x", (2,))
    z: Expr = x
    for _ in range(5_000):
        z = relay.op.exp(z)
    with pytest.raises(DeepGraphError, match="Natural"):
        Natural().visit(z)


def test_new_calls_come_from_the_node_they_replace() -> None:
    x = relay.var("x", (2,))
    inner = relay.op.exp(x).with_fields(span=Span("onnx:first"))
    outer = relay.op.tanh(inner).with_fields(span=Span("onnx:second"))

    class Replace(ExprRewriter):
        def rewrite_call(self, pre: Call, post: Call) -> Expr:
            return relay.op.negative(relay.op.sqrt(*post.args))

    new = post_order_rewrite(outer, Replace())
    sources = []
    while isinstance(new, Call):
        sources.append(str(new.span))
        new = new.args[0]
    assert sources == ["ONNX node 'second'"] * 2 + ["ONNX node 'first'"] * 2
    assert relay.op.exp(x).span is None


def test_a_span_of_its_own_is_kept() -> None:
    x = relay.var("x", (2,))
    call = relay.op.exp(x).with_fields(span=Span("onnx:first"))

    class Replace(MixedModeMutator):
        def rewrite_call(self, pre: Call, post: Call) -> Expr:
            return relay.op.tanh(x).with_fields(span=Span("elsewhere"))

    assert str(Replace().visit(call).span).startswith("elsewhere")


@pytest.mark.parametrize(("shape", "kept"), [((2, 3), True), ((1, 3), False)])
def test_a_call_over_arguments_of_the_same_types_keeps_its_type(
    shape: tuple[int, ...], kept: bool
) -> None:
    x, y = relay.var("x", (2, 3)), relay.var("y", (2, 3))
    given = infer_expr(relay.op.tanh(relay.op.add(x, y)))
    other = infer_expr(relay.op.exp(relay.var("z", shape)))

    class Replace(MixedModeMutator):
        def visit_var(self, var: Var, *args: Any) -> Expr:
            return other if var is y else var

    new = Replace().visit(given)
    assert new is not given
    assert new.checked_type_or_none == (given.checked_type if kept else None)
