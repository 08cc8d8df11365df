"""Inputs for a module when the user gives none: seeded, in the ranges models expect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import EvaluationError
from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, is_dynamic, is_float

Arrays = dict[str, NDArray[Any]]

LARGEST_INDEX = 10


def main_inputs(mod: IRModule) -> dict[str, TensorType]:
    """Types of the parameters of @main.

    Raises:
        EvaluationError: one is no tensor of static shape.
    """
    main = mod["main"]
    assert isinstance(main, Function)
    found: dict[str, TensorType] = {}
    for param in main.params:
        ty = param.checked_type_or_none or param.type_annotation
        if not isinstance(ty, TensorType) or is_dynamic(ty):
            raise EvaluationError(
                f"input %{param.name_hint} has type {ty}; a tensor of known shape is needed",
                fix="import the model with --dim",
            )
        found[param.name_hint] = ty
    return found


def random_inputs(mod: IRModule, rng: np.random.Generator) -> Arrays:
    """One array per parameter of @main.

    Floats are standard normal, integers lie in [0, LARGEST_INDEX) so that they are legal indices,
    bools are fair coins.

    Raises:
        EvaluationError: a parameter is no tensor of static shape.
    """
    arrays: Arrays = {}
    for name, ty in main_inputs(mod).items():
        shape = ty.concrete_shape
        if ty.dtype.startswith("float"):
            value: NDArray[Any] = rng.standard_normal(shape).astype(ty.dtype)
        elif ty.dtype == "bool":
            value = rng.integers(0, 2, shape).astype(bool)
        else:
            value = rng.integers(0, LARGEST_INDEX, shape).astype(ty.dtype)
        arrays[name] = value
    return arrays


def named_for(mod: IRModule, batch: Mapping[str, NDArray[Any]]) -> Arrays:
    """``batch`` under the parameter names of ``mod``: by name, or by order where names differ.

    Floats come in the dtype of the parameter: a module of a float16 model takes float32.

    Raises:
        EvaluationError: another number of inputs.
    """
    types = main_inputs(mod)
    if len(types) != len(batch):
        raise EvaluationError(
            f"the module has {len(types)} inputs and {len(batch)} are given",
            where=f"inputs {', '.join(types)}; given {', '.join(batch)}",
            fix="compare modules with the same inputs",
        )
    found = dict(batch) if set(types) == set(batch) else dict(zip(types, batch.values()))
    for name, array in found.items():
        if array.dtype.kind == "f" and is_float(types[name].dtype):
            found[name] = array.astype(types[name].dtype)
    return found
