"""Executor: what the reference evaluator, generated C and onnxruntime sessions have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from compiler.errors import EvaluationError, check_known
from compiler.ir.expr import Array

Inputs = Mapping[str, Array] | Sequence[Array] | Array
"""Arrays by parameter name, or in the order of the parameters; the array of an only parameter."""


class Executor(Protocol):
    """One function of a module, ready to run any number of times."""

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the parameters, in order; two parameters may have one name."""

    def run(self, inputs: Inputs) -> list[Array]:
        """The results, tuples flattened from left to right.

        Args:
            inputs: an array of the parameter's dtype and shape for every parameter, by name or in
                order; only in order where two parameters have one name.
        Raises:
            EvaluationError: a name is missing, unknown or ambiguous, or an array does not fit.
        """


@runtime_checkable
class BatchExecutor(Executor, Protocol):
    """An executor that runs many samples at once."""

    def run_arrays(self, arrays: Sequence[Array], threads: int = 1) -> list[Array]:
        """``run`` of arrays in order that are known to have the parameters' dtypes and shapes.

        Args:
            threads: that share every step.
        """

    def run_batch(self, inputs: Sequence[Array], samples: int, threads: int = 1) -> list[Array]:
        """The results of ``samples`` runs, joined along the leading axis.

        Args:
            inputs: in the order of the parameters, the leading axis ``samples`` times as long as
                the parameter's.
            threads: that share the samples.
        Raises:
            EvaluationError: an array does not fit.
        """


def ordered_inputs(
    names: Sequence[str], inputs: Mapping[str, Any] | Sequence[Any] | Array
) -> list[Any]:
    """The inputs in the order of the parameters.

    Args:
        names: of the parameters; a name hint may occur twice.
        inputs: a value for every parameter, by name or in order; an array is that of the only one.
    Raises:
        EvaluationError: the number of values is wrong; or a name is missing, unknown, or the name
            of two parameters.
    """
    if isinstance(inputs, np.ndarray):
        if len(names) != 1:
            raise EvaluationError(
                f"one array for {len(names)} parameters {list(names)}",
                fix="pass a list of arrays in this order, or a dict by name",
            )
        return [inputs]
    if isinstance(inputs, list) or not isinstance(inputs, Mapping):  # a list is asked for fast
        if len(inputs) != len(names):
            raise EvaluationError(f"{len(inputs)} inputs for {len(names)} parameters {list(names)}")
        return list(inputs)
    for name in inputs:
        check_known(name, names, f"there is no input {name!r}", EvaluationError)
    for name, count in Counter(names).items():
        if name not in inputs:
            raise EvaluationError(
                f"input {name!r} is missing",
                where=f"given: {', '.join(inputs) or 'nothing'}",
                fix="pass an array",
            )
        if count > 1:
            raise EvaluationError(
                f"{count} parameters are named {name!r}, so a name does not tell them apart",
                where=f"parameters {', '.join(names)}",
                fix="pass the arrays as a list, in the order of the parameters",
            )
    return [inputs[name] for name in names]
