"""Normalisations as primitive arithmetic, so that folding and quantization see multiply and add.

    nn.batch_norm(x, gamma, beta, mean, var).0   ->   x * expand(s) + expand(t)
        s = 1 / sqrt(var + eps) * gamma,   t = -mean * s + beta

Source: Relay v0.10 transforms/simplify_inference.cc.
"""

from __future__ import annotations

from typing import Any

from compiler.ir.expr import Args, Call, Expr, Tuple
from compiler.ops.op_call import expand_to_axis, op_call, scalar
from compiler.ops.rules.simplify import FDefinition, FSimplifyInference, FSimplifyInferenceField


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


@FDefinition.register("nn.batch_norm")
def batch_norm_definition(ref_call: Call, new_args: Args) -> Expr:
    """Field 0 as above, and the statistics as they are."""
    return Tuple((simplify_batch_norm(ref_call, new_args), *new_args[3:]))


@FSimplifyInferenceField.register("nn.dropout")
def simplify_dropout(ref_call: Call, new_args: Args) -> Expr:
    """The data: nothing is dropped at inference."""
    return new_args[0]


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
