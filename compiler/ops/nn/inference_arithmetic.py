"""Normalisations as primitive arithmetic, so that folding and quantization see multiply and add.

    nn.batch_norm(x, gamma, beta, mean, var).0   ->   x * expand(s) + expand(t)
        s = 1 / sqrt(var + eps) * gamma,   t = -mean * s + beta

Source: Relay v0.10 transforms/simplify_inference.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.errors import DynamicShapeError
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.ty import TensorType, is_dynamic
from compiler.ops.op_call import expand_to_axis, op_call, scalar
from compiler.ops.rules.simplify import FSimplifyInference, FSimplifyInferenceField
from compiler.span import AnySpan


@FSimplifyInferenceField.register("nn.batch_norm")
def simplify_batch_norm(ref_call: Call, new_args: Args) -> Expr:
    """data * scale + shift, both per channel of ``axis``."""
    attrs: Any = ref_call.attrs
    span = ref_call.span
    data, gamma, beta, mean, var = new_args
    ty = ref_call.args[0].tensor_type
    ndim = len(ty.shape)
    axis = attrs.axis % ndim
    eps = scalar(attrs.epsilon, ty.dtype, span)
    deviation = op_call("sqrt", op_call("add", var, eps, span=span), span=span)
    scale: Expr = op_call("divide", scalar(1.0, ty.dtype, span), deviation, span=span)
    if attrs.scale:
        scale = op_call("multiply", scale, gamma, span=span)
    shift = op_call("multiply", op_call("negative", mean, span=span), scale, span=span)
    if attrs.center:
        shift = op_call("add", shift, beta, span=span)
    scaled = op_call("multiply", data, expand_to_axis(scale, axis, ndim, span), span=span)
    return op_call("add", scaled, expand_to_axis(shift, axis, ndim, span), span=span)


@FSimplifyInferenceField.register("nn.dropout")
def simplify_dropout(ref_call: Call, new_args: Args) -> Expr:
    """The data: nothing is dropped at inference."""
    return new_args[0]


@FSimplifyInference.register("nn.layer_norm")
def simplify_layer_norm(ref_call: Call, new_args: Args) -> Expr:
    """Normalised over ``axis``, scaled and shifted along it."""
    ty = ref_call.args[0].tensor_type
    attrs: Any = ref_call.attrs
    axis = attrs.axis % len(ty.shape)
    out = _normalise(new_args[0], (axis,), attrs.epsilon, ty.dtype, ref_call.span)
    return _scale_and_center(out, ref_call, new_args, axis)


@FSimplifyInference.register("nn.instance_norm")
def simplify_instance_norm(ref_call: Call, new_args: Args) -> Expr:
    """Normalised over every axis but the batch (0) and ``axis``."""
    ty = ref_call.args[0].tensor_type
    attrs: Any = ref_call.attrs
    ndim = len(ty.shape)
    axis = attrs.axis % ndim
    reduced = tuple(i for i in range(1, ndim) if i != axis)
    out = _normalise(new_args[0], reduced, attrs.epsilon, ty.dtype, ref_call.span)
    return _scale_and_center(out, ref_call, new_args, axis)


@FSimplifyInference.register("nn.group_norm")
def simplify_group_norm(ref_call: Call, new_args: Args) -> Expr:
    """Normalised over the channels of each group and every axis behind them.

    Raises:
        DynamicShapeError: the data has an unknown dimension.
    """
    ty = ref_call.args[0].tensor_type
    attrs: Any = ref_call.attrs
    span = ref_call.span
    _require_static(ty, ref_call)
    shape = ty.concrete_shape
    axis = attrs.axis % len(shape)
    groups = attrs.num_groups
    split = (*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])
    grouped = op_call("reshape", new_args[0], newshape=split, allowzero=0 in split, span=span)
    reduced = tuple(range(axis + 1, len(split)))
    out: Expr = _normalise(grouped, reduced, attrs.epsilon, ty.dtype, span)
    out = op_call("reshape", out, newshape=shape, allowzero=0 in shape, span=span)
    return _scale_and_center(out, ref_call, new_args, axis)


@FSimplifyInference.register("nn.l2_normalize")
def simplify_l2_normalize(ref_call: Call, new_args: Args) -> Expr:
    """data / sqrt(max(sum(data * data), eps)); eps in the dtype of the data."""
    ty = ref_call.args[0].tensor_type
    attrs: Any = ref_call.attrs
    span = ref_call.span
    data = new_args[0]
    axis = tuple(a % len(ty.shape) for a in attrs.axis)
    square = op_call("multiply", data, data, span=span)
    total = op_call("sum", square, axis=axis, keepdims=True, span=span)
    eps = scalar(attrs.eps, ty.dtype, span)
    norm = op_call("sqrt", op_call("maximum", total, eps, span=span), span=span)
    return op_call("divide", data, norm, span=span)


@FSimplifyInference.register("nn.lrn")
def simplify_lrn(ref_call: Call, new_args: Args) -> Expr:
    """data * (bias + alpha / size * squares of the neighbours) ** -beta."""
    ty = ref_call.args[0].tensor_type
    attrs: Any = ref_call.attrs
    span = ref_call.span
    data = new_args[0]
    axis = attrs.axis % len(ty.shape)
    before = (attrs.size - 1) // 2
    width = [(0, 0)] * len(ty.shape)
    width[axis] = (before, attrs.size - 1 - before)
    square = op_call("multiply", data, data, span=span)
    padded = op_call("nn.pad", square, scalar(0.0, ty.dtype, span), pad_width=width, span=span)
    end = ty.shape[axis]
    cuts = [{"begin": (k,), "end": (k + end,), "axes": (axis,)} for k in range(attrs.size)]
    total: Expr = op_call("strided_slice", padded, strides=(1,), **cuts[0], span=span)
    for cut in cuts[1:]:
        part = op_call("strided_slice", padded, strides=(1,), **cut, span=span)
        total = op_call("add", total, part, span=span)
    share = scalar(attrs.alpha / attrs.size, ty.dtype, span)
    base = op_call("multiply", total, share, span=span)
    base = op_call("add", base, scalar(attrs.bias, ty.dtype, span), span=span)
    factor = op_call("power", base, scalar(-attrs.beta, ty.dtype, span), span=span)
    return op_call("multiply", data, factor, span=span)


def _normalise(
    data: Expr, axes: Sequence[int], epsilon: float, dtype: str, span: AnySpan | None
) -> Call:
    axes = tuple(axes)
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


def _scale_and_center(out: Expr, ref_call: Call, new_args: Args, axis: int) -> Expr:
    attrs: Any = ref_call.attrs
    span = ref_call.span
    _, gamma, beta = new_args
    ndim = len(ref_call.args[0].tensor_type.shape)
    if attrs.scale:
        out = op_call("multiply", out, expand_to_axis(gamma, axis, ndim, span), span=span)
    if attrs.center:
        out = op_call("add", out, expand_to_axis(beta, axis, ndim, span), span=span)
    return out


def _require_static(ty: TensorType, call: Call) -> None:
    if is_dynamic(ty):
        raise DynamicShapeError(
            f"nn.group_norm needs a static shape, its data is {ty}",
            fix="give the unknown dimension a value when the model is loaded",
            span=call.span,
        )
