"""Executor: what the reference evaluator and onnxruntime sessions have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray


class Executor(Protocol):
    """One function of a module, ready to run any number of times."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        ...

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """The results, tuples flattened from left to right.

        Args:
            inputs: an array of the parameter's dtype and shape for every name.
        Raises:
            EvaluationError: a name is missing or unknown, or an array does not fit.
        """
        ...
