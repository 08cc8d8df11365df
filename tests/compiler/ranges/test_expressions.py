"""ExpressionRanges: bounds of what a pass builds, node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.dataflow import dataflow
from compiler.ir.expr import Expr, Tuple, TupleGetItem
from compiler.ir.inference.infer_type import infer_module
from compiler.ops.op_call import op_call
from compiler.ops.rules.integer_calls import add, cast, clip, multiply, scalar
from compiler.ranges import expressions
from compiler.ranges.analysis import value_bounds
from compiler.ranges.expressions import ExpressionRanges
from tests.compiler.bounded import bounds_with

X = relay.var("x", (1, 4), "int8")


def of(expr: Expr) -> tuple[int, int]:
    return ExpressionRanges().of(expr)


def dense(factor: int) -> Expr:
    """Sums with a weight as realization makes it, of floats that are rounded; the ends are 0 and
    100 times the factor, the largest row adds up to 101 times it."""
    data = relay.const(np.array([[100, 0, 0, 1], [0, 2, 3, 1]], np.float32))
    rounded = cast(clip(op_call("round", multiply(data, scalar(1, "float32"))), 0, 127), "int32")
    weight = multiply(rounded, scalar(factor, "int32"))
    return op_call("nn.dense", cast(X, "int32"), weight, out_dtype="int32")


def test_bounds_are_those_of_the_finished_function() -> None:
    total = add(dense(2), relay.const(np.array([7, -9], np.int32)))
    values = [total, clip(total, -100, 50), cast(clip(total, -100, 50), "int8")]
    ranges = ExpressionRanges()
    found = [ranges.of(value) for value in values]
    flow = dataflow(infer_module(relay.module(relay.Function([X], Tuple(tuple(values))))))
    bounds = [value_bounds(flow)[value] for value in flow.outputs]
    assert found[1:] == [(bound.lowest, bound.highest) for bound in bounds[1:]]
    assert found[0][0] <= bounds[0].lowest
    assert bounds[0].highest <= found[0][1]


def test_a_value_held_in_float_stands_for_int32() -> None:
    held = op_call("round", multiply(relay.var("y", (3,)), scalar(2, "float32")))
    assert of(held) == (-(2**31), 2**31 - 1)
    assert of(clip(held, -127, 127)) == (-127, 127)


def test_matrices_are_computed_where_their_ends_would_overflow() -> None:
    assert of(dense(2)) == (-4 * 128 * 200, 4 * 127 * 200)
    assert of(dense(1 << 17)) == (-101 * 128 << 17, 101 * 127 << 17)


def test_what_leaves_its_dtype_has_the_bounds_that_it_reaches() -> None:
    product = multiply(cast(X, "int32"), scalar(1 << 25, "int32"))
    ranges = ExpressionRanges()
    assert ranges.of(product) == (-(2**32), 2**32)
    assert ranges.of(clip(product, -5, 6)) == (-5, 6)


def test_a_sum_of_constants_that_leaves_its_dtype_is_found() -> None:
    most = relay.const(np.array([[2**31 - 1]], np.int32))
    assert of(add(most, most)) == (2 - 2**32, 2**32 - 2)


def test_vectors_of_constants_are_computed() -> None:
    bias = relay.const(np.array([[0.3], [2.6]], np.float32))
    one, two = relay.const(np.array([0.5], np.float32)), relay.const(np.array([2], np.float32))
    assert of(cast(op_call("round", multiply(bias, multiply(one, two))), "int32")) == (0, 3)


def test_a_state_is_anything_whatever_the_first_one_is() -> None:
    first = relay.const(np.zeros(3, np.int16))
    assert of(op_call("scan.state", first, loop="a", length=2)) == (-(2**15), 2**15 - 1)


def test_steps_are_elements_of_what_is_there() -> None:
    steps = clip(relay.var("y", (5, 2), "int8"), -3, 4)
    assert of(op_call("scan.step", steps, loop="a", length=5)) == (-3, 4)


def test_fields_are_found_however_they_are_nested() -> None:
    a, b = clip(X, 0, 3), clip(X, -9, 1)
    inner = TupleGetItem(Tuple((a, Tuple((a, b)))), 1)
    assert of(TupleGetItem(inner, 1)) == (-9, 1)


def test_what_control_flow_gives_may_be_anything() -> None:
    chosen = relay.If(relay.const(np.array(True)), clip(X, 0, 1), clip(X, 2, 3))
    ranges = ExpressionRanges()
    assert ranges.of(chosen) == (-128, 127)
    assert ranges.of(clip(chosen, -1, 2)) == (-1, 2)


def test_every_node_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    analyse = expressions.analyse_step
    monkeypatch.setattr(
        expressions, "analyse_step", lambda step, ctx: (seen.append(step), analyse(step, ctx))
    )
    bounds_of, value = bounds_with(X, 0, 0), X
    for _ in range(5_000):
        value = op_call("maximum", value, value)
    assert [bounds_of(value), bounds_of(value)] == [(0, 0)] * 2
    assert len(seen) == 5_000
