"""The cost of a module on an accelerator, counted by hand."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.errors import DynamicShapeError, HDFGError
from compiler.fusion.hardware.cost import hardware_cost, work_of
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.fuse_op_hw import FuseOpHW
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.report import hw_report
from compiler.fusion.hardware.stage import Stage
from compiler.ir.module import IRModule

nn = relay.op.nn
X_BYTES, W_BYTES, Y_BYTES = 1 * 4 * 8 * 8 * 4, 6 * 4 * 3 * 3 * 4, 1 * 6 * 6 * 6 * 4


def engine(bytes_per_cycle: float | None = None) -> HDFG:
    return HDFG(
        name="eng",
        root="mac",
        stages=[
            Stage("mac", {"nn.conv2d": "const_operand(1)"}, cycles_per_element=0.5),
            Stage("act", {"nn.relu": None, "exp": None}, max_uses=None, cycles_per_element=2),
        ],
        links=[("mac", "act"), ("act", "act")],
        bytes_per_cycle=bytes_per_cycle,
    )


def network() -> IRModule:
    """conv → relu → exp | sigmoid on the host | relu."""
    weight = relay.const(np.ones((6, 4, 3, 3), "float32"))
    product = nn.conv2d(relay.var("x", (1, 4, 8, 8)), weight, kernel_size=(3, 3), channels=6)
    return relay.module(nn.relu(relay.op.sigmoid(relay.op.exp(nn.relu(product)))))


def test_traffic_is_inputs_results_and_constants_of_every_group() -> None:
    cost = hardware_cost(network(), engine())
    assert [group.stages for group in cost.groups] == [("mac", "act", "act"), ("act",)]
    first, second = cost.groups
    assert (first.input_bytes, first.weight_bytes, first.output_bytes) == (
        X_BYTES,
        W_BYTES,
        Y_BYTES,
    )
    assert (second.input_bytes, second.weight_bytes, second.output_bytes) == (Y_BYTES, 0, Y_BYTES)
    assert cost.traffic_bytes == X_BYTES + W_BYTES + 3 * Y_BYTES
    assert cost.moved_bytes == X_BYTES + 3 * Y_BYTES
    assert cost.host_calls == 1


def test_a_group_takes_as_long_as_its_busiest_unit() -> None:
    elements = Y_BYTES // 4
    products = elements * 4 * 3 * 3
    cost = hardware_cost(network(), engine())
    assert [group.cycles for group in cost.groups] == [0.5 * products, 2.0 * elements]
    # Two calls on one unit follow each other: 2 * 2 cycles an element, less than the products.
    assert 0.5 * products > 2 * 2 * elements
    assert cost.cycles == 0.5 * products + 2.0 * elements


def test_a_slow_memory_port_decides_instead() -> None:
    cost = hardware_cost(network(), engine(bytes_per_cycle=0.25))
    assert cost.cycles == cost.traffic_bytes / 0.25


def test_groups_drawn_before_cost_the_same() -> None:
    hdfg = engine()
    assert hardware_cost(FuseOpHW(hdfg)(network()), hdfg) == hardware_cost(network(), hdfg)


def test_pooling_costs_what_it_reads() -> None:
    pooled = nn.global_avg_pool2d(relay.var("x", (1, 4, 8, 8)))
    assert work_of(relay.module(pooled)["main"].body) == 4 * 8 * 8


def test_unknown_sizes_have_no_cost() -> None:
    mod = relay.module(nn.relu(relay.var("x", (relay.AnyDim(), 4))))
    with pytest.raises(DynamicShapeError, match="needs static shapes") as caught:
        hardware_cost(mod, load_hdfg("opu"))
    assert "--dim" in (caught.value.fix or "")


def test_the_report_of_a_fused_module_finds_the_shipped_description() -> None:
    fused = FuseOpHW("opu")(network())
    report = hw_report(fused)
    assert report.hardware == "opu"
    assert [(line.op, line.reason) for line in report.host] == [
        ("exp", "no unit of opu takes exp"),
        ("sigmoid", "no unit of opu takes sigmoid"),
    ]
    assert report.groups[0].inputs == (("float32[1x4x8x8]", X_BYTES),)
    with pytest.raises(HDFGError, match="'eng'") as caught:
        hw_report(FuseOpHW(engine())(network()))
    assert "opu_q" in (caught.value.fix or "")


def test_one_group_and_one_operator_are_written_in_the_singular() -> None:
    x = relay.var("x", (1, 4, 8, 8))
    one = str(hw_report(relay.module(relay.op.sigmoid(nn.relu(x))), "opu"))
    assert one.splitlines()[0] == "1 group on opu"
    assert "1 operator stays on the host" in one
    none = hw_report(relay.module(relay.op.tanh(relay.op.sigmoid(x))), "opu").summary()
    assert none.splitlines()[:2] == ["0 groups on opu", "2 operators stay on the host"]


def test_reasons_name_unit_and_condition() -> None:
    x = relay.var("x", (1, 4, 8, 8))
    (line,) = hw_report(relay.module(relay.op.add(x, x)), "opu").host
    assert line.reason == (
        "add_pre: const_operand(any) does not hold; add: const_operand(any) does not hold; "
        "res_add: distinct_operands does not hold"
    )
