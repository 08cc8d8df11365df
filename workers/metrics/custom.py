"""A user's metric, ``package.module:function``: called with the outputs of every run of the model.

    def top3(outputs, labels):                       # arrays with samples on axis 0
        return [label in row.argsort()[-3:] for row, label in zip(outputs[0], labels)]

It answers with an array of one value per sample, with a float for all of these samples, or with a
dictionary of floats, whose first is what a search maximises. A third parameter gets the outputs of
the float model. Scores are means over samples, so that parts of an evaluation add up exactly.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workers.errors import MetricError
from workers.metrics.library import PACKAGES
from workers.metrics.protocol import Metric, Outputs, State

TOTAL: Final = "total"
VALUE: Final = "value"
_CALLS, _SQUARES, _PRODUCTS, _COUNTS = "calls", "squares", "products", "counts"
"""Answers (of a sample, or of all samples of a call), and sums over them for ``standard_error``:
their totals squared, totals times samples, and samples squared."""
NAMED: Final = "value of "
"""Before the name of a further value that the function gave."""


class CustomMetric:
    """A function of the user as a metric.

    Args:
        function: see the module's docstring.
        name: for messages.
    """

    needs_labels = False
    needs_reference = False

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        self._takes = len(inspect.signature(function).parameters)

    def init(self) -> State:
        return dict.fromkeys((VALUE, TOTAL, _CALLS, _SQUARES, _PRODUCTS, _COUNTS), 0.0)

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Call the function and add its answer.

        Raises:
            MetricError: the function fails, or answers with something else.
        """
        given = (outputs, labels, reference)[: self._takes]
        try:
            answer = self._function(*given)
        except Exception as error:
            raise MetricError(
                f"metric {self._name} failed: {type(error).__name__}: {error}",
                where=f"outputs {[out.shape for out in outputs]}",
                fix="it is called with (outputs, labels) or (outputs, labels, float outputs)",
            ) from error
        count = len(outputs[0])
        named = dict(answer) if isinstance(answer, Mapping) else {"": answer}
        for place, (key, value) in enumerate(named.items()):
            totals, samples = self._answers(value, count)
            total = float(totals.sum())
            if place == 0:
                state[VALUE] += total
                state[_CALLS] += len(totals)
                state[_SQUARES] += float(totals @ totals)
                state[_PRODUCTS] += float(totals @ samples)
                state[_COUNTS] += float(samples @ samples)
            if key:
                state[NAMED + key] = state.get(NAMED + key, 0.0) + total
        state[TOTAL] += count

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """None of fewer than two answers.

        The delta method on the ratio of totals to samples, answers being independent of one
        another.
        """
        calls, total = state.get(_CALLS, 0.0), state[TOTAL]
        if calls < 2:
            return None
        mean = state[VALUE] / total
        spread = state[_SQUARES] - 2.0 * mean * state[_PRODUCTS] + mean * mean * state[_COUNTS]
        return math.sqrt(max(spread, 0.0) * calls / (calls - 1.0)) / total

    def result(self, state: Mapping[str, float]) -> float | None:
        return state[VALUE] / state[TOTAL] if state[TOTAL] else None

    @staticmethod
    def loss(state: Mapping[str, float]) -> float:
        """What a part loses."""
        return -state[VALUE]

    def _answers(self, value: Any, count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Totals of the answers, and for how many samples each is."""
        array = np.asarray(value, np.float64)
        if array.ndim == 0:
            return array[np.newaxis] * count, np.asarray([float(count)])
        if array.shape != (count,):
            raise MetricError(
                f"metric {self._name} gave values of shape {array.shape} for {count} samples",
                fix="one float, a dictionary of floats, or one value per sample",
            )
        return array, np.ones(count)


@cache
def custom_metric(path: str) -> Metric:
    """The metric behind ``module:function``, or ``module:metric`` of an object with own sums.

    Raises:
        MetricError: it cannot be imported or called.
    """
    module, _, name = path.partition(":")
    try:
        found = getattr(import_module(module), name)
        return found if hasattr(found, "update") else CustomMetric(found, path)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in PACKAGES:
            raise _unusable(path, error) from error
        raise MetricError(
            f"this metric needs the package {error.name}",
            where="metric",
            fix="pip install 'qsearch[metrics]'",
        ) from error
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise _unusable(path, error) from error


def _unusable(path: str, error: Exception) -> MetricError:
    return MetricError(
        f"metric {path} cannot be used: {error}",
        where="metric",
        fix="package.module:function, importable where the command runs and on every worker",
    )


def named_values(path: str, sums: Mapping[str, float]) -> dict[str, float]:
    """The further values of a metric that answers with a dictionary, as ``function.key``."""
    function = path.partition(":")[2]
    return {
        f"{function}.{key.removeprefix(NAMED)}": value / sums[TOTAL]
        for key, value in sums.items()
        if key.startswith(NAMED) and sums.get(TOTAL)
    }
