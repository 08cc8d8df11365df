"""nn.layer_norm: (x - mean) / sqrt(variance + epsilon) over one axis, times gamma, plus beta.
nn.rms_norm: x / sqrt(mean(x * x) + epsilon) over one axis.

RecoverRmsNorm makes it of the arithmetic that exporters write out.
Source: Zhang and Sennrich, "Root mean square layer normalization", 2019, without the gain.
"""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ops.evaluate import computes
from compiler.ops.nn.integer_standardize import Norm, annotate_norm, realize_norm
from compiler.ops.nn.normalize import NormAttrs, floats_along_axis, register_norm
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.axes import RESULT, Absorber, Axes, FAxes
from compiler.ops.rules.integer_calls import scalar
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.qtypes.context import QuantizeContext


class LayerNormAttrs(NormAttrs):
    """The same, of the last axis unless told."""

    axis: int = -1


layer_norm = register_norm(
    "nn.layer_norm",
    LayerNormAttrs,
    lambda attrs, shape: (shape, (attrs.axis % len(shape),)),
)


@FAxes.register(layer_norm)
def layer_norm_factors(call: Call) -> Axes | None:
    """Gamma and beta times the factors of the result; none come in."""
    attrs = LayerNormAttrs.of(call)
    if not attrs.scale or not all(isinstance(arg, Constant) for arg in call.args[1:]):
        return None
    axis = attrs.axis % len(call.tensor_type.shape)
    gamma = Absorber(1, RESULT, 0)
    beta = Absorber(2, RESULT, 0)
    return Axes({RESULT: axis}, absorbers=(gamma, beta))


@FQAnnotateRewrite.register(layer_norm, needs_tables=True)
def layer_norm_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Constant gamma and beta become part of the integer form."""
    attrs = LayerNormAttrs.of(ref_call)
    if not all(isinstance(arg, Constant) for arg in args[1:]):
        return None
    return annotate_norm(ref_call, args, attrs.axis, ctx)


@FQRealizeRewrite.register(layer_norm, needs_tables=True)
def layer_norm_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """nn.integer_standardize, times gamma and plus beta in units of one scale."""
    data, gamma, beta = args
    attrs = LayerNormAttrs.of(ref_call)
    if not isinstance(gamma, Constant) or not isinstance(beta, Constant):
        return None
    size = gamma.data.size
    if attrs.scale:
        factor = gamma.data.astype(np.float64)
    else:
        factor = np.ones(size)
    offset = beta.data.astype(np.float64) if attrs.center else None
    norm = Norm(attrs.axis, attrs.epsilon, factor, offset)
    return realize_norm(ref_call, data, norm, ctx)


# ---- rms_norm ------------------------------------------------------------------------------------


OP = "nn.rms_norm"


class RmsNormAttrs(OpAttrs):
    """Normalised axis, and the constant added to the mean square."""

    axis: int = -1
    epsilon: float = 1e-5


rms_norm = floats_along_axis(OP, RmsNormAttrs)


@FQAnnotateRewrite.register(rms_norm, needs_tables=True)
def rms_norm_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Annotate as nn.layer_norm."""
    attrs = RmsNormAttrs.of(ref_call)
    return annotate_norm(ref_call, args, attrs.axis, ctx)


@FQRealizeRewrite.register(rms_norm, needs_tables=True)
def rms_norm_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """nn.integer_standardize without the mean."""
    attrs = RmsNormAttrs.of(ref_call)
    norm = Norm(attrs.axis, attrs.epsilon, np.ones(1), centred=False)
    return realize_norm(ref_call, args[0], norm, ctx)


@FDefinition.register(rms_norm)
@computes(rms_norm)
def rms_norm_definition(ref_call: Call, new_args: Args) -> Expr:
    """The root of the mean square, then quotients."""
    attrs = RmsNormAttrs.of(ref_call)
    (data,) = new_args
    mean = op_call("mean", data * data, axis=(attrs.axis,), keepdims=True)
    epsilon = scalar(attrs.epsilon, ref_call.tensor_type.dtype)
    return data / op_call("sqrt", mean + epsilon)


FQZeroPoint.register(layer_norm, rms_norm)(centred)
