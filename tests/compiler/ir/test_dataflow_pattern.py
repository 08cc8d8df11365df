"""Dataflow patterns: what matches, what is bound, rewriting and partitioning."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import RewriteLoopError, UnknownOpError
from compiler.ir.dataflow_pattern import (
    DFPattern,
    DFPatternCallback,
    NodeMap,
    dominates,
    is_constant,
    is_op,
    is_tuple,
    is_tuple_get_item,
    is_var,
    match,
    partition,
    rewrite,
    wildcard,
)
from compiler.ir.expr import Call, Expr, Function
from compiler.ir.op import OpPattern
from compiler.ir.ty import TensorType

op = relay.op
x, y = relay.var("x", (2, 4)), relay.var("y", (2, 4))
w = relay.var("w", (4, 4))


def test_a_call_pattern_binds_operator_and_arguments() -> None:
    data, kernel = wildcard(), wildcard()
    dense = is_op("nn.dense")(data, kernel)
    expr = op.nn.relu(op.nn.dense(x, w))
    found = match(is_op("nn.relu")(dense), expr)
    assert found is not None
    assert (found[data], found[kernel], found[dense]) == ([x], [w], [expr.args[0]])
    assert match(dense, expr) is None


def test_a_pattern_used_twice_must_match_the_same_object() -> None:
    twice = wildcard()
    assert match(is_op("add")(twice, twice), op.add(x, x)) is not None
    assert match(is_op("add")(twice, twice), op.add(op.exp(x), op.exp(x))) is None


def test_leaves_match_by_kind_and_name() -> None:
    assert match(is_var("x"), x) is not None
    assert match(is_var("z"), x) is None
    assert match(is_var(), y) is not None
    assert match(is_constant(), relay.const(1.0)) is not None
    assert match(is_constant(), x) is None


def test_tuples_and_items() -> None:
    pair = relay.Tuple((x, y))
    assert match(is_tuple([is_var("x"), wildcard()]), pair) is not None
    assert match(is_tuple([wildcard()]), pair) is None
    item = relay.TupleGetItem(pair, 1)
    assert match(is_tuple_get_item(wildcard(), 1), item) is not None
    assert match(is_tuple_get_item(wildcard(), 0), item) is None
    assert match(is_tuple_get_item(is_tuple([wildcard(), is_var("y")])), item) is not None


def test_alternatives_forget_what_the_failed_side_bound() -> None:
    a, b = wildcard(), wildcard()
    left = is_op("add")(a, is_constant())
    right = is_op("add")(b, a)
    found = match(left | right, op.add(x, y))
    assert found is not None
    assert (found[b], found[a]) == ([x], [y])


def test_optional_takes_the_longer_match_where_there_is_one() -> None:
    dense = is_op("nn.dense")(wildcard(), wildcard())
    pattern = dense.optional(lambda p: is_op("nn.relu")(p))
    plain, with_relu = op.nn.dense(x, w), op.nn.relu(op.nn.dense(x, w))
    assert match(pattern, plain) is not None
    assert match(pattern, with_relu) is not None
    assert match(pattern, op.tanh(plain)) is None


def test_conditions_on_attributes_and_types() -> None:
    typed = relay.module(relay.Function((x,), op.sum(x, axis=[1], keepdims=True)))["main"].body
    total = is_op("sum")(wildcard())
    assert match(total.has_attr({"axis": [1]}), typed) is not None
    assert match(total.has_attr({"axis": [0]}), typed) is None
    assert match(total.has_attr({"no_such": 1}), typed) is None
    assert match(total.has_type(TensorType((2, 1))), typed) is not None
    assert match(total.has_type(TensorType((2,))), typed) is None
    elementwise = wildcard().has_attr({"TOpPattern": OpPattern.ELEMWISE})(wildcard())
    assert match(elementwise, op.tanh(x)) is not None
    assert match(elementwise, op.sum(x, axis=[1])) is None
    kernel = relay.Function((x,), op.exp(x)).with_attr("Composite", "k")
    assert match(wildcard().has_attr({"Composite": "k"}), kernel) is not None


def test_operators_on_patterns_spell_calls() -> None:
    a, b = wildcard(), wildcard()
    assert match((a + b) * a - b / a, (x + y) * x - y / x) is not None


def test_an_unknown_operator_is_refused_when_the_pattern_is_made() -> None:
    with pytest.raises(UnknownOpError, match="conv2dd"):
        is_op("nn.conv2dd")


def dominator() -> DFPattern:
    elementwise = wildcard().has_attr({"TOpPattern": OpPattern.ELEMWISE})(wildcard())
    return dominates(
        is_op("nn.dense")(wildcard(), wildcard()), elementwise, is_op("add")(wildcard(), wildcard())
    )


def test_a_dominator_pattern_crosses_any_number_of_nodes() -> None:
    d: Expr = op.nn.dense(x, w)
    left: Expr = d
    for _ in range(5_000):
        left = op.tanh(left)
    assert match(dominator(), op.add(left, op.exp(d))) is not None


def test_a_dominator_pattern_wants_one_parent_and_nothing_from_elsewhere() -> None:
    d = op.nn.dense(x, w)
    assert match(dominator(), op.add(op.tanh(d), op.exp(x))) is None
    assert match(dominator(), op.add(op.tanh(d), op.exp(op.nn.dense(x, w)))) is None
    assert match(dominator(), op.add(op.tanh(d), op.sum(d, axis=[0]))) is None


class Rule(DFPatternCallback):
    """pattern → what ``build`` makes of the bindings."""

    def __init__(self, pattern: DFPattern, build: Any) -> None:
        self.pattern = pattern
        self.build = build

    def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
        return self.build(post, node_map)  # type: ignore[no-any-return]


def negations() -> Rule:
    a = wildcard()
    return Rule(is_op("negative")(is_op("negative")(a)), lambda post, found: found[a][0])


def test_rewriting_goes_on_until_nothing_changes() -> None:
    z: Expr = x
    for _ in range(9):
        z = op.negative(z)
    assert compiler.structural_equal(rewrite(negations(), z), op.negative(x))
    assert rewrite(negations(), x) is x


def test_bindings_are_rewritten_before_the_callback_sees_them() -> None:
    a, b = wildcard(), wildcard()
    swap = Rule(
        is_op("subtract")(a, b), lambda post, found: op.add(found[a][0], op.negative(found[b][0]))
    )
    new = rewrite(swap, op.subtract(op.subtract(x, y), y))
    expected = op.add(op.add(x, op.negative(y)), op.negative(y))
    assert compiler.structural_equal(new, expected)


def test_a_rule_that_returns_an_equal_copy_comes_to_rest() -> None:
    copy = Rule(is_op("exp")(wildcard()), lambda post, found: op.exp(post.args[0]))
    expr = op.tanh(op.exp(x))
    assert rewrite(copy, expr) is expr


def test_a_rule_that_grows_forever_is_an_error() -> None:
    grow = Rule(is_op("exp")(is_var()), lambda post, found: op.tanh(post))
    with pytest.raises(RewriteLoopError, match="100"):
        rewrite([grow], op.exp(x))


def test_rewriting_a_deep_chain_does_not_recurse() -> None:
    z: Expr = x
    for _ in range(5_000):
        z = op.tanh(z)
    a = wildcard()
    new = rewrite(Rule(is_op("exp")(a), lambda post, found: op.tanh(found[a][0])), op.exp(z))
    assert isinstance(new, Call)
    assert new.args[0] is z


def dense_relu() -> DFPattern:
    return is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard()))


def test_partition_moves_a_match_into_a_function() -> None:
    new = partition(
        dense_relu(), op.tanh(op.nn.relu(op.nn.dense(x, w))), {"Composite": "dense_relu"}
    )
    assert isinstance(new, Call)
    call = new.args[0]
    assert isinstance(call, Call)
    assert isinstance(call.op, Function)
    assert call.op.get_attr("Composite") == "dense_relu"
    assert call.args == (x, w)
    p, q = call.op.params
    assert compiler.structural_equal(
        call.op.body, op.nn.relu(op.nn.dense(p, q)), map_free_vars=False
    )


def test_partition_keeps_constants_inside_and_values_the_same() -> None:
    bias = relay.const([1.0, 2.0, 3.0, 4.0])
    pattern = is_op("add")(wildcard(), is_constant())
    mod = relay.module(relay.Function((x,), op.tanh(op.add(x, bias))))
    body = partition(pattern, mod["main"].body)
    call = body.args[0]  # type: ignore[attr-defined]
    assert len(call.args) == 1
    new = relay.module(relay.Function(mod["main"].params, body))
    inputs = [np.float32([[0.5, -1.0, 2.0, 0.25]] * 2)]
    np.testing.assert_array_equal(compiler.evaluate(new, inputs), compiler.evaluate(mod, inputs))


def test_a_match_whose_inner_value_escapes_is_left_alone() -> None:
    d = op.nn.dense(x, w)
    expr = relay.Tuple((op.nn.relu(d), d))
    assert partition(dense_relu(), expr) is expr


def test_patterns_have_relays_methods() -> None:
    expr = op.nn.relu(op.nn.dense(x, w))
    assert dense_relu().match(expr)
    assert not dense_relu().match(x)
    assert isinstance(dense_relu().partition(expr).op, Function)  # type: ignore[attr-defined]
    shared = op.nn.dense(x, w)
    child = is_op("add")(wildcard(), wildcard())
    joined = child.dominates(is_op("nn.dense")(wildcard(), wildcard()))
    assert joined.match(op.add(op.tanh(shared), op.exp(shared)))
    assert compiler.structural_equal(negations().rewrite(op.negative(op.negative(x))), x)


def test_two_separate_matches_become_two_functions() -> None:
    inner = op.nn.relu(op.nn.dense(x, w))
    new = partition(dense_relu(), op.nn.relu(op.nn.dense(inner, w)))
    assert isinstance(new, Call)
    assert isinstance(new.op, Function)
    below = new.args[0]
    assert isinstance(below, Call)
    assert isinstance(below.op, Function)
