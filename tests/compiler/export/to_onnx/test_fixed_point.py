"""The fixed-point definition, and float32 forms that are proven equal to it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.export.to_onnx.grid_rules.fixed_point import (
    Factor,
    FloatForm,
    proven_float_form,
)
from compiler.ops.rules.float_product import Ties
from compiler.ops.tensor.fixed_point_multiply import scale_by
from tests.compiler.export.to_onnx.grid_graphs import multiplier_and_shift


def factor_of(*values: float, ties: Ties = "up") -> Factor:
    pairs = [multiplier_and_shift(v) for v in values]
    return Factor.of([m for m, _ in pairs], [31 - e for _, e in pairs], ties)


def compute(form: FloatForm, x: np.ndarray) -> np.ndarray:
    """The exported nodes in numpy: Mul, Add, Floor or Round, each rounding to float32."""
    result = x.astype(np.float32) * form.factor
    if form.addend is not None:
        result = result + form.addend
    return np.floor(result) if form.floor else np.rint(result)


@pytest.mark.parametrize("value", [0.3, 1 / 3, 0.75, 1.7, 0.0123, 0.99999994, 3.5])
def test_the_definition_is_that_of_the_operator(value: float) -> None:
    x = np.array([0, 1, -1, 2, -2, 5, -5, 10, -10, 127, -127, 1000, -1000, 100000, -100000])
    m, e = multiplier_and_shift(value)
    expected = scale_by(x.astype("int64"), m, e)
    np.testing.assert_array_equal(factor_of(value).apply(x), expected)


def test_ties_go_up_or_away_from_zero_or_to_even() -> None:
    x = np.array([-3, -1, 1, 3])
    np.testing.assert_array_equal(factor_of(0.5).apply(x), [-1, 0, 1, 2])
    np.testing.assert_array_equal(factor_of(0.5, ties="away").apply(x), [-2, -1, 1, 2])
    np.testing.assert_array_equal(factor_of(0.5, ties="even").apply(x), [-2, 0, 0, 2])


def test_ties_are_foreseen() -> None:
    assert factor_of(0.5).may_tie(1)
    assert factor_of(0.75).may_tie(2)
    assert not factor_of(0.75).may_tie(1)
    assert not factor_of(1 / 3).may_tie(1 << 20)


@settings(max_examples=60, deadline=None)
@given(
    value=st.floats(3e-4, 2.0),
    magnitude=st.integers(200, 400_000),
    low=st.sampled_from([0, -127]),
    ties=st.sampled_from(["up", "away", "even"]),
)
def test_a_proven_form_is_equal_on_every_operand(
    value: float, magnitude: int, low: int, ties: Ties
) -> None:
    factor = factor_of(value, ties=ties)
    form = proven_float_form(factor, np.array(-magnitude), np.array(magnitude), low, 127)
    if form is None:
        return
    x = np.arange(-magnitude, magnitude + 1)
    expected = np.clip(factor.apply(x), low, 127)
    np.testing.assert_array_equal(np.clip(compute(form, x), low, 127), expected)


def test_ordinary_factors_are_proven() -> None:
    rng = np.random.default_rng(0)
    for low in (0, -127):
        factor = factor_of(*rng.uniform(0.004, 0.03, 64))
        assert (
            proven_float_form(factor, np.array(-(1 << 20)), np.array(1 << 20), low, 127) is not None
        )


def test_a_factor_that_fails_as_it_is_gets_a_neighbour_or_an_addend() -> None:
    """Seeded so that the plain product is wrong somewhere, which the proof has to notice."""
    rng = np.random.default_rng(3)
    wrong = repaired = 0
    x = np.arange(90_000)
    for value in rng.uniform(0.0015, 0.003, 40):
        factor = factor_of(float(value))
        plain = FloatForm(factor.real().astype(np.float32), np.array(0.5, np.float32), True)
        expected = np.clip(factor.apply(x), 0, 127)
        if np.array_equal(np.clip(compute(plain, x), 0, 127), expected):
            continue
        wrong += 1
        form = proven_float_form(factor, np.array(-200_000), np.array(200_000), 0, 127)
        if form is not None:
            repaired += 1
            np.testing.assert_array_equal(np.clip(compute(form, x), 0, 127), expected)
    assert wrong >= 3
    assert repaired == wrong


def test_too_many_steps_are_not_tried() -> None:
    far = np.array(1 << 20)
    assert proven_float_form(factor_of(1.7), -far, far, -(1 << 20), 1 << 20) is None
