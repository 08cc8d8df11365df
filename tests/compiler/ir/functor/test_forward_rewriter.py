"""ForwardRewriter: order, temporaries, triggers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from compiler import relay
from compiler.ir.expr import Call, Expr, Function, Op, TempExpr, Tuple, TupleGetItem, is_op_call
from compiler.ir.functor import ForwardRewriter
from compiler.ir.op import OpRule
from compiler.ir.structural import structural_equal


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Marked(TempExpr):
    inner: Expr

    def realize(self) -> Expr:
        return relay.op.copy(self.inner)


@pytest.fixture
def rules() -> OpRule[Any]:
    """exp makes a temporary, relu passes it on, tanh declines; the others have no rule."""
    table: OpRule[Any] = OpRule("FTestForward", asked_by="a test")

    @table.register("exp")
    def make(call: Call, args: tuple[Expr, ...], ctx: Any) -> Expr | None:
        return Marked(call.with_fields(args=tuple(map(plain, args))))

    @table.register("nn.relu")
    def pass_on(call: Call, args: tuple[Expr, ...], ctx: Any) -> Expr | None:
        (arg,) = args
        return Marked(call.with_fields(args=(arg.inner,))) if isinstance(arg, Marked) else None

    @table.register("tanh")
    def decline(call: Call, args: tuple[Expr, ...], ctx: Any) -> Expr | None:
        return None

    return table


def plain(expr: Expr) -> Expr:
    return expr.inner if isinstance(expr, Marked) else expr


x = relay.var("x", (2,))
op = relay.op


def same(left: Expr, right: Expr) -> bool:
    return structural_equal(left, right)


def test_a_temporary_travels_through_rules_and_is_realized_at_the_end(rules: Any) -> None:
    new = ForwardRewriter(rules).rewrite(op.nn.relu(op.exp(x)))
    assert same(new, op.copy(op.nn.relu(op.exp(x))))


def test_a_function_body_may_stay_temporary_until_the_end(rules: Any) -> None:
    new = ForwardRewriter(rules).rewrite(relay.Function((x,), op.exp(x)))
    assert same(new, relay.Function((x,), op.copy(op.exp(x))))


@pytest.mark.parametrize("consumer", ["tanh", "sigmoid"])
def test_declined_and_missing_rules_realize_their_arguments(rules: Any, consumer: str) -> None:
    new = ForwardRewriter(rules).rewrite(relay.call(consumer, op.exp(x)))
    assert same(new, relay.call(consumer, op.copy(op.exp(x))))


def test_two_consumers_without_a_rule_share_one_realized_node(rules: Any) -> None:
    t = op.exp(x)
    new = ForwardRewriter(rules).rewrite(op.add(op.tanh(t), op.sigmoid(t)))
    assert isinstance(new, Call)
    left, right = new.args
    assert isinstance(left, Call)
    assert isinstance(right, Call)
    assert left.args[0] is right.args[0]


def test_tuples_carry_temporaries_and_give_their_fields_back(rules: Any) -> None:
    pair = relay.Tuple((op.exp(x), x))
    new = ForwardRewriter(rules).rewrite(op.nn.relu(relay.TupleGetItem(pair, 0)))
    assert same(new, op.copy(op.nn.relu(op.exp(x))))


def test_a_tuple_argument_of_an_operator_without_rule_is_realized(rules: Any) -> None:
    new = ForwardRewriter(rules).rewrite(op.concatenate(relay.Tuple((op.exp(x), x)), axis=0))
    assert same(new, op.concatenate(relay.Tuple((op.copy(op.exp(x)), x)), axis=0))


def test_an_item_of_a_tuple_literal_becomes_the_field_even_if_nothing_changed(rules: Any) -> None:
    y = relay.var("y", (2,))
    item = relay.TupleGetItem(relay.Tuple((x, y)), 1)
    assert ForwardRewriter(rules).rewrite(item) is y


def test_an_item_of_an_unchanged_call_stays_the_very_node(rules: Any) -> None:
    item = relay.TupleGetItem(op.split(x, indices_or_sections=2, axis=0), 1)
    assert isinstance(item, TupleGetItem)
    assert ForwardRewriter(rules).rewrite(item) is item


def test_nothing_to_do_returns_the_very_expression(rules: Any) -> None:
    expr = relay.Function((x,), relay.Tuple((op.tanh(op.add(x, x)), x)))
    assert ForwardRewriter(rules).rewrite(expr) is expr


def test_a_single_rule_is_asked_for_every_call_in_visiting_order() -> None:
    seen: list[str] = []

    def rule(call: Call, args: tuple[Expr, ...], ctx: Any) -> Expr | None:
        assert isinstance(call.op, Op)
        seen.append(f"{call.op.name} {ctx}")
        return None

    left, right = op.exp(x), op.tanh(x)
    expr = op.add(op.nn.relu(left), op.subtract(right, left))
    ForwardRewriter(rule, fcontext=lambda call: len(call.args)).rewrite(expr)
    assert seen == ["exp 1", "nn.relu 1", "tanh 1", "subtract 2", "add 2"]


def test_a_callee_that_is_not_an_operator_has_no_rule_in_a_table(rules: Any) -> None:
    p = relay.var("p", (2,))
    call = relay.Call(relay.Function((p,), op.nn.relu(p)), (op.exp(x),))
    new = ForwardRewriter(rules).rewrite(call)
    assert isinstance(new, Call)
    assert isinstance(new.op, Function)
    assert is_op_call(new.args[0], "copy")


def test_the_trigger_fires_on_every_edge_of_a_shared_node() -> None:
    fired: list[Expr] = []

    def trigger(expr: Expr) -> Expr:
        fired.append(expr)
        return op.copy(expr)

    t = op.exp(x)
    expr = op.add(op.nn.relu(t), t)
    new = ForwardRewriter(lambda *_: None, fmulti_ref_trigger=trigger).rewrite(expr)
    assert fired == [t, t]
    assert isinstance(new, Call)
    left, right = new.args
    assert is_op_call(right, "copy")
    assert isinstance(left, Call)
    assert is_op_call(left.args[0], "copy")
    assert left.args[0] is not right


def test_an_argument_used_twice_by_one_call_and_a_parameter_count_as_shared() -> None:
    fired: list[Expr] = []

    def trigger(expr: Expr) -> Expr:
        fired.append(expr)
        return expr

    t = op.exp(x)
    expr = relay.Function((x,), op.add(t, t))
    new = ForwardRewriter(lambda *_: None, fmulti_ref_trigger=trigger).rewrite(expr)
    # x: its parameter list and exp; t: two arguments.
    assert fired == [x, t, t]
    assert new is expr


def test_fields_of_a_shared_tuple_are_triggered_through_the_item() -> None:
    fired: list[Expr] = []

    def trigger(expr: Expr) -> Expr:
        fired.append(expr)
        return expr

    pair = relay.Tuple((op.exp(x), op.tanh(x)))
    expr = op.add(relay.TupleGetItem(pair, 0), relay.TupleGetItem(pair, 1))
    new = ForwardRewriter(lambda *_: None, fmulti_ref_trigger=trigger).rewrite(expr)
    assert [e for e in fired if isinstance(e, Tuple)] == [pair, pair]
    assert isinstance(new, Call)
    assert is_op_call(new.args[0], "exp")


def test_a_chain_of_10000_calls_is_rewritten(rules: Any) -> None:
    z: Expr = op.exp(x)
    relu = Op.get("nn.relu")
    for _ in range(10_000):
        z = Call(relu, (z,))
    assert is_op_call(ForwardRewriter(rules).rewrite(z), "copy")


def test_lets_are_rewritten_with_their_values_realized(rules: Any) -> None:
    v = relay.var("v")
    new = ForwardRewriter(rules).rewrite(relay.Let(v, op.exp(x), op.tanh(v)))
    assert same(new, relay.Let(v, op.copy(op.exp(x)), op.tanh(v)))


def test_a_temporary_may_be_a_plain_class() -> None:
    class Plain(TempExpr):
        def __init__(self, inner: Expr) -> None:
            self.inner = inner

        def realize(self) -> Expr:
            return relay.op.copy(self.inner)

    table: OpRule[Any] = OpRule("FTestPlain", asked_by="a test")

    @table.register("exp")
    def make(call: Call, args: tuple[Expr, ...], ctx: Any) -> Expr | None:
        return Plain(call.with_fields(args=args))

    assert same(ForwardRewriter(table).rewrite(op.tanh(op.exp(x))), op.tanh(op.copy(op.exp(x))))
