"""What a module goes through before its hardware groups are drawn, and that everybody gets it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.errors import CompilerError
from compiler.fusion.hardware.cost import hardware_cost
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.preparation import group_for_hardware
from compiler.fusion.hardware.report import hw_report
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Function, Op
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext
from compiler.testing import hw_groups
from compiler.transform import EliminateCommonSubexpr, FuseOpHW, SimplifyExpr

IntegerModel = Callable[[str], IRModule]


def names_of_calls(mod: IRModule) -> list[str]:
    found = [n for f in mod.functions.values() if isinstance(f, Function) for n in post_order(f)]
    return [n.op.name for n in found if isinstance(n, Call) and isinstance(n.op, Op)]


def identity_casts(mod: IRModule) -> int:
    found = [n for f in mod.functions.values() if isinstance(f, Function) for n in post_order(f)]
    return sum(
        isinstance(n, Call)
        and isinstance(n.op, Op)
        and n.op.name == "cast"
        and n.args[0].checked_type == n.checked_type
        for n in found
    )


@pytest.mark.shared
def test_a_quantized_residual_network_needs_no_group_that_only_requantizes(
    integer_model: IntegerModel,
) -> None:
    """Without preparation: 32 groups. With equal expressions merged and nothing else: 28."""
    mod = integer_model("fashion_resnet")
    hdfg = load_hdfg("opu_q")
    assert len(hw_groups(FuseOpHW(hdfg)(mod), "opu_q")) == 32
    merged = FuseOpHW(hdfg)(EliminateCommonSubexpr()(mod))
    assert len(hw_groups(merged, "opu_q")) == 28
    new = group_for_hardware(mod, hdfg)
    groups = hw_groups(new, "opu_q")
    alone = [ops for stages, ops, _ in groups if set(stages) == {"requant"}]
    assert alone == [["cast", "multiply"]], "dequantize_outputs, which is a function of its own"
    assert identity_casts(new) == 0
    cost = hardware_cost(mod, hdfg)
    assert (cost.num_groups, round(cost.cycles)) == (19, 28764)
    x = np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype("float32")
    np.testing.assert_array_equal(evaluate(new, [x])[0], evaluate(mod, [x])[0])


@pytest.mark.shared
@pytest.mark.parametrize("hdfg", ["opu_q", "npu"])
@pytest.mark.parametrize("name", ["fashion_mobilenet", "fashion_vit"])
def test_prepared_groups_are_legal_and_keep_every_bit(
    name: str,
    hdfg: str,
    integer_model: IntegerModel,
    check_groups: Callable[[IRModule, str], int],
    description_text: Callable[[str], str],
) -> None:
    mod = integer_model(name)
    new = group_for_hardware(mod, load_hdfg(hdfg))
    if hdfg == "opu_q":
        assert check_groups(new, description_text(hdfg)) == len(hw_groups(new, hdfg)) > 0
    assert "annotation.stop_fusion" not in names_of_calls(new)
    x = np.random.default_rng(0).standard_normal((1, 1, 28, 28)).astype("float32")
    np.testing.assert_array_equal(evaluate(new, [x])[0], evaluate(mod, [x])[0])


@pytest.mark.parametrize("hdfg", ["opu_q", "npu"])
def test_zero_points_are_subtracted_on_the_accelerator(hdfg: str) -> None:
    q, r = (relay.var(name, (1, 4, 6, 6), "uint8") for name in "qr")
    zero = relay.const(np.int32(3))
    a, b = (relay.op.subtract(relay.op.cast(v, dtype="int32"), zero) for v in (q, r))
    total = relay.op.clip(relay.op.add(a, b), a_min=-127, a_max=127)
    mod = relay.module(relay.op.cast(total, dtype="int8"))
    assert hardware_cost(mod, load_hdfg(hdfg)).totals()["hw_host_calls"] == 0


def shared_sums() -> IRModule:
    x = relay.var("x", (1, 4, 6, 6), "int32")

    def narrowed() -> relay.Expr:
        return relay.op.cast(relay.op.clip(x, a_min=-127, a_max=127), dtype="int8")

    same = relay.op.cast(narrowed(), dtype="int8")
    marked = relay.op.annotation.stop_fusion(narrowed())
    return relay.module(
        relay.op.add(relay.op.cast(same, dtype="int32"), relay.op.cast(marked, dtype="int32"))
    )


def test_the_level_of_the_context_leaves_nothing_of_the_preparation_out() -> None:
    hdfg = load_hdfg("opu_q")
    with PassContext(opt_level=0):
        new = group_for_hardware(shared_sums(), hdfg)
    assert names_of_calls(new).count("clip") == 1
    assert "annotation.stop_fusion" not in names_of_calls(new)


def test_cost_report_and_groups_are_those_of_one_preparation() -> None:
    hdfg = load_hdfg("opu_q")
    mod = shared_sums()
    drawn = hw_groups(group_for_hardware(mod, hdfg), "opu_q")
    report = hw_report(mod, hdfg)
    assert [list(group.stages) for group in report.groups] == [stages for stages, _, _ in drawn]
    assert report.cost == hardware_cost(mod, hdfg)


def test_groups_that_are_there_stay_as_they_are() -> None:
    grouped = FuseOpHW("opu_q")(shared_sums())
    assert group_for_hardware(grouped, load_hdfg("opu_q")) is grouped


def test_simplifications_can_be_limited_to_some_operators() -> None:
    x = relay.var("x", (2, 3))
    body = relay.op.add(relay.op.cast(x, dtype="float32"), relay.const(np.float32(0)))
    left = names_of_calls(SimplifyExpr(ops=("cast",))(relay.module(body)))
    assert left == ["add"]
    with pytest.raises(CompilerError, match="no rule for operator 'ceil'"):
        SimplifyExpr(ops=("ceil",))(relay.module(body))
