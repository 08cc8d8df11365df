"""FuseOpHW on worked examples: groups, units and host operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from compiler import evaluate, relay, text, transform
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.hdfg import HDFG
from compiler.ir.expr import Call, Expr
from compiler.ir.module import IRModule
from compiler.testing import hw_groups, hw_host_ops

nn = relay.op.nn
Groups = list[tuple[list[str], int]]


class Net:
    """Operators with constant weights, seeded, over one input ``x`` of 4 channels."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)
        self.x = relay.var("x", (1, 4, 8, 8))

    def const(self, *shape: int) -> Expr:
        return relay.const(self.rng.standard_normal(shape).astype("float32"))

    def conv(self, data: Expr, reads: int = 4, padding: int = 1) -> Call:
        weight = self.const(4, reads, 3, 3)
        return nn.conv2d(data, weight, kernel_size=(3, 3), channels=4, padding=padding)

    def bias(self, data: Expr) -> Call:
        return relay.op.add(data, self.const(4, 1, 1))

    def factor(self, data: Expr) -> Call:
        return relay.op.multiply(data, self.const(4, 1, 1))

    @staticmethod
    def pad(data: Expr) -> Call:
        return nn.pad(data, 0.0, pad_width=((0, 0), (0, 0), (1, 1), (1, 1)))

    @staticmethod
    def max_pool(data: Expr) -> Call:
        return nn.max_pool2d(data, pool_size=(2, 2), strides=(2, 2))


def fused(result: Expr, hdfg: HDFG | str = "opu") -> IRModule:
    """The module after FuseOpHW, which must compute what it did before."""
    mod = relay.module(result)
    new = transform.FuseOpHW(hdfg)(mod)
    rng = np.random.default_rng(1)
    inputs = [
        rng.standard_normal(p.tensor_type.concrete_shape, "float32") for p in mod["main"].params
    ]
    for before, after in zip(evaluate(mod, inputs), evaluate(new, inputs), strict=True):
        np.testing.assert_array_equal(after, before)
    return new


def stages(mod: IRModule, name: str = "opu") -> list[list[str]]:
    return [units for units, _, _ in hw_groups(mod, name)]


def bias_relu_pool(n: Net) -> Expr:
    return n.max_pool(nn.relu(n.bias(n.conv(n.x))))


def residual(n: Net) -> Expr:
    y = nn.relu(n.bias(n.conv(n.x)))
    return nn.relu(relay.op.add(n.bias(n.conv(y)), y))


def used_twice(n: Net) -> Expr:
    t = nn.relu(n.conv(n.x))
    up = nn.upsampling(n.max_pool(t), scale_h=2.0, scale_w=2.0)
    return relay.Tuple((up, nn.avg_pool2d(t, pool_size=(2, 2))))


def classifier(n: Net) -> Expr:
    pooled = nn.batch_flatten(nn.global_avg_pool2d(nn.relu(n.conv(n.x))))
    return nn.softmax(relay.op.add(nn.dense(pooled, n.const(3, 4)), n.const(3)))


def same_operand_twice(n: Net) -> Expr:
    t = n.conv(n.x)
    return relay.op.add(t, t)


def pooled_residual(n: Net) -> Expr:
    other = relay.var("r", (1, 4, 4, 4))
    return nn.relu(relay.op.add(n.max_pool(nn.relu(n.conv(n.x))), other))


