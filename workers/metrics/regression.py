"""Metrics of regression: errors (negative) and R2 by scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import mean_absolute_error

from workers.metrics.library import Sums, flat
from workers.metrics.protocol import Outputs, State


def mae(outputs: Outputs, labels: NDArray[Any] | None) -> NDArray[Any]:
    """Negative mean absolute error of every sample."""
    found, wanted = flat(outputs[0], labels)
    each = mean_absolute_error(wanted.T, found.T, multioutput="raw_values")
    return -np.asarray(each, np.float64)


class _Squares(Sums):
    """Sums of squares, from which RMSE and R2 follow for all samples together."""

    def init(self) -> State:
        return dict.fromkeys(("count", "residual", "fourth", "sum", "square"), 0.0)

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        found, wanted = flat(outputs[0], labels)
        squares = (found - wanted) ** 2
        state["count"] += float(wanted.size)
        state["residual"] += float(squares.sum())
        state["fourth"] += float((squares**2).sum())
        state["sum"] += float(wanted.sum())
        state["square"] += float((wanted**2).sum())

    @staticmethod
    def loss(state: Mapping[str, float]) -> float:
        """What a part loses."""
        return state["residual"]


class Rmse(_Squares):
    """Negative root of the mean squared error."""

    def result(self, state: Mapping[str, float]) -> float | None:
        return -math.sqrt(state["residual"] / state["count"]) if state["count"] else None

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """By the delta method on the mean of the squares."""
        count, value = state["count"], self.result(state)
        if count < 2 or not value:
            return None
        spread = state["fourth"] / count - (state["residual"] / count) ** 2
        return math.sqrt(max(spread, 0.0) / (count - 1)) / (2 * -value)


class R2(_Squares):
    """Share of the variance of the labels that the outputs explain; 1 is all."""

    def result(self, state: Mapping[str, float]) -> float | None:
        count = state["count"]
        total = state["square"] - state["sum"] ** 2 / count if count else 0.0
        return 1.0 - state["residual"] / total if total > 0 else None


rmse, r2 = Rmse(), R2()
