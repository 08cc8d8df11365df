from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay, transform
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Op

op = relay.op
Step = Callable[[Any], Any]


def constant(*shape: int) -> Any:
    return relay.const(np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape) - 3)


def hoisted(*steps: Step) -> list[str]:
    """Operators behind a convolution with a result of (4, 6, 1, 5) after the pass; values stay."""
    x = relay.var("x", (4, 3, 1, 5))
    body: Any = op.nn.conv2d(x, constant(6, 3, 1, 1))
    for step in steps:
        body = step(body)
    mod = relay.module(relay.Function((x,), body))
    with transform.PassContext(verify=True):
        new = transform.HoistEpilogues()(mod)
    data = [np.random.default_rng(0).standard_normal((4, 3, 1, 5)).astype("f")]
    for a, b in zip(compiler.evaluate(new, data), compiler.evaluate(mod, data), strict=True):
        np.testing.assert_array_equal(a, b)
    calls = [node for node in post_order(new["main"]) if isinstance(node, Call)]
    return [node.op.name for node in calls[1:] if isinstance(node.op, Op)]


def squeeze(value: Any) -> Any:
    return op.squeeze(value, axis=[2])


def volume(value: Any) -> Any:
    return op.transpose(op.reshape(value, newshape=(2, 2, 6, 1, 5)), axes=(0, 2, 1, 3, 4))


@pytest.mark.parametrize("limit", [op.nn.relu, lambda value: op.clip(value, a_min=0, a_max=6)])
def test_scale_bias_and_limit_reach_the_product(limit: Step) -> None:
    names = hoisted(
        squeeze,
        lambda value: op.multiply(value, constant(6, 1)),
        lambda value: op.add(constant(1, 6, 1), value),
        limit,
    )
    assert names[:2] == ["multiply", "add"]
    assert names[2] in ("nn.relu", "clip")
    assert names[3:] == ["squeeze"]


def test_channels_are_found_behind_reshapes_and_transposes() -> None:
    names = hoisted(volume, lambda value: op.add(value, constant(6, 1, 1, 1)), op.nn.relu)
    assert names == ["add", "nn.relu", "reshape", "transpose"]


def test_one_number_goes_past_every_move() -> None:
    assert hoisted(volume, lambda value: op.multiply(value, constant(1, 1))) == [
        "multiply",
        "reshape",
        "transpose",
    ]


@pytest.mark.parametrize(
    "steps",
    [
        (squeeze, lambda value: op.add(value, constant(6, 5))),  # one number for each element
        (squeeze, lambda value: op.add(value, constant(1, 1, 1, 1))),  # of more axes than the data
        (lambda value: op.reshape(value, newshape=(4, 30)), lambda v: op.add(v, constant(30))),
        (lambda value: op.nn.max_pool2d(value, pool_size=(1, 2)), squeeze, op.nn.relu),
        (squeeze, op.tanh, op.nn.relu),
    ],
)
def test_what_is_no_epilogue_stays(steps: tuple[Step, ...]) -> None:
    names = hoisted(*steps)
    assert names.index("squeeze" if squeeze in steps else "reshape") < len(names) - 1
