"""Metrics of decisions: how often the highest output is the label ("top1") or the float model's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.ty import is_float
from workers.errors import MetricError
from workers.metrics.library import Sums
from workers.metrics.protocol import Outputs, State
from workers.metrics.registry import declare, metrics


def answers(output: NDArray[Any]) -> NDArray[np.int64]:
    """Index of the highest value per decision, first of equals.

    An output of int64 or int32, as ArgMax gives it, holds these already. Otherwise classes lie on
    the last axis for outputs of rank up to 3 (samples, [positions,] classes), on axis 1 for images
    (samples, classes, height, width). An output of rank 1 is one decision.
    """
    if output.dtype in (np.int64, np.int32):
        return output.astype(np.int64, copy=False)
    axis = 1 if output.ndim >= 4 else -1
    rows = output.reshape(-1, 1) if output.ndim == 1 else output
    return np.asarray(np.argmax(rows, axis=axis), np.int64)


def is_lone(shape: Sequence[int], dtype: str) -> bool:
    """Return whether an output has one number where scores of classes would lie, as of a
    regression."""
    axis = 1 if len(shape) >= 4 else -1
    return is_float(dtype) and (len(shape) < 2 or shape[axis] == 1)


class Fraction(Sums):
    """Fraction of decisions that are right, of the first output of the model.

    Its interval follows from its value and the number of samples.
    """

    def init(self) -> State:
        return {"right": 0.0, "total": 0.0}

    def add(self, state: State, right: NDArray[np.bool_]) -> None:
        """Count some decisions."""
        state["right"] += float(np.count_nonzero(right))
        state["total"] += float(right.size)

    def result(self, state: Mapping[str, float]) -> float | None:
        if state["total"]:
            return state["right"] / state["total"]
        return None

    @staticmethod
    def loss(state: Mapping[str, float]) -> float:
        """Return the loss of a part."""
        return state["total"] - state["right"]


class Top1(Fraction):
    """Fraction of samples whose highest output is the label; negative labels do not count."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Count samples whose highest output is the label, and beside the float model's outputs,
        where they are given, those that only it has right ("lost"), or only this one ("won").

        Raises:
            MetricError: labels do not fit the output.
        """
        assert labels is not None  # needs_labels
        found = answers(outputs[0])
        if found.shape != labels.shape:
            raise MetricError(
                f"labels of shape {labels.shape} do not fit answers of shape {found.shape}",
                where=f"output of shape {outputs[0].shape}",
                fix="one class index per answer (of one-hot labels: labels.argmax(1))",
            )
        labelled = labels >= 0
        right = (found == labels)[labelled]
        self.add(state, right)
        if reference is not None:
            before = (answers(reference[0]) == labels)[labelled]
            for name, gone, come in (("lost", before, right), ("won", right, before)):
                state[name] = state.get(name, 0.0) + float(np.count_nonzero(gone & ~come))


metrics.register("top1")(Top1())
declare(
    "top1",
    "top1",
    title="top-1",
    unit="%",
    needs="labels",
    interval="wilson",
    place=0,
    meaning="share of samples whose highest output is the label",
    template="{:.2%}",
)


class Agreement(Fraction):
    """Fraction of decisions equal to the float model's."""

    needs_labels = False
    needs_reference = True

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Count decisions that equal those of the float model; a lone number decides nothing."""
        assert reference is not None  # needs_reference
        if not is_lone(outputs[0].shape, outputs[0].dtype.name):
            self.add(state, answers(outputs[0]) == answers(reference[0]))


metrics.register("agreement")(Agreement())
declare(
    "agreement",
    "agreement",
    unit="%",
    interval="wilson",
    perfect=1.0,
    place=1,
    meaning="share of samples whose highest output is that of the float model",
    template="{:.2%}",
)