EXAMPLES: dict[str, tuple[Callable[[Net], Expr], Groups, list[str]]] = {
    "1 chain": (bias_relu_pool, [(["ipa", "add", "compare", "pool"], 1)], []),
    "2 residual": (
        residual,
        [(["ipa", "add", "compare"], 1), (["ipa", "add", "res_add", "compare"], 1)],
        [],
    ),
    "3 used twice": (
        used_twice,
        [(["ipa", "compare"], 1), (["pool", "upsample"], 1), (["pool"], 1)],
        [],
    ),
    "4 cycle": (
        lambda n: nn.relu(n.max_pool(nn.relu(n.x))),
        [(["compare", "pool"], 1), (["compare"], 1)],
        [],
    ),
    "5 pads": (
        lambda n: n.conv(n.pad(n.conv(n.pad(n.x), padding=0)), padding=0),
        [(["pad", "ipa"], 1), (["pad", "ipa"], 1)],
        [],
    ),
    "6 before ipa": (
        lambda n: n.conv(n.factor(n.bias(n.x))),
        [(["add_pre", "mul_pre", "ipa"], 1)],
        [],
    ),
    "7 concatenate": (
        lambda n: n.conv(relay.op.concatenate([n.conv(n.x), n.conv(n.x)], axis=1), reads=8),
        [(["ipa"], 1), (["ipa"], 1), (["concat", "ipa"], 2)],
        [],
    ),
    "8 host": (
        lambda n: relay.op.multiply(n.conv(n.x), relay.op.sigmoid(relay.var("z", (1, 4, 8, 8)))),
        [(["ipa"], 1)],
        ["sigmoid", "multiply"],
    ),
    "9 compare used up": (
        pooled_residual,
        [(["ipa", "compare", "pool", "res_add"], 2), (["compare"], 1)],
        [],
    ),
    "10 add before mul": (
        lambda n: nn.relu(n.factor(n.bias(n.conv(n.x)))),
        [(["ipa", "add"], 1), (["mul_pre", "compare"], 1)],
        [],
    ),
    "10 mul before add": (
        lambda n: nn.relu(n.bias(n.factor(n.conv(n.x)))),
        [(["ipa", "mul", "add", "compare"], 1)],
        [],
    ),
    "11 classifier": (
        classifier,
        [(["ipa", "compare", "pool"], 1), (["ipa", "add"], 1)],
        ["nn.softmax"],
    ),
    "12 add(t, t)": (same_operand_twice, [(["ipa"], 1)], ["add"]),
}


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_groups_are_those_of_the_specification(
    example: tuple[Callable[[Net], Expr], Groups, list[str]],
) -> None:
    build, expected, host = example
    mod = fused(build(Net()))
    assert [(units, params) for units, _, params in hw_groups(mod, "opu")] == expected
    assert hw_host_ops(mod) == host


def test_a_unit_without_limit_of_uses_is_entered_again_through_the_cycle() -> None:
    opu = load_hdfg("opu")
    compare = opu.stage("compare")
    free = replace(compare, max_uses=None)
    unbounded = HDFG(
        name="opu",
        root=opu.root,
        stages=[free if stage is compare else stage for stage in opu.stages],
        links=opu.links,
        free_ops=opu.free_ops,
    )
    n = Net()
    mod = fused(nn.relu(n.max_pool(nn.relu(n.x))), unbounded)
    assert stages(mod) == [["compare", "pool", "compare"]]


def test_a_group_is_a_function_that_holds_its_weights() -> None:
    mod = fused(bias_relu_pool(Net()))
    (group,) = hw_groups(mod, "opu")
    assert group[1] == ["nn.conv2d", "add", "nn.relu", "nn.max_pool2d"]
    shown = text(mod, show_types=False, show_meta=False)
    assert shown.count("fn (") == 1
    for attribute in (
        "Primitive=1",
        'Compiler="opu"',
        'global_symbol="opu_0"',
        'hdfg_stages=["ipa", "add", "compare", "pool"]',
    ):
        assert attribute in shown
    call = mod["main"].body
    assert isinstance(call, Call)
    assert call.args == (mod["main"].params[0],)


def test_flatten_rides_along_with_the_dense_layer_it_feeds() -> None:
    mod = fused(classifier(Net()))
    body = text(mod, show_types=False, show_meta=False)
    inside = body.split("opu_1")[1].split("}")[0]
    assert "nn.batch_flatten(%p0)" in inside


def test_groups_are_not_entered_by_a_second_run() -> None:
    once = fused(residual(Net()))
    again = transform.FuseOpHW("opu")(once)
    assert again is once
