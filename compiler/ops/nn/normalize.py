"""Mean and variance normalisation, shared by layer_norm, instance_norm and group_norm."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.ir.ty import TensorType
from compiler.ir.type_relation import Reporter, TypeRelation, is_known
from compiler.ops.arg_types import Types, check_floats, normalize_axis, tensor_of_rank
from compiler.ops.number_format import Array


def affine_norm_rel(op: str) -> TypeRelation:
    """Result = type of the data; gamma and beta are vectors as long as attrs.axis.

    Raises:
        TypeInferenceError: (from the relation) the data are no floats.
    """

    def rel(types: Types, num_inputs: int, attrs: Any, reporter: Reporter) -> bool:
        if not is_known(types[0]):
            return False
        data = tensor_of_rank(op, types, 0, "data", 1, at_least=True)
        check_floats(op, data)
        axis = normalize_axis(op, attrs.axis, len(data.shape))
        vector = TensorType((data.shape[axis],), data.dtype)
        reporter.assign(types[1], vector)
        reporter.assign(types[2], vector)
        reporter.assign(types[3], data)
        return True

    return rel


def standardize(data: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``; the variance divides by N."""
    # Sums, not np.mean: that one warns about empty axes on its own.
    count = data.dtype.type(math.prod(data.shape[a] for a in axes))
    centered = data - data.sum(axis=axes, keepdims=True) / count
    variance = np.square(centered).sum(axis=axes, keepdims=True) / count
    return np.asarray(centered / np.sqrt(variance + data.dtype.type(epsilon)))


def affine(data: Array, gamma: Array | None, beta: Array | None, axis: int) -> Array:
    """data * gamma + beta with the vectors along ``axis``; None leaves one out."""
    shape = [1] * data.ndim
    shape[axis] = -1
    if gamma is not None:
        data = data * gamma.reshape(shape)
    if beta is not None:
        data = data + beta.reshape(shape)
    return data


def working(array: Array) -> Array:
    """float16 in float32, the rest as it is."""
    return array.astype(np.float32) if array.dtype == np.float16 else array
