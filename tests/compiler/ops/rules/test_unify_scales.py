"""unify_for_add: two operands at one scale, whose sum the accumulator holds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.ir.expr import Call, Function, Tuple, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.realize import QRealizeIntExpr, integers
from compiler.ops.rules.unify_scales import unify_for_add
from compiler.qtypes.errors import IntegerOverflowError
from compiler.qtypes.qconfig import QConfig
from compiler.ranges.expressions import ExpressionRanges
from tests.compiler.bounded import bounds_with
from tests.each import each

LIMIT = 2**31 - 1


def operand(
    shape: tuple[int, ...], scale: Any, low: int, high: int, trailing: int | None = None
) -> QRealizeIntExpr:
    data = relay.var("x", shape, "int32")
    bounds_of = bounds_with(data, low, high)
    return integers(data, DomScale(as_scale(scale), trailing), "int32", bounds_of)


def unified(
    lhs: QRealizeIntExpr,
    rhs: QRealizeIntExpr,
    qconfig: QConfig | None = None,
    reach: float = math.inf,
) -> tuple[QRealizeIntExpr, QRealizeIntExpr]:
    """The operands of their sum."""
    x, y = (Var(n, _real(v)) for n, v in (("x", lhs), ("y", rhs)))
    ref_call = infer_module(IRModule.from_expr(Function((x, y), relay.op.add(x, y))))["main"].body
    assert isinstance(ref_call, Call)
    return unify_for_add(ref_call, (lhs, rhs), qconfig or QConfig(), reach)[0]


def _real(value: QRealizeIntExpr) -> TensorType:
    return TensorType(value.data.tensor_type.shape, "float32")


def results(
    sides: Sequence[QRealizeIntExpr], operands: Sequence[QRealizeIntExpr], values: Sequence[Any]
) -> list[Any]:
    """What the graphs of the sides compute of the operands' integers."""
    params = tuple(value.data for value in operands)
    body = Tuple(tuple(side.data for side in sides))
    mod = infer_module(IRModule.from_expr(Function(params, body)))  # type: ignore[arg-type]
    return [out.tolist() for out in evaluate(mod, [np.asarray(v, np.int32) for v in values])]


def test_narrow_operands_lose_nothing_to_speak_of_in_front_of_a_sum() -> None:
    values = np.arange(-127, 128)
    pair = operand((255,), 0.02, -127, 127), operand((255,), 0.0275, -127, 127)
    sides = unified(*pair, qconfig=QConfig.recommended())
    ours = results(sides, pair, (values, values))
    for side, held, scale in zip(sides, ours, (0.02, 0.0275), strict=True):
        real = np.asarray(held) * float(side.dom_scale.data)
        np.testing.assert_allclose(real, values * scale, rtol=0, atol=0.02 / 256)
    coarse = unified(*pair)  # as Relay defines it
    assert float(coarse[0].dom_scale.data) == np.float32(0.02)


@pytest.mark.parametrize(("scale", "bound"), [(0.04, 127), (0.02, 127), (0.03, 2**20)])
def test_a_sum_keeps_the_smaller_scale_where_a_finer_one_gains_nothing_or_has_no_room(
    scale: float, bound: int
) -> None:
    pair = operand((4,), 0.02, -bound, bound), operand((4,), scale, -bound, bound)
    sides = unified(*pair, qconfig=QConfig.recommended())
    assert [float(side.dom_scale.data) for side in sides] == [np.float32(0.02)] * 2


def test_a_sum_that_may_overflow_at_one_scale_is_refused() -> None:
    half = 2**30
    unified(operand((2,), 1.0, -half, half), operand((2,), 1.0, 0, half - 1))
    with pytest.raises(IntegerOverflowError, match=f"can reach {2**31}"):
        unified(operand((2,), 1.0, -half, half), operand((2,), 1.0, 0, half))


@pytest.mark.parametrize(("low", "high"), [(-(2**29), 2**29), (0, 2**29), (-(2**29), 0)])
def test_the_scaled_side_is_saturated_where_the_sum_overflows_by_one(low: int, high: int) -> None:
    fixed = 2**30 - 1
    operands = operand((2,), 1.0, -fixed, fixed), operand((2,), 2.0, low, high)
    sides = unified(*operands)
    assert sides[0].bound == fixed
    assert sides[1].bound == LIMIT - fixed
    found = results(sides, operands, ([fixed, -fixed], [high, low]))
    assert found == [[fixed, -fixed], [2 * high, 2 * low]]


