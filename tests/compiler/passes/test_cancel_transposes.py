from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay, transform
from compiler.ir.analysis import post_order
from compiler.ir.expr import Expr, is_op_call
from compiler.ir.module import IRModule

op = relay.op
LAST, FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
SHAPE = (2, 3, 4, 5)


def transposes(mod: IRModule) -> int:
    return sum(is_op_call(n, "transpose") for n in post_order(mod["main"]))


def check(body: Expr, left: int) -> IRModule:
    """Run the pass on a function of x and y; values stay, ``left`` transposes are left."""
    params = [v for v in post_order(body) if isinstance(v, relay.Var)]
    mod = relay.module(relay.Function(tuple(params), body))
    with transform.PassContext(verify=True):
        new = transform.CancelTransposes()(mod)
    assert transposes(new) == left
    assert (new["main"] is mod["main"]) == (transposes(mod) == left)
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(p.checked_type.shape).astype("f") for p in mod["main"].params]  # type: ignore[attr-defined]
    for a, b in zip(compiler.evaluate(new, data), compiler.evaluate(mod, data), strict=True):
        np.testing.assert_array_equal(a, b)
    return new


def x() -> Any:
    return relay.var("x", SHAPE)


def constant(*shape: int) -> Any:
    return relay.const(np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape))


def test_a_channels_last_network_loses_its_inner_pairs() -> None:
    weight = constant(3, 3, 1, 1)
    value: Any = op.transpose(x(), axes=LAST)
    for _ in range(3):
        value = op.transpose(op.nn.conv2d(op.transpose(value, axes=FIRST), weight), axes=LAST)
        value = op.nn.relu(op.add(value, constant(3)))
    check(value, 1)


def test_a_residual_of_two_transposed_values_needs_one_transpose() -> None:
    a = x()
    sides = [op.transpose(f(a), axes=LAST) for f in (op.tanh, op.exp)]
    new = check(op.transpose(op.add(*sides), axes=FIRST), 0)
    assert is_op_call(new["main"].body, "add")


@pytest.mark.parametrize("shape", [(), (3,), (5, 3), (4, 1, 3), (2, 1, 1, 1)])
def test_constants_are_turned_the_other_way(shape: tuple[int, ...]) -> None:
    data = op.transpose(x(), axes=LAST)
    check(op.transpose(op.subtract(constant(*shape), data), axes=FIRST), 0)


def test_two_that_meet_are_one() -> None:
    check(op.transpose(op.nn.relu(op.transpose(x(), axes=LAST)), axes=LAST), 1)


def test_axes_left_out_mean_reversed() -> None:
    check(op.transpose(op.exp(op.transpose(x()))), 0)


@pytest.mark.parametrize(
    "between",
    [
        lambda v: op.nn.softmax(v),
        lambda v: op.nn.bias_add(v, constant(3), axis=-1),
        lambda v: op.add(v, relay.var("y", (4, 5, 3))),
        lambda v: op.mean(v, axis=[1], keepdims=True),
        lambda v: op.trilu(v, relay.const(0, "int64")),
    ],
    ids=["softmax", "bias_add", "a variable", "mean", "trilu"],
)
def test_what_looks_at_axes_is_not_passed(between: Any) -> None:
    check(op.transpose(between(op.transpose(x(), axes=LAST)), axes=FIRST), 2)


def test_transposes_stay_where_none_can_be_cancelled() -> None:
    check(op.nn.relu(op.transpose(x(), axes=LAST)), 1)


def test_a_transpose_with_many_readers_is_not_multiplied() -> None:
    turned = op.transpose(x(), axes=LAST)
    values = [op.tanh(turned), op.exp(turned), op.sqrt(op.abs(turned))]
    check(relay.Tuple([op.nn.softmax(v) for v in values]), 1)


def test_five_thousand_operators_take_no_recursion() -> None:
    data = x()
    value: Any = op.transpose(data, axes=LAST)
    for _ in range(5_000):
        value = op.nn.relu(value)
    mod = relay.module(relay.Function((data,), op.transpose(value, axes=FIRST)))
    assert transposes(transform.CancelTransposes()(mod)) == 0
