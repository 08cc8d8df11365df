"""Mean and variance normalisation: values, and loops of two reductions and a line per element."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.ir.expr import Op
from compiler.ir.ty import Type
from compiler.ops.number_format import Array, aligned_vector, working
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

Grouping = Callable[[Any, tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
"""``grouping(attrs, shape of the data) -> (shape, axes)``: the elements under another shape, and
the axes that are normalised together there."""


def register_norm(op: Op, grouping: Grouping) -> None:
    """Say what an operator of data, gamma and beta computes; the variance divides by N."""

    @FNumpyCompute.register(op)
    def norm_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
        data, gamma, beta = (working(a) for a in args)
        shape, axes = grouping(attrs, data.shape)
        y = standardize(data.reshape(shape), axes, attrs.epsilon).reshape(data.shape)
        if attrs.scale:
            y = y * aligned_vector(gamma, attrs.axis, y.ndim)
        if attrs.center:
            y = y + aligned_vector(beta, attrs.axis, y.ndim)
        return [y.astype(args[0].dtype, copy=False)]


def standardize(data: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``; the variance divides by N."""
    # Sums, not np.mean: that one warns about empty axes on its own.
    count = data.dtype.type(math.prod(data.shape[a] for a in axes))
    centered = data - data.sum(axis=axes, keepdims=True) / count
    variance = np.square(centered).sum(axis=axes, keepdims=True) / count
    return np.asarray(centered / np.sqrt(variance + data.dtype.type(epsilon)))
