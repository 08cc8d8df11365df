"""How sure the value of a user's metric is: answers are independent, not samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workers.metrics.custom import CustomMetric
from workers.metrics.protocol import State
from workers.metrics.registry import merge_sums

VALUES = np.random.default_rng(3).normal(size=(40, 1))


def state_of(answer: Callable[..., Any], calls: int, rows: Any = VALUES) -> State:
    metric = CustomMetric(answer, "mine:answer")
    state = metric.init()
    for part in np.split(rows, calls):
        metric.update(state, (part,), None, None)
    return state


def error_of(state: State) -> float | None:
    return CustomMetric(per_sample, "mine:answer").standard_error(state)


def per_sample(outputs: Any) -> Any:
    return outputs[0][:, 0]


def per_call(outputs: Any) -> float:
    return float(outputs[0].mean())


@pytest.mark.parametrize("calls", [1, 4, 40])
def test_the_error_of_one_value_per_sample_is_that_of_a_mean(calls: int) -> None:
    expected = VALUES.std(ddof=1) / np.sqrt(len(VALUES))
    assert error_of(state_of(per_sample, calls)) == pytest.approx(expected, rel=1e-12)


def test_the_error_of_one_value_per_call_counts_calls() -> None:
    means = VALUES.reshape(8, 5).mean(axis=1)
    expected = means.std(ddof=1) / np.sqrt(8)
    assert error_of(state_of(per_call, 8)) == pytest.approx(expected, rel=1e-12)
    assert error_of(state_of(per_call, 1)) is None


def test_parts_add_up_to_the_whole() -> None:
    halves = [{"m": state_of(per_call, 4, rows)} for rows in np.split(VALUES, 2)]
    whole = state_of(per_call, 8)
    assert merge_sums(halves)["m"] == pytest.approx(whole, rel=1e-12)


def test_a_name_that_only_some_parts_have_is_summed_over_those() -> None:
    parts = [{"m": {"total": 2.0}}, {"m": {"total": 3.0, "value of rare": 1.0}}]
    assert merge_sums(parts) == {"m": {"total": 5.0, "value of rare": 1.0}}


def test_a_function_of_the_user_needs_neither_labels_nor_the_float_model() -> None:
    metric = CustomMetric(per_call, "mine:answer")
    assert (metric.needs_labels, metric.needs_reference) == (False, False)


def test_parameters_that_are_only_named_are_the_functions_own() -> None:
    def scaled(outputs: Any, labels: Any, *, factor: float = 2.0, **more: Any) -> float:
        return factor if labels is None else 0.0

    assert state_of(scaled, 1)["value"] == 2.0 * len(VALUES)
