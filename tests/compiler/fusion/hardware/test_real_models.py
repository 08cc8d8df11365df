"""The OPU on real quantized models: every chain legal, every operator covered or named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import evaluate, transform
from compiler.fusion.hardware.description import parse_hdfg
from compiler.fusion.hardware.report import hw_report
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Function, Op
from compiler.ir.module import IRModule
from compiler.testing import hw_groups, hw_host_ops

pytestmark = pytest.mark.shared
IntegerModel = Callable[[str], IRModule]


def op_calls(mod: IRModule) -> int:
    """Operator calls of a module, inside groups and outside, markers left out."""
    return sum(
        isinstance(node, Call)
        and isinstance(node.op, Op)
        and node.op.name != "annotation.stop_fusion"
        for function in mod.functions.values()
        for node in post_order(function)
    )


@pytest.mark.parametrize("name", ["efficientnet_lite0", "fashion_resnet", "fashion_vit"])
def test_every_group_is_legal_and_every_operator_is_covered_or_named(
    name: str,
    integer_model: IntegerModel,
    check_groups: Callable[[IRModule, str], int],
    description_text: Callable[[str], str],
) -> None:
    mod = integer_model(name)
    spelled = transform.InlineRequantize()(mod)
    new = transform.FuseOpHW("opu_q")(mod)
    groups = hw_groups(new, "opu_q")
    assert check_groups(new, description_text("opu_q")) == len(groups) > 0
    report = hw_report(new)
    free = sum(
        isinstance(node, Call) and node.op.name in ("reshape", "nn.batch_flatten")  # type: ignore[attr-defined]
        for function in new.functions.values()
        for literal in post_order(function)
        if isinstance(literal, Function) and literal.get_attr("Compiler") == "opu_q"
        for node in post_order(literal.body)
    )
    assert sum(len(ops) for _, ops, _ in groups) + free + len(report.host) == op_calls(spelled)
    assert [line.op for line in report.host] == hw_host_ops(new)
    assert all(line.reason for line in report.host)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "fashion_resnet"])
def test_nothing_but_layout_stays_on_the_host(name: str, integer_model: IntegerModel) -> None:
    new = transform.FuseOpHW("opu_q")(integer_model(name))
    assert hw_host_ops(new) == []
    convolutions = [ops for _, ops, _ in hw_groups(new, "opu_q") if ops[0] == "nn.conv2d"]
    # One group per convolution, with its bias and what brings it to the next scale.
    assert len(convolutions) == {"efficientnet_lite0": 49, "fashion_resnet": 14}[name]
    assert all(ops[1] == "add" and "fixed_point_multiply_per_axis" in ops for ops in convolutions)


@pytest.mark.parametrize("hdfg", ["opu_q", "npu"])
def test_integers_are_the_same_after_fusion(hdfg: str, integer_model: IntegerModel) -> None:
    mod = integer_model("fashion_resnet")
    new = transform.FuseOpHW(hdfg)(mod)
    x = np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype("float32")
    np.testing.assert_array_equal(evaluate(new, [x])[0], evaluate(mod, [x])[0])


def test_one_line_of_the_description_moves_depthwise_convolutions(
    integer_model: IntegerModel, description_text: Callable[[str], str]
) -> None:
    mod = integer_model("efficientnet_lite0")
    original = description_text("npu")
    host = [line.op for line in hw_report(mod, "npu").host]
    assert host.count("nn.conv2d") == 16
    allowed = original.replace('"attr(groups, ==, 1)", ', "")
    assert allowed != original
    host = [line.op for line in hw_report(mod, parse_hdfg(allowed)).host]
    assert "nn.conv2d" not in host
