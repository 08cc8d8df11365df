"""Inputs of a run, checked against the parameters of the function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import EvaluationError
from compiler.ir.expr import Function
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import TensorType, TupleType, Type
from compiler.ops.number_format import storage_dtype
from compiler.runtime.executor import ordered_inputs


def checked_inputs(
    function: Function, inputs: Mapping[str, Any] | Sequence[Any] | NDArray[Any]
) -> list[Any]:
    """The values in the order of the parameters.

    Raises:
        EvaluationError: as ``ordered_inputs``; or a value is of another dtype or shape.
    """
    names = [p.name_hint for p in function.params]
    values = ordered_inputs(names, inputs)
    types = function.func_type.arg_types
    return [_checked(name, value, ty) for name, value, ty in zip(names, values, types)]


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
