"""Mean and variance normalisation: values, and loops of two reductions and a line per element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Bin, Intrin, Scalar, literal
from compiler.ops.number_format import Array, aligned_vector, working
from compiler.ops.reduce.reduction_loops import reduce_axes, total_dtype
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.row_major import reshaped

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

    @FLower.register(op)
    def norm_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        attrs: Any = call.attrs
        data, gamma, beta = inputs
        shape, axes = grouping(attrs, data.shape)
        held = reshaped(data.cast(total_dtype(data.dtype)), shape)
        y = reshaped(standardized(b, held, axes, attrs.epsilon), data.shape)
        factor, offset = gamma if attrs.scale else None, beta if attrs.center else None
        return [affine_view(y, factor, offset, attrs.axis % len(data.shape)).cast(data.dtype)]


def standardize(data: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``; the variance divides by N."""
    # Sums, not np.mean: that one warns about empty axes on its own.
    count = data.dtype.type(math.prod(data.shape[a] for a in axes))
    centered = data - data.sum(axis=axes, keepdims=True) / count
    variance = np.square(centered).sum(axis=axes, keepdims=True) / count
    return np.asarray(centered / np.sqrt(variance + data.dtype.type(epsilon)))


def standardized(
    builder: LirBuilder, view: TensorView, axes: Sequence[int], epsilon: float
) -> TensorView:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``; the variance divides by N."""
    data = builder.reusable(view)
    if not axes:
        axes, shape = (len(data.shape),), (*data.shape, 1)
        inner = TensorView.of(shape, lambda at: data.at(at[:-1]))
        flat = standardized(builder, inner, axes, epsilon)
        return TensorView.of(data.shape, lambda at: flat.at((*at, _zero())))
    count = literal(math.prod(data.shape[k] for k in axes), data.dtype)
    zero = literal(0, data.dtype)
    mean = reduce_axes(
        builder,
        data.shape,
        axes,
        Reduction("sum", zero, post=lambda acc, at: Bin("/", acc, count)),
        data.at,
        keepdims=True,
    )

    def centred(at: tuple[Scalar, ...]) -> Scalar:
        return Bin("-", data.at(at), mean.broadcast_at(at))

    def deviation(acc: Scalar, at: tuple[Scalar, ...]) -> Scalar:
        variance = Bin("/", acc, count)
        return Intrin("sqrt", (Bin("+", variance, literal(epsilon, data.dtype)),))

    root = reduce_axes(
        builder,
        data.shape,
        axes,
        Reduction("sum", zero, post=deviation),
        lambda at: Bin("*", centred(at), centred(at)),
        keepdims=True,
    )
    return TensorView.of(data.shape, lambda at: Bin("/", centred(at), root.broadcast_at(at)))


def _zero() -> Scalar:
    return literal(0, "int32")


def affine_view(
    data: TensorView, gamma: TensorView | None, beta: TensorView | None, axis: int
) -> TensorView:
    """data * gamma + beta with the vectors along ``axis``; None leaves one out."""

    def element(at: tuple[Scalar, ...]) -> Scalar:
        value = data.at(at)
        if gamma is not None:
            value = Bin("*", value, gamma.cast(data.dtype).at((at[axis],)))
        if beta is not None:
            value = Bin("+", value, beta.cast(data.dtype).at((at[axis],)))
        return value

    return TensorView.of(data.shape, element)
