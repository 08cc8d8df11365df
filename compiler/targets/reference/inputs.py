"""Inputs of a run, checked against the parameters of the function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import EvaluationError, legal_names
from compiler.ir.expr import Function
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import TensorType, TupleType, Type
from compiler.ops.number_format import storage_dtype


def named_inputs(
    function: Function, inputs: Mapping[str, Any] | Sequence[Any]
) -> Mapping[str, Any]:
    """``inputs`` by name; a sequence is taken in the order of the parameters.

    Raises:
        EvaluationError: the sequence is too short or too long.
    """
    if isinstance(inputs, Mapping):
        return inputs
    names = [p.name_hint for p in function.params]
    if len(inputs) != len(names):
        raise EvaluationError(f"{len(inputs)} inputs for {len(names)} parameters {names}")
    return dict(zip(names, inputs))


def checked_inputs(function: Function, inputs: Mapping[str, Any]) -> list[Any]:
    """The values in the order of the parameters.

    Raises:
        EvaluationError: a name is missing or unknown, or a value is of another dtype or shape.
    """
    names = [p.name_hint for p in function.params]
    for name in inputs:
        if name not in names:
            raise EvaluationError(f"there is no input {name!r}", fix=legal_names(name, names))
    values = []
    for name, ty in zip(names, function.func_type.arg_types):
        if name not in inputs:
            raise EvaluationError(
                f"input {name!r} is missing", where=f"parameter %{name}: {ty}", fix="pass an array"
            )
        values.append(_checked(name, inputs[name], ty))
    return values


def _checked(name: str, value: Any, ty: Type) -> Any:
    if isinstance(ty, TupleType):
        if not isinstance(value, (tuple, list)) or len(value) != len(ty.fields):
            raise EvaluationError(f"input {name!r} must be a tuple of type {ty}")
        return tuple(_checked(name, v, t) for v, t in zip(value, ty.fields))
    if not isinstance(ty, TensorType):
        return value
    typed = isinstance(value, (np.ndarray, np.generic))
    array: NDArray[Any] = np.asarray(value, None if typed else storage_dtype(ty.dtype))
    fits = len(array.shape) == len(ty.shape) and all(
        isinstance(d, AnyDim) or d == n for d, n in zip(ty.shape, array.shape)
    )
    if not fits or array.dtype != storage_dtype(ty.dtype):
        have = TensorType(array.shape, str(array.dtype))
        raise EvaluationError(
            f"input {name!r} is {have}, the parameter is {ty}", fix="cast or reshape the array"
        )
    return array
