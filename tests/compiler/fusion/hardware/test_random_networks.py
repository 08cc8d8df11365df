"""Groups of random networks are legal and keep what is computed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay, transform
from compiler.fusion.hardware.cost import hardware_cost
from compiler.fusion.hardware.description import load_hdfg
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule

nn = relay.op.nn
SHAPE = (1, 4, 6, 6)


def conv(data: Expr, seed: int) -> Expr:
    weight = np.random.default_rng(seed).standard_normal((4, 4, 1, 1)).astype("float32")
    return nn.conv2d(data, relay.const(weight), kernel_size=(1, 1), channels=4)


def bias(data: Expr) -> Expr:
    return relay.op.add(data, relay.const(np.ones((4, 1, 1), "float32")))


UNARY: dict[str, Callable[[Expr], Expr]] = {
    "conv": lambda e: conv(e, 3),
    "bias": bias,
    "relu": nn.relu,
    "sigmoid": relay.op.sigmoid,
    "pool": lambda e: nn.max_pool2d(e, pool_size=(3, 3), strides=(1, 1), padding=1),
    "reshape": lambda e: relay.op.reshape(e, newshape=SHAPE),
    "scale": lambda e: relay.op.multiply(e, relay.const(np.float32(0.5))),
}


@st.composite
def graphs(draw: st.DrawFn, max_calls: int = 7) -> IRModule:
    """Small networks with residual sums, fan-out, tuples and operators no unit takes."""
    values: list[Expr] = [relay.var("x", SHAPE)]
    for _ in range(draw(st.integers(2, max_calls))):
        kind = draw(st.sampled_from([*UNARY, "sum", "sum", "join"]))
        one = values[draw(st.integers(max(0, len(values) - 3), len(values) - 1))]
        two = values[draw(st.integers(0, len(values) - 1))]
        if kind == "sum":
            values.append(relay.op.add(one, two))
        elif kind == "join":
            joined = relay.op.concatenate([one, two], axis=1)
            values.append(relay.op.strided_slice(joined, begin=(0, 0), end=(1, 4), axes=(0, 1)))
        else:
            values.append(UNARY[kind](one))
    return relay.module(values[-1])


def sum_of_a_value_and_its_reshape() -> IRModule:
    """A graph that hypothesis found: both operands of the sum are one value, one is reshaped."""
    value = nn.relu(relay.op.reshape(nn.relu(relay.var("x", SHAPE)), newshape=SHAPE))
    return relay.module(relay.op.add(relay.op.reshape(value, newshape=SHAPE), value))


@settings(max_examples=60, deadline=None)
@given(graphs(max_calls=12))
@example(mod=sum_of_a_value_and_its_reshape())
def test_meaning_is_kept_and_groups_are_legal(
    check_groups: Callable[[IRModule, str], int],
    description_text: Callable[[str], str],
    mod: IRModule,
) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    opu = load_hdfg("opu")
    wanted = evaluate(mod, [x])[0]
    new = transform.FuseOpHW(opu)(mod)
    np.testing.assert_array_equal(evaluate(new, [x])[0], wanted)
    assert check_groups(new, description_text("opu")) == hardware_cost(new, opu).num_groups
