"""One float32 product in place of a fixed-point one, compared on every operand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler.ops.rules import float_product
from compiler.ops.rules.float_product import (
    EXACT,
    Ties,
    nearest_float_factors,
    same_as_float_product,
)
from compiler.ops.rules.requantize import TIES, multiplier_and_shift
from tests.compiler.ops.rules.scaled_values import scaled_values

ROUNDINGS = sorted(TIES)


def product(x: NDArray[Any], factor: NDArray[Any]) -> NDArray[Any]:
    """What a kernel with real scales computes."""
    return np.rint(x.astype(np.float32) * np.float32(factor))


def says_same(factor: np.float32, ties: Ties, low: int, high: int, limits: tuple[int, int]) -> bool:
    multiplier, shift = multiplier_and_shift(np.asarray([factor]))
    return bool(same_as_float_product(multiplier, 31 - shift, ties, low, high, limits)[0])


def is_same(
    factor: np.float32, rounding: str, low: int, high: int, limits: tuple[int, int]
) -> bool:
    x = np.arange(low, high + 1)
    defined = np.clip(scaled_values(x, np.asarray(factor), rounding), *limits)
    return np.array_equal(np.clip(product(x, np.asarray(factor)), *limits), defined)


@settings(max_examples=150, deadline=None)
@given(
    # Short factors have ties, factors of about 2^-11 products that float32 rounds onto ties.
    value=st.one_of(
        st.floats(2.0**-13, 2.0**-8, width=32),
        st.floats(2.0**-24, 3.0, width=32),
        st.builds(
            lambda odd, bits: (2 * odd + 1) / 2.0**bits, st.integers(0, 60), st.integers(3, 16)
        ),
        st.integers(1, 400).map(lambda n: 1 / n),
    ),
    low=st.integers(-300_000, 5),
    span=st.integers(0, 400_000),
    limits=st.sampled_from([(0, 255), (-127, 127), (-128, 127), (0, 15), (-300, 300), (3, 3)]),
    rounding=st.sampled_from(ROUNDINGS),
)
def test_the_answer_is_that_of_trying_every_operand(
    value: float, low: int, span: int, limits: tuple[int, int], rounding: str
) -> None:
    factor = np.float32(value)
    said = says_same(factor, TIES[rounding], low, low + span, limits)
    assert said == is_same(factor, rounding, low, low + span, limits)


@pytest.mark.parametrize("end", ["low", "high"])
@settings(max_examples=40, deadline=None)
@given(value=st.floats(2.0**-18, 2.0**-14, width=32), near=st.integers(0, 1 << 20))
def test_operands_next_to_the_last_exact_ones_count_as_well(
    end: str, value: float, near: int
) -> None:
    factor = np.float32(value)
    middle = int(near % (1 << 19)) + EXACT - (1 << 20)
    low, high = (-EXACT, -middle) if end == "low" else (middle, EXACT)
    limits = (-1100, 1100)
    assert says_same(factor, "up", low, high, limits) == is_same(
        factor, "UPWARD", low, high, limits
    )


@pytest.mark.parametrize(
    ("value", "rounding"),
    [
        (0.001159184379503131, "TONEAREST"),
        (0.0005541341379284859, "TONEAREST_EVEN"),
        (0.0033662093337625265, "UPWARD"),
    ],
)
def test_differences_at_negative_operands_are_found(value: float, rounding: str) -> None:
    operands = -100_000, -1, (-127, 127)
    assert not is_same(np.float32(value), rounding, *operands)
    assert not says_same(np.float32(value), TIES[rounding], *operands)


def test_operands_that_float32_does_not_hold_are_refused() -> None:
    half = np.float32(0.3)
    assert says_same(half, "up", -10, 10, (-127, 127))
    assert not says_same(half, "up", -10, EXACT + 1, (-127, 127))
    assert not says_same(half, "up", -10, 10, (0, 1 << 20))


@pytest.mark.parametrize(("low", "same"), [(-EXACT, True), (-EXACT - 1, False)])
def test_a_factor_of_zero_gives_zero_for_all_that_float32_holds(low: int, same: bool) -> None:
    zero, shift = np.zeros(1, np.int64), np.full(1, 31)
    assert same_as_float_product(zero, shift, "up", low, EXACT, (-127, 127)).tolist() == [same]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    smallest=st.floats(-12, -6),
    limits=st.sampled_from([(0, 255), (-127, 127)]),
    rounding=st.sampled_from(ROUNDINGS),
)
def test_chosen_factors_are_near_and_agree_on_every_operand(
    seed: int, smallest: float, limits: tuple[int, int], rounding: str
) -> None:
    rng = np.random.default_rng(seed)
    factors = np.exp2(rng.uniform(smallest, smallest + 4, 6)).astype(np.float32)
    chosen = nearest_float_factors(factors, TIES[rounding], (-100_000, 150_000), limits)
    assert chosen.shape == factors.shape
    assert np.abs(chosen / factors.astype(np.float64) - 1).max() < 1e-5
    x = np.arange(-100_000, 150_001)[:, None]
    defined = np.clip(scaled_values(x, chosen, rounding), *limits)
    np.testing.assert_array_equal(np.clip(product(x, chosen), *limits), defined)


def test_a_factor_that_agrees_stays_and_the_nearest_neighbour_comes_next() -> None:
    rng = np.random.default_rng(5)
    factors = np.exp2(rng.uniform(-11, -9, 200)).astype(np.float32)
    reach, limits = (-500_000, 500_000), (0, 255)
    chosen = nearest_float_factors(factors, "up", reach, limits)
    moved = np.abs(chosen.view(np.int32) - factors.view(np.int32))
    multiplier, shift = multiplier_and_shift(factors)
    held = same_as_float_product(multiplier, 31 - shift, "up", *reach, limits)
    np.testing.assert_array_equal(moved[held], 0)
    assert (moved[~held] > 0).all()
    assert 20 < (~held).sum() < 150
    assert np.median(moved[~held]) <= 4


def test_what_was_a_tie_goes_away_from_zero() -> None:
    """18 / 36 in float32 is a tie, which the definition takes up and a product to 0."""
    factor = np.asarray(1 / 36, np.float32)
    chosen = nearest_float_factors(factor, "up", (-600, 600), (-15, 15))
    np.testing.assert_array_equal(scaled_values(np.asarray([18, -18]), chosen, "UPWARD"), [1, -1])


def test_a_single_factor_and_extreme_ones_keep_their_shape() -> None:
    odd = np.asarray([0.0, 1e-42, 1e-30, 0.3, 1.0, 3.0, 1e10], np.float32)
    chosen = nearest_float_factors(odd, "up", (-(1 << 40), 1 << 40), (-127, 127))
    np.testing.assert_allclose(chosen, odd, rtol=1e-5)
    assert nearest_float_factors(odd[3], "up", (-5, 5), (0, 3)).shape == ()


@pytest.mark.parametrize("distinct", [False, True], ids=["equal channels", "distinct channels"])
def test_a_wide_accumulator_costs_few_comparisons_a_channel(
    distinct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nearly every step of such a range lies within the margin, and nearly every factor fails."""
    compared: list[int] = []
    there = float_product._steps_there

    def counted(*args: Any) -> Any:
        compared.append(args[-1].size)
        return there(*args)

    monkeypatch.setattr(float_product, "_steps_there", counted)
    factor = np.full(256, 1.1045782e-05, np.float32)
    if distinct:
        factor = factor * np.linspace(1, 2, 256, dtype=np.float32)
    nearest_float_factors(factor, "up", (-(1 << 24), 1 << 24), (-127, 127))
    assert compared
    # Two per channel and tried neighbour; all levels of all neighbours are 28,000 per channel.
    assert sum(compared) < 256 * 4096
    if not distinct:
        assert sum(compared) < 1 << 16
