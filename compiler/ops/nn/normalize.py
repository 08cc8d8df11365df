"""Mean and variance normalisation: values, and the arithmetic that stands for it at inference.
nn.instance_norm: normalisation over every axis but the batch (axis 0) and ``axis``.
nn.group_norm: channels in groups, each normalised over the axes from the channel axis on.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.errors import DynamicShapeError, TypeInferenceError
from compiler.ir.expr import Args, Call, Expr, Op
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import Reporter, TypeRelation
from compiler.ops.arg_types import Types, shape_text, static, vectors_along_axis
from compiler.ops.number_format import Array, aligned_vector, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import expand_to_axis, op_call, scalar
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.simplify import FSimplifyInference
from compiler.span import AnySpan

Grouping = Callable[[Any, tuple[Any, ...]], tuple[tuple[Any, ...], tuple[int, ...]]]
"""``grouping(attrs, shape of the data) -> (shape, axes)``: the elements under another shape, and
the axes that are normalised together there."""


class NormAttrs(OpAttrs):
    """Channel axis, the constant added to the variance, and which of beta and gamma count."""

    axis: int = 1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


def floats_along_axis(
    name: str, attrs_type: type[OpAttrs], *vectors: str, rel: TypeRelation | None = None
) -> Op:
    """An operator of floats along ``attrs.axis``, and of vectors as long as that.

    Args:
        rel: its relation where it asks for more.
    """
    return register_op(
        name,
        arg_names=("data", *vectors),
        attrs_type=attrs_type,
        rel=rel or vectors_along_axis(name, *vectors),
        pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
    )


def register_norm(
    name: str, attrs_type: type[OpAttrs], grouping: Grouping, rel: TypeRelation | None = None
) -> Op:
    """An operator of data, gamma and beta, and what it computes; the variance divides by N.

    Source of the arithmetic: Relay v0.10 transforms/simplify_inference.cc.
    """
    op = floats_along_axis(name, attrs_type, "gamma", "beta", rel=rel)

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

    @FSimplifyInference.register(op)
    def norm_arithmetic(ref_call: Call, new_args: Args) -> Expr:
        attrs: Any = ref_call.attrs
        ty, span = ref_call.args[0].tensor_type, ref_call.span
        data, gamma, beta = new_args
        shape, axes = grouping(attrs, ty.shape)
        if shape == ty.shape:
            out: Expr = _standardized(data, axes, attrs.epsilon, ty.dtype, span)
        else:
            data = op_call("reshape", data, newshape=shape, allowzero=0 in shape, span=span)
            out = _standardized(data, axes, attrs.epsilon, ty.dtype, span)
            out = op_call("reshape", out, newshape=ty.shape, allowzero=0 in ty.shape, span=span)
        rank = len(ty.shape)
        axis = attrs.axis % rank
        if attrs.scale:
            out = op_call("multiply", out, expand_to_axis(gamma, axis, rank, span), span=span)
        if attrs.center:
            out = op_call("add", out, expand_to_axis(beta, axis, rank, span), span=span)
        return out

    return op


def _standardized(
    data: Expr, axes: tuple[int, ...], epsilon: float, dtype: str, span: AnySpan | None
) -> Call:
    """``standardize`` as calls."""
    if axes:
        mean: Expr = op_call("mean", data, axis=axes, keepdims=True, span=span)
        var = op_call("variance", data, mean, axis=axes, keepdims=True, span=span)
    else:
        # To reductions no axes are all axes; here every element is its own mean.
        mean = data
        centred = op_call("subtract", data, data, span=span)
        var = op_call("multiply", centred, centred, span=span)
    eps = scalar(epsilon, dtype, span)
    deviation = op_call("sqrt", op_call("add", var, eps, span=span), span=span)
    centred = op_call("subtract", data, mean, span=span)
    return op_call("divide", centred, deviation, span=span)


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
    attrs: GroupNormAttrs, shape: tuple[Any, ...]
) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """The channel axis is split in place; axes in front of it are not reduced.

    Raises:
        DynamicShapeError: a dimension is unknown.
    """
    if not static(shape):
        raise DynamicShapeError(
            f"nn.group_norm needs a static shape, its data has {shape_text(shape)}",
            fix="give the unknown dimension a value when the model is loaded",
        )
    axis = attrs.axis % len(shape)
    size = shape[axis] // attrs.num_groups
    split = (*shape[:axis], attrs.num_groups, size, *shape[axis + 1 :])
    return split, tuple(range(axis + 1, len(split)))


group_norm = register_norm("nn.group_norm", GroupNormAttrs, _groups, group_norm_rel)
