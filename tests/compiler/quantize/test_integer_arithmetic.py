"""Values and paths of the integer arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay, text
from compiler.ir.expr import Expr, Function, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.qnn.requantize import inlined_module
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.integer_calls import along_axis, maximum, minimum
from compiler.ops.rules.realize import ChannelClip, integers
from compiler.ops.rules.requantize import TIES, multiplier_and_shift, requantize, to_scalar
from compiler.ops.rules.requantize import requantized as rescaling
from compiler.ops.rules.unify_scales import mul_and_div
from compiler.quantize import QConfig
from tests.compiler.bounded import bounds_with
from tests.compiler.ops.rules.scaled_values import scaled_values
from tests.each import each

Run = Callable[[Callable[[Expr], Expr], list[int]], list[int]]
ROUNDINGS = ("UPWARD", "TONEAREST")


def on_int32(make: Callable[[Expr], Expr], values: Any) -> tuple[list[int], str]:
    """Results of a graph over an int32 vector, and its text with requantizations written out."""
    array = np.asarray(values, np.int32)
    x = relay.var("x", array.shape, "int32")
    mod = infer_module(IRModule.from_expr(Function((x,), make(x))))
    out, plain = evaluate(mod, [array])[0], inlined_module(mod)
    np.testing.assert_array_equal(evaluate(plain, [array])[0], out)
    return out.ravel().tolist(), text(plain, show_types=False)


def scaled(x: Expr, factor: Any, trailing: int | None, rank: int, rounding: str) -> Expr:
    factors, ties = multiplier_and_shift(factor), TIES[rounding]
    return rescaling(x, *factors, trailing, rank, ties, "int64")


A1 = {
    0.03125: 0.0625,
    -0.03125: -0.0625,
    0.09375: 0.125,
    -0.09375: -0.125,
    0.15625: 0.1875,
    7.9375: 7.9375,
    7.96999979: 7.9375,
    8: 7.9375,
    -8: -7.9375,
    100: 7.9375,
    -100: -7.9375,
    0: 0,
    0.0312499981: 0,
}


def test_simulated_quantize_rounds_ties_away_from_zero() -> None:
    x = Var("x", TensorType((len(A1),), "float32"))
    from compiler import relay

    scale, low, high = (relay.const(np.float32(v)) for v in (0.0625, -127, 127))
    op = relay.op.relay.op.annotation.simulated_quantize
    mod = infer_module(IRModule.from_expr(Function((x,), op(x, scale, low, high, kind=1))))
    (out,) = evaluate(mod, [np.array(list(A1), np.float32)])
    assert out.tolist() == [np.float32(v) for v in A1.values()]


OPERANDS = [0, 1, -1, 2, -2, 5, -5, 10, -10, 127, -127, 1000, -1000, 100000, -100000]
A3 = {
    0.300000012: (
        (1288490240, -1),
        [0, 0, 0, 1, -1, 2, -2, 3, -3, 38, -38, 300, -300, 30000, -30000],
        [0, 0, 0, 1, -1, 2, -2, 3, -3, 38, -38, 300, -300, 30000, -30000],
    ),
    0.333333343: (
        (1431655808, -1),
        [0, 0, 0, 1, -1, 2, -2, 3, -3, 42, -42, 333, -333, 33333, -33333],
        [0, 0, 0, 1, -1, 2, -2, 3, -3, 42, -42, 333, -333, 33333, -33333],
    ),
    0.75: (
        (1610612736, 0),
        [0, 1, -1, 2, -1, 4, -4, 8, -7, 95, -95, 750, -750, 75000, -75000],
        [0, 1, -1, 2, -2, 4, -4, 8, -8, 95, -95, 750, -750, 75000, -75000],
    ),
    1.70000005: (
        (1825361152, 1),
        [0, 2, -2, 3, -3, 9, -9, 17, -17, 216, -216, 1700, -1700, 170000, -170000],
        [0, 2, -2, 3, -3, 9, -9, 17, -17, 216, -216, 1700, -1700, 170000, -170000],
    ),
    0.0122999996: (
        (1690499072, -6),
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, -2, 12, -12, 1230, -1230],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 2, -2, 12, -12, 1230, -1230],
    ),
    0.99999994: (
        (2147483520, 0),
        [0, 1, -1, 2, -2, 5, -5, 10, -10, 127, -127, 1000, -1000, 100000, -100000],
        [0, 1, -1, 2, -2, 5, -5, 10, -10, 127, -127, 1000, -1000, 100000, -100000],
    ),
    3.5: (
        (1879048192, 2),
        [0, 4, -3, 7, -7, 18, -17, 35, -35, 445, -444, 3500, -3500, 350000, -350000],
        [0, 4, -4, 7, -7, 18, -18, 35, -35, 445, -445, 3500, -3500, 350000, -350000],
    ),
}


@pytest.mark.parametrize("factor", A3)
def test_multiplier_and_shift_are_the_specified_ones(factor: float) -> None:
    multiplier, shift = multiplier_and_shift(as_scale(factor))
    assert (int(multiplier), int(shift)) == A3[factor][0]


@pytest.mark.parametrize("factor", A3)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_fixed_point_products(factor: float, rounding: str) -> None:
    found, _ = on_int32(lambda x: scaled(x, as_scale(factor), None, 1, rounding), OPERANDS)
    assert found == A3[factor][1 + ROUNDINGS.index(rounding)]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_one_factor_per_channel_is_the_scalar_product_channel_by_channel(rounding: str) -> None:
    factors = as_scale([*A3, 0.5, 0.0])
    values = np.array([OPERANDS] * len(factors), np.int32)
    found, _ = on_int32(lambda x: scaled(x, factors, 1, 2, rounding), values)
    expected = [
        on_int32(lambda x, f=f: scaled(x, as_scale(f), None, 1, rounding), OPERANDS)[0]
        for f in factors
    ]
    assert found == [v for row in expected for v in row]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_numbers_used_for_bounds_are_those_of_the_nodes(rounding: str) -> None:
    for factor in A3:
        values = np.array(OPERANDS, np.int64)
        assert (
            scaled_values(values, as_scale(factor), rounding).tolist()
            == on_int32(lambda x, f=factor: scaled(x, as_scale(f), None, 1, rounding), OPERANDS)[0]
        )


ACCUMULATORS = [0, 1, -1, 127, 128, -128, -129, 384, -384, 640, -640, 40000, -40000]
A5 = [
    (
        (0.000244140625, 0.0625, {}),
        "right_shift",
        [0, 0, 0, 0, 1, 0, -1, 2, -1, 3, -2, 127, -127],
    ),
    (
        (0.000244140625, 0.0625, {"round_for_shift": False}),
        "right_shift",
        [0, 0, -1, 0, 0, -1, -1, 1, -2, 2, -3, 127, -127],
    ),
    (
        (0.0625, 0.0625, {}),
        "clip",
        [0, 1, -1, 127, 127, -127, -127, 127, -127, 127, -127, 127, -127],
    ),
    (
        (0.125, 0.0625, {}),
        "left_shift",
        [0, 2, -2, 127, 127, -127, -127, 127, -127, 127, -127, 127, -127],
    ),
    (
        (0.00100000005, 0.0500000007, {}),
        "multiplier=1374389632, shift=-5",
        [0, 0, 0, 3, 3, -3, -3, 8, -8, 13, -13, 127, -127],
    ),
    (
        (0.00100000005, 0.0500000007, {"rounding": "TONEAREST"}),
        "multiply",
        [0, 0, 0, 3, 3, -3, -3, 8, -8, 13, -13, 127, -127],
    ),
    (
        (0.0625, 0.125, {}),
        "right_shift",
        [0, 1, 0, 64, 64, -64, -64, 127, -127, 127, -127, 127, -127],
    ),
    (
        (0.0625, 0.125, {"round_for_shift": False}),
        "right_shift",
        [0, 0, -1, 63, 64, -64, -65, 127, -127, 127, -127, 127, -127],
    ),
]


def requantized(
    values: Any,
    s_in: Any,
    s_out: float,
    trailing: int | None = None,
    bounds: tuple[float, float] = (-127.0, 127.0),
    **config: Any,
) -> tuple[list[int], str]:
    rank = np.ndim(values)

    def make(x: Expr) -> Expr:
        value = integers(
            x, DomScale(as_scale(s_in), trailing), "int32", bounds_with(x, -(1 << 29), 1 << 29)
        )
        out = DomScale(as_scale(s_out))
        return requantize(value, out, *bounds, rank, QConfig(**config)).data

    return on_int32(make, values)


@pytest.mark.parametrize(("given", "path", "expected"), A5)
def test_requantization_takes_its_path(given: Any, path: str, expected: list[int]) -> None:
    s_in, s_out, config = given
    found, shown = requantized(ACCUMULATORS, s_in, s_out, **config)
    assert found == expected
    assert path in shown


def test_a_shift_to_the_left_that_could_overflow_runs_in_int64() -> None:
    found, shown = requantized([0, 1, -1, 3, 1 << 20], 1024.0, 2.0**-10)
    assert found == [0, 127, -127, 127, 127]
    assert 'cast(%x, dtype="int64")' in shown


def test_a_shift_to_the_right_by_more_than_a_word_gives_zero() -> None:
    found, _ = requantized([0, 1, -1, 1 << 28], 2.0**-40, 2.0**10)
    assert found == [0, 0, 0, 0]


def test_a_large_factor_saturates_instead_of_wrapping() -> None:
    found, _ = requantized([0, 1, -1, 5000, 1 << 28, -(1 << 28)], 3.0, 0.01)
    assert found == [0, 127, -127, 127, 127, -127]


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [((0.0, 127.0), [0, 50, 100, 127, 127, 0]), ((-127.0, 0.0), [0, 0, 0, 0, 0, -100])],
)
def test_a_large_factor_saturates_at_the_farther_bound(
    bounds: tuple[float, float], expected: list[int]
) -> None:
    found, _ = requantized([0, 1, 2, 3, 1 << 28, -2], 50.0, 1.0, bounds=bounds)
    assert found == expected


@pytest.mark.parametrize(
    ("low", "high", "bounds", "dtype"),
    [
        (-100, 50, (-500.0, 500.0), "int32"),
        (-50, 100, (-500.0, 500.0), "int32"),
        (-100, 50, (-128.0, 500.0), "int8"),
    ],
)
def test_narrow_integers_become_wide_where_the_result_is_wide(
    low: int, high: int, bounds: tuple[float, float], dtype: str
) -> None:
    x = relay.var("x", (2,), "int8")
    value = integers(x, DomScale(as_scale(1.0)), "int8", bounds_with(x, low, high))
    out = requantize(value, DomScale(as_scale(0.5)), *bounds, 1, QConfig())
    (found,) = evaluate(
        infer_module(IRModule.from_expr(Function((x,), out.data))), [np.array([low, high], np.int8)]
    )
    assert (out.dtype, str(found.dtype)) == (dtype, dtype)
    assert found.tolist() == [max(2 * low, bounds[0]), 2 * high]
    assert out.low <= found.min()
    assert found.max() <= out.high


@pytest.mark.parametrize(("low", "high", "found"), [(0, 100, (0, 30)), (-100, 0, (-30, 0))])
def test_requantized_integers_keep_their_sign(low: int, high: int, found: tuple[int, int]) -> None:
    x = relay.var("x", (2,), "int32")
    value = integers(x, DomScale(as_scale(0.3)), "int32", bounds_with(x, low, high))
    out = requantize(value, DomScale(as_scale(1.0)), -127.0, 127.0, 1, QConfig())
    assert (out.low, out.high) == found


@pytest.mark.parametrize(("bound", "absorbed"), [(1 << 20, True), ((1 << 31) - 1, False)])
def test_a_clip_per_channel_is_absorbed_by_a_requantization_that_cannot_overflow(
    bound: int, absorbed: bool
) -> None:
    ends = np.array([30, 10], np.int64)

    def make(x: Expr) -> Expr:
        source = integers(
            x, DomScale(as_scale([1.0, 3.0]), 1), "int32", bounds_with(x, -bound, bound)
        )
        held = maximum(minimum(x, along_axis(ends, 1, "int32")), along_axis(-ends, 1, "int32"))
        value = source.like(held, channel_clip=ChannelClip(source, -ends, ends))
        return requantize(value, DomScale(as_scale(1.0)), -127.0, 127.0, 2, QConfig()).data

    found, shown = on_int32(make, [[29, -31], [9, -11]])
    assert found == [29, -30, 27, -30]
    assert ("minimum" not in shown) is absorbed


VECTOR_SCALES = [
    ("all equal", [0.5, 0.5, 0.5], "clip"),
    ("shifts one way", [0.25, 0.5, 0.125], "right_shift"),
    ("shifts both ways", [0.25, 1.0, 0.125], "fixed_point_multiply_per_axis"),
    ("general", [0.3, 0.001, 0.7], "fixed_point_multiply_per_axis"),
]


@pytest.mark.parametrize(("_name", "scales", "path"), VECTOR_SCALES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_scales_per_channel_requantize_like_each_channel_alone(
    _name: str, scales: list[float], path: str, rounding: str
) -> None:
    values = np.array([ACCUMULATORS] * 3, np.int32)
    found, shown = requantized(values, scales, 0.5, 1, rounding=rounding)
    # Taken alone a channel may shift where together all multiply; both give the same integers,
    # except that a shift with half added and a product to nearest differ on negative ties.
    for row, scale in each(zip(np.reshape(found, (3, -1)), scales)):
        alone, _ = requantized(ACCUMULATORS, scale, 0.5, rounding=rounding)
        limit = 1 if rounding == "TONEAREST" else 0
        assert np.abs(row - alone).max() <= limit
    if rounding == "UPWARD":
        assert path in shown


@pytest.mark.parametrize(
    ("bound", "scale", "found"),
    [
        (1000, 0.25, [20, -20, 10, -10, 120, -120]),
        (1 << 29, 0.5, [10, -10, 5, -5, 60, -60]),
    ],
)
def test_scales_per_channel_become_one_as_fine_as_the_accumulator_holds(
    bound: int, scale: float, found: list[int]
) -> None:
    def make(x: Expr) -> Expr:
        scales = DomScale(as_scale([0.5, 0.25, 0.3]), 1)
        value = to_scalar(integers(x, scales, "int32", bounds_with(x, -bound, bound)), 2, QConfig())
        assert float(value.dom_scale.data) == scale
        return value.data

    assert on_int32(make, [[10, -10], [10, -10], [100, -100]])[0] == found


A7 = [
    (0.0078125, 0.000244140625, "left_shift", 5),
    (0.0299999993, 0.0299999993, "%x\n", None),
    (0.75, 0.25, "multiply", 3),
    (0.0625, 3.7252903e-09, "left_shift", 24),
    (0.0500000007, 0.0299999993, "multiplier=1789569792, shift=1", None),
    (0.300000012, 0.100000001, "multiply", 3),
]


@pytest.mark.parametrize(("s1", "s2", "path", "constant"), A7)
def test_an_operand_is_scaled_up_by_the_cheapest_way(
    s1: float, s2: float, path: str, constant: int | None
) -> None:
    factor = as_scale(as_scale(s1) / as_scale(s2))

    def make(x: Expr) -> Expr:
        value = integers(x, DomScale(as_scale(s1)), "int32", bounds_with(x, -127, 127))
        limit = (1 << 31) - 1
        return mul_and_div(value, factor, DomScale(as_scale(s2)), limit, x, 1, QConfig()).data

    found, shown = on_int32(make, [0, 1, -1, 100])
    assert path in shown
    assert constant is None or f", {constant})" in shown
    np.testing.assert_allclose(found, np.array([0, 1, -1, 100]) * float(factor), atol=0.5)


@pytest.mark.parametrize("ratio", [2.0**30, 3.0 * 2**28, 1.7e9])
def test_scaling_up_saturates_where_it_could_overflow(ratio: float) -> None:
    factor = as_scale(ratio)

    def make(x: Expr) -> Expr:
        value = integers(x, DomScale(as_scale(ratio)), "int32", bounds_with(x, -127, 127))
        limit = (1 << 31) - 1
        return mul_and_div(value, factor, DomScale(as_scale(1.0)), limit, x, 1, QConfig()).data

    found, _ = on_int32(make, [0, 1, -1, 127, -127])
    assert found[:3] == [0, int(factor), -int(factor)]
    # A clip in front of a fixed-point product stops at a multiple of the factor.
    assert found[3] >= (1 << 31) - 1 - factor
    assert found[4] == -found[3] or found[4] == -found[3] - 1


def test_scaling_up_by_a_fixed_point_product_saturates_at_the_largest_multiple_that_fits() -> None:
    factor = as_scale(1_000_000.5)

    def make(x: Expr) -> Expr:
        value = integers(x, DomScale(factor), "int32", bounds_with(x, -(1 << 20), 1 << 20))
        limit = (1 << 31) - 1
        return mul_and_div(value, factor, DomScale(as_scale(1.0)), limit, x, 1, QConfig()).data

    found, _ = on_int32(make, [2, -2, 2000, 2147, 2148, -(1 << 20)])
    most = 2_147_001_074
    assert found == [2_000_001, -2_000_001, 2_000_001_000, most, most, -most + 1]


@pytest.mark.parametrize("ratio", [2.0**-2, 2.0**-31])
def test_scaling_down_by_a_power_of_two_rounds_the_largest_integers(ratio: float) -> None:
    most, factor = (1 << 31) - 1, as_scale(ratio)

    def make(x: Expr) -> Expr:
        value = integers(x, DomScale(factor), "int32", bounds_with(x, -most, most))
        return mul_and_div(value, factor, DomScale(as_scale(1.0)), most, x, 1, QConfig()).data

    found, _ = on_int32(make, [most, -most, most - 1, 0])
    assert found == [round(most * ratio), -round(most * ratio), round((most - 1) * ratio), 0]
