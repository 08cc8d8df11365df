"""Loops of mean and variance normalisation: two reductions, then one line per element."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Bin, Intrin, Scalar, literal
from compiler.ops.reduce.reduction_loops import reduce_axes


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
