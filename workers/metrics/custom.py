"""A user's metric, ``package.module:function``: called with the outputs of every run of the model.

    def top3(outputs, labels):                       # arrays with samples on axis 0
        return [label in row.argsort()[-3:] for row, label in zip(outputs[0], labels)]

It answers with an array of one value per sample, with a float for all of these samples, or with a
dictionary of floats, whose first is what a search maximises. A third parameter gets the outputs of
the float model. Scores are means over samples, so that parts of an evaluation add up exactly.
"""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workers.errors import MetricError
from workers.metrics.library import PACKAGES, TOTAL, Ratio
from workers.metrics.protocol import Metric, Outputs, State

NAMED: Final = "value of "
"""Before the name of a further value that the function gave."""


class CustomMetric(Ratio):
    """A function of the user as a metric: its answers are of a sample, or of all of a call.

    Args:
        function: see the module's docstring.
        name: for messages.
    """

    needs_labels = False

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self._function = function
        self._name = name
        named = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
        parameters = inspect.signature(function).parameters.values()
        self._takes = sum(each.kind not in named for each in parameters)

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
        if isinstance(answer, Mapping):
            named = dict(answer)
        else:
            named = {"": answer}
        for place, (key, value) in enumerate(named.items()):
            totals, samples = self._answers(value, count)
            if place == 0:
                self.add(state, totals, samples)
            if key:
                state[NAMED + key] = state.get(NAMED + key, 0.0) + float(totals.sum())

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
    try:
        found = pkgutil.resolve_name(path)
        return found if hasattr(found, "update") else CustomMetric(found, path)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ModuleNotFoundError):
            missing = str(error.name)
        else:
            missing = ""
        if missing.partition(".")[0] in PACKAGES:
            raise MetricError(
                f"this metric needs the package {missing}",
                where="metric",
                fix="pip install 'qsearch[metrics]'",
            ) from error
        raise MetricError(
            f"metric {path} cannot be used: {error}",
            where="metric",
            fix="package.module:function, importable where the command runs and on every worker",
        ) from error


def named_values(path: str, sums: Mapping[str, float]) -> dict[str, float]:
    """The further values of a metric that answers with a dictionary, as ``function.key``."""
    function = path.partition(":")[2]
    return {
        f"{function}.{key.removeprefix(NAMED)}": value / sums[TOTAL]
        for key, value in sums.items()
        if key.startswith(NAMED) and sums.get(TOTAL)
    }
