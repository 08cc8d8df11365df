"""Metric: a state of float sums that samples are added to and shards merge by addition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

State = dict[str, float]
"""Sums by name; merging two states adds them."""

Outputs = Sequence[NDArray[Any]]
"""The model's outputs for some samples, samples on axis 0."""


class Metric(Protocol):
    """One score. Implementations have no state of their own."""

    needs_labels: bool
    needs_reference: bool

    def init(self) -> State:
        """Sums over no sample."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Add samples.

        Args:
            reference: outputs of the float model for them; given where ``needs_reference``.
            labels: int64; given where ``needs_labels``.
        """

    def standard_error(self, state: Mapping[str, float]) -> float | None:
        """Return the standard error of the score over samples; None where it is unknown."""

    def result(self, state: Mapping[str, float]) -> float | None:
        """The score; None without a sample or where it is not finite."""