def test_a_product_of_many_bits_is_rounded_beside_what_is_larger_than_it_can_be() -> None:
    pair = operand((2,), 2.0**-24, -(2**30), 2**30), operand((2,), 2.0**-4, -(2**14), 2**14)
    values = [2**30, -(2**29)], [2**14, 3]
    sides = unified(*pair, qconfig=QConfig.recommended())
    for side, held, real in each(
        zip(sides, results(sides, pair, values), ([64, -32], [1024, 3 / 16]))
    ):
        np.testing.assert_allclose(np.array(held) * float(side.dom_scale.data), real, rtol=2**-15)


def test_the_small_side_of_a_sum_is_rounded_and_the_large_one_not_cut_off() -> None:
    pair = operand((2,), 2.0**-24, -127, 127), operand((2,), 2.0**-4, -(2**14), 2**14)
    sides = unified(*pair, qconfig=QConfig.recommended())
    small, large = results(sides, pair, ([127, -3], [2**14, -(2**14)]))
    step = float(sides[1].dom_scale.data)
    assert np.array(large) * step == pytest.approx([1024, -1024])
    np.testing.assert_allclose(np.array(small) * step, [127 / 2**24, -3 / 2**24], atol=step / 2)
    assert sum(side.bound for side in sides) <= LIMIT


@pytest.mark.parametrize("scale", [2.0**-4, 2.0**-4 * 1.3])
def test_a_side_is_cut_off_where_no_reader_of_the_sum_tells_it_apart(scale: float) -> None:
    pair = operand((3,), 2.0**-24, -127, 127), operand((3,), scale, -(2**30), 2**30)
    sides = unified(*pair, qconfig=QConfig.recommended(), reach=8.0)
    small, large = results(sides, pair, ([127, -3, 1], [2**30, 17, -96]))
    step = float(sides[1].dom_scale.data)
    assert small[0] * step == pytest.approx(127 / 2**24, rel=0.01)
    assert large[0] * step >= 8
    assert np.array(large[1:]) * step == pytest.approx([17 * scale, -96 * scale])
    assert sum(side.bound for side in sides) <= LIMIT


def test_channels_of_a_sum_that_are_far_apart_have_steps_of_their_own() -> None:
    scales = [2.0**-30, 2.0**-4]
    pair = operand((1, 2, 1), scales, -(2**20), 2**20, 1), operand((1, 2, 1), 2.0**-30, -127, 127)
    sides = unified(*pair, qconfig=QConfig.recommended())
    values = [2**20, -(2**20)]
    held = results(sides, pair, (np.reshape(values, (1, 2, 1)), np.full((1, 2, 1), 127)))
    real = np.array(held)[:, 0, :, 0] * sides[0].dom_scale.data
    assert real[0] == pytest.approx(np.multiply(values, scales))
    assert real[1, 0] == pytest.approx(127 / 2**30)


def test_what_is_always_0_is_scaled_by_nothing() -> None:
    operands = operand((2,), 2.0**-40, -127, 127), operand((2,), 1.0, 0, 0)
    sides = unified(*operands, qconfig=QConfig.recommended())
    assert results(sides, operands, ([127, -127], [0, 0]))[1] == [0, 0]


@pytest.mark.parametrize("swapped", [False, True])
def test_an_operand_without_the_channel_axis_is_scaled_per_channel(swapped: bool) -> None:
    order = slice(None, None, -1 if swapped else 1)
    operands = [operand((1, 2, 3), [0.3, 0.7], -127, 127, 1), operand((3,), 1.0, -127, 127)][order]
    values = [np.ones((1, 2, 3), int), np.array([100, -100, 7])][order]
    sides = unified(operands[0], operands[1])
    assert [side.trailing for side in sides] == [1, 1]
    per_channel, spread = results(sides, operands, values)[order]
    assert per_channel == [[[1, 1, 1], [1, 1, 1]]]
    assert spread == [[333, -333, 23], [143, -143, 10]]


def test_an_empty_constant_is_bounded_by_0() -> None:
    empty = relay.const(np.zeros((0,), np.int32))
    constant = integers(empty, DomScale(as_scale(0.5)), "int32", ExpressionRanges().of)
    sides = unified(constant, operand((0,), 0.5, -LIMIT, LIMIT))
    assert [(side.low, side.high) for side in sides] == [(0, 0), (-LIMIT, LIMIT)]
