"""The fixed-point definition, and float32 products that equal it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.export.to_onnx.carried_rules.fixed_point import Factor, plain_product_holds
from compiler.ops.rules.float_product import Ties
from compiler.ops.tensor.fixed_point_multiply import scale_by
from tests.compiler.export.to_onnx.qdq_graphs import multiplier_and_shift


def factor_of(*values: float, ties: Ties = "up") -> Factor:
    pairs = [multiplier_and_shift(v) for v in values]
    return Factor.of([m for m, _ in pairs], [31 - e for _, e in pairs], ties)


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
def test_a_float_product_that_holds_is_equal_on_every_operand(
    value: float, magnitude: int, low: int, ties: Ties
) -> None:
    factor = factor_of(value, ties=ties)
    if not plain_product_holds(factor, np.array(-magnitude), np.array(magnitude), low, 127):
        return
    x = np.arange(-magnitude, magnitude + 1)
    expected = np.clip(factor.apply(x), low, 127)
    product = np.rint(x.astype(np.float32) * factor.real().astype(np.float32))
    np.testing.assert_array_equal(np.clip(product, low, 127), expected)


def test_too_many_steps_are_not_tried() -> None:
    far = np.array(1 << 20)
    assert not plain_product_holds(factor_of(1.7), -far, far, -(1 << 20), 1 << 20)
