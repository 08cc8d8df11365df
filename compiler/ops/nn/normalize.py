"""Mean and variance normalisation: values, and loops of two reductions and a line per element.
nn.instance_norm: normalisation over every axis but the batch (axis 0) and ``axis``.
nn.group_norm: channels in groups, each normalised over the axes from the channel axis on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Op
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import Reporter, TypeRelation
from compiler.ops.arg_types import Types, vectors_along_axis
from compiler.ops.number_format import Array, aligned_vector, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

Grouping = Callable[[Any, tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]]
"""``grouping(attrs, shape of the data) -> (shape, axes)``: the elements under another shape, and
the axes that are normalised together there."""


@dataclass(frozen=True, eq=False)
class NormAttrs(OpAttrs):
    """Channel axis, the constant added to the variance, and which of beta and gamma count."""

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


def register_norm(
    name: str, attrs_type: type[OpAttrs], grouping: Grouping, rel: TypeRelation | None = None
) -> Op:
    """An operator of data, gamma and beta, and what it computes; the variance divides by N."""
    op = register_op(
        name,
        arg_names=("data", "gamma", "beta"),
        attrs_type=attrs_type,
        rel=rel or vectors_along_axis(name, "gamma", "beta"),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    )

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

    return op


def standardize(data: Array, axes: tuple[int, ...], epsilon: float) -> Array:
    """(x - mean) / sqrt(variance + epsilon) over ``axes``; the variance divides by N."""
    # Sums, not np.mean: that one warns about empty axes on its own.
    count = data.dtype.type(math.prod(data.shape[a] for a in axes))
    centered = data - data.sum(axis=axes, keepdims=True) / count
    variance = np.square(centered).sum(axis=axes, keepdims=True) / count
    return np.asarray(centered / np.sqrt(variance + data.dtype.type(epsilon)))


class InstanceNormAttrs(NormAttrs):
    """Of an image: each channel alone."""


instance_norm = register_norm(
    "nn.instance_norm",
    InstanceNormAttrs,
    lambda attrs, shape: (
        shape,
        tuple(k for k in range(1, len(shape)) if k != attrs.axis % len(shape)),
    ),
)


# ---- group_norm --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GroupNormAttrs(OpAttrs):
    """Number of groups, channel axis, epsilon, and which of beta and gamma count."""

    num_groups: int
    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


_AFFINE = vectors_along_axis("nn.group_norm", "gamma", "beta")


def group_norm_rel(
    types: Types, num_inputs: int, attrs: GroupNormAttrs, reporter: Reporter
) -> bool:
    """As layer_norm; the groups must divide the channels.

    Raises:
        TypeInferenceError: they do not.
    """
    if not _AFFINE(types, num_inputs, attrs, reporter):
        return False
    data = types[0]
    assert isinstance(data, TensorType)
    channels = data.shape[attrs.axis]
    if attrs.num_groups < 1 or (isinstance(channels, int) and channels % attrs.num_groups):
        raise TypeInferenceError(
            f"nn.group_norm: num_groups={attrs.num_groups} does not divide {channels} channels"
        )
    return True


def _groups(
    attrs: GroupNormAttrs, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The channel axis is split in place; axes in front of it are not reduced."""
    axis = attrs.axis % len(shape)
    size = shape[axis] // attrs.num_groups
    split = (*shape[:axis], attrs.num_groups, size, *shape[axis + 1 :])
    return split, tuple(range(axis + 1, len(split)))


group_norm = register_norm("nn.group_norm", GroupNormAttrs, _groups, group_norm_rel)
