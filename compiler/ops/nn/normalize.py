"""Normalisations: values, and the arithmetic that stands for them at inference.

nn.batch_norm: (data - moving_mean) / sqrt(moving_var + epsilon) * gamma + beta; the result is a
tuple (normalised data, moving_mean, moving_var).
nn.instance_norm: normalisation over every axis but the batch (axis 0) and ``axis``.
nn.group_norm: channels in groups, each normalised over the axes from the channel axis on.
nn.l2_normalize: x / sqrt(max(sum(x * x), eps)) over some axes.
nn.lrn: x / (bias + alpha / size * squares of size neighbours along ``axis``) ** beta.

SimplifyInference writes them as primitive arithmetic, so that folding and quantization see multiply
and add:

    nn.batch_norm(x, gamma, beta, mean, var).0   ->   x * expand(s) + expand(t)
        s = 1 / sqrt(var + eps) * gamma,   t = -mean * s + beta

Source: Relay v0.10 transforms/simplify_inference.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add
from typing import Any

from compiler.errors import DynamicShapeError, TypeInferenceError
from compiler.ir.expr import Args, Call, Expr, Op, Tuple
from compiler.ir.op import OpPattern, define_op, register_op
from compiler.ir.ty import TensorType, TupleType, Type, is_float
from compiler.ir.type_relation import Reporter, TypeRelation
from compiler.ops.arg_types import (
    Types,
    check_floats,
    normalize_axes,
    normalize_axis,
    shape_text,
    static,
    tensor,
    vectors_along_axis,
)
from compiler.ops.evaluate import computes
from compiler.ops.op_attrs import OpAttrs, Size
from compiler.ops.op_call import expand_to_axis, op_call, scalar
from compiler.ops.rules.simplify import FDefinition, FSimplifyInference

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

    @FSimplifyInference.register(op)
    @computes(op)
    def norm_arithmetic(ref_call: Call, new_args: Args) -> Expr:
        attrs: Any = ref_call.attrs
        ty = ref_call.args[0].tensor_type
        data, gamma, beta = new_args
        shape, axes = grouping(attrs, ty.shape)
        if shape == ty.shape:
            out: Expr = _standardized(data, axes, attrs.epsilon, ty.dtype)
        else:
            data = op_call("reshape", data, newshape=shape, allowzero=0 in shape)
            out = _standardized(data, axes, attrs.epsilon, ty.dtype)
            out = op_call("reshape", out, newshape=ty.shape, allowzero=0 in ty.shape)
        rank = len(ty.shape)
        axis = attrs.axis % rank
        if attrs.scale:
            out = out * expand_to_axis(gamma, axis, rank)
        if attrs.center:
            out = out + expand_to_axis(beta, axis, rank)
        return out

    return op


def _standardized(data: Expr, axes: tuple[int, ...], epsilon: float, dtype: str) -> Expr:
    """``standardize`` as calls."""
    if axes:
        mean: Expr = op_call("mean", data, axis=axes, keepdims=True)
        var = op_call("variance", data, mean, axis=axes, keepdims=True)
    else:
        # To reductions no axes are all axes; here every element is its own mean.
        mean = data
        centred = data - data
        var = centred * centred
    deviation = op_call("sqrt", var + scalar(epsilon, dtype))
    return (data - mean) / deviation


class InstanceNormAttrs(NormAttrs):
    """Attributes of a norm of each channel of an image alone."""


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
    """Relate types as layer_norm does; the groups must divide the channels.

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


# ---- batch_norm ----------------------------------------------------------------------------------


BATCH_NORM = "nn.batch_norm"
VECTORS = ("gamma", "beta", "moving_mean", "moving_var")


class BatchNormAttrs(NormAttrs):
    """Attributes of batch norm, as of the other norms."""


_rel = vectors_along_axis(BATCH_NORM, *VECTORS, result=lambda data, v: TupleType((data, v, v)))
batch_norm = floats_along_axis(BATCH_NORM, BatchNormAttrs, *VECTORS, rel=_rel)


# ---- l2_normalize --------------------------------------------------------------------------------


class L2NormalizeAttrs(OpAttrs):
    """Smallest sum of squares, and the axes of the norm."""

    eps: float
    axis: tuple[int, ...]


