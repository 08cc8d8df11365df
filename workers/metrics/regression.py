"""Metrics of regression: errors (negative; without labels against the float model) and R2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.metrics.library import Ratio, Sums, flat
from workers.metrics.protocol import Outputs, State


class Mae(Ratio):
    """Negative mean absolute error; samples are independent, not their values."""

    needs_labels = False
    power = 1

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        wanted = reference[0] if labels is None and reference is not None else labels
        found, wanted = flat(outputs[0], wanted, gaps=True)
        errors = np.abs(found - wanted) ** self.power
        self.add(state, -np.nansum(errors, axis=1), (wanted == wanted).sum(axis=1) * 1.0)


class Rmse(Mae):
    """Negative root of the mean squared error."""

    power = 2

    def result(self, state: Mapping[str, float]) -> float | None:
        squares = super().result(state)
        if squares is None:
            return None
        return -math.sqrt(-squares)

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        value = self.result(state)
        error = super().standard_error(state)
        if value and error is not None:
            return error / (2 * -value)
        return None


class R2(Sums):
    """Share of the variance of the labels that the outputs explain; 1 is all."""

    def init(self) -> State:
        return dict.fromkeys(("count", "residual", "sum", "square"), 0.0)

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        found, wanted = flat(outputs[0], labels, gaps=True)
        found, wanted = (values[wanted == wanted] for values in (found, wanted))
        state["count"] += float(wanted.size)
        state["residual"] += float(((found - wanted) ** 2).sum())
        state["sum"] += float(wanted.sum())
        state["square"] += float((wanted**2).sum())

    @staticmethod
    def loss(state: Mapping[str, float]) -> float:
        """Return the loss of a part."""
        return state["residual"]

    def result(self, state: Mapping[str, float]) -> float | None:
        count = state["count"]
        if count:
            total = state["square"] - state["sum"] ** 2 / count
        else:
            total = 0.0
        if total > 0:
            return 1.0 - state["residual"] / total
        return None


mae = Mae()
rmse = Rmse()
r2 = R2()