@define_op("nn.l2_normalize", pattern=OpPattern.OUT_ELEMWISE_FUSABLE)
def l2_normalize(types: Types, attrs: L2NormalizeAttrs) -> Type:
    """Type of the data, floats.

    Raises:
        TypeInferenceError: the data are no floats, or no axis is given.
    """
    data = tensor("nn.l2_normalize", types, 0, "data")
    if not attrs.axis:
        raise TypeInferenceError("nn.l2_normalize: no axis is given", fix="name one or more")
    normalize_axes("nn.l2_normalize", attrs.axis, len(data.shape))
    check_floats("nn.l2_normalize", data)
    return data


# ---- lrn -----------------------------------------------------------------------------------------


class LRNAttrs(OpAttrs):
    """Length of the neighbourhood in elements, its axis, and the constants of the formula."""

    size: Size = 5
    axis: int = 1
    bias: float = 2.0
    alpha: float = 1e-4
    beta: float = 0.75


@define_op("nn.lrn", pattern=OpPattern.OPAQUE)
def lrn(types: Types, attrs: LRNAttrs) -> Type:
    """Type of the data, floats.

    Raises:
        TypeInferenceError: the data are no floats, or the size is below 1.
    """
    data = tensor("nn.lrn", types, 0, "data")
    normalize_axis("nn.lrn", attrs.axis, len(data.shape))
    if not is_float(data.dtype) or attrs.size < 1:
        raise TypeInferenceError(f"nn.lrn: data is {data}, size {attrs.size}; floats and 1 or more")
    return data


# ---- as arithmetic -------------------------------------------------------------------------------


@FDefinition.register(batch_norm)
@computes(batch_norm)
def batch_norm_definition(ref_call: Call, new_args: Args) -> Expr:
    """data * scale + shift, both per channel of ``axis``, and the statistics as they are."""
    attrs: Any = ref_call.attrs
    data, gamma, beta, mean, var = new_args
    ty = ref_call.args[0].tensor_type
    rank = len(ty.shape)
    axis = attrs.axis % rank
    deviation = op_call("sqrt", var + scalar(attrs.epsilon, ty.dtype))
    scale: Expr = scalar(1.0, ty.dtype) / deviation
    if attrs.scale:
        scale = scale * gamma
    shift = -mean * scale
    if attrs.center:
        shift = shift + beta
    scaled = data * expand_to_axis(scale, axis, rank)
    return Tuple((scaled + expand_to_axis(shift, axis, rank), mean, var))


@FSimplifyInference.register(l2_normalize)
@computes(l2_normalize)
def simplify_l2_normalize(ref_call: Call, new_args: Args) -> Expr:
    """data / sqrt(max(sum(data * data), eps)); eps in the dtype of the data."""
    ty = ref_call.args[0].tensor_type
    attrs: Any = ref_call.attrs
    (data,) = new_args
    axis = tuple(a % len(ty.shape) for a in attrs.axis)
    total = op_call("sum", data * data, axis=axis, keepdims=True)
    return data / op_call("sqrt", op_call("maximum", total, scalar(attrs.eps, ty.dtype)))


@FSimplifyInference.register(lrn)
@computes(lrn)
def simplify_lrn(ref_call: Call, new_args: Args) -> Expr:
    """data * (bias + alpha / size * squares of the neighbours) ** -beta."""
    ty = ref_call.args[0].tensor_type
    attrs: Any = ref_call.attrs
    (data,) = new_args
    axis = attrs.axis % len(ty.shape)
    before = (attrs.size - 1) // 2
    width = [(0, 0)] * len(ty.shape)
    width[axis] = (before, attrs.size - 1 - before)
    padded = op_call("nn.pad", data * data, scalar(0.0, ty.dtype), pad_width=width)
    end = ty.shape[axis]
    squares: list[Expr] = [
        op_call("strided_slice", padded, begin=(k,), end=(k + end,), strides=(1,), axes=(axis,))
        for k in range(attrs.size)
    ]
    total = reduce(add, squares)
    base = total * scalar(attrs.alpha / attrs.size, ty.dtype) + scalar(attrs.bias, ty.dtype)
    return data * op_call("power", base, scalar(-attrs.beta, ty.dtype))
