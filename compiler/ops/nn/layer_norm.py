"""nn.layer_norm: (x - mean) / sqrt(variance + epsilon) over one axis, times gamma, plus beta."""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ops.nn.normalize import NormAttrs, register_norm
from compiler.ops.nn.standardized_integers import Norm, annotate_norm, realize_norm
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.channel_factors import RESULT, Absorber, ChannelFactors, FQChannelFactors
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.qtypes.context import QuantizeContext


class LayerNormAttrs(NormAttrs):
    """The same, of the last axis unless told."""

    axis: int = -1


layer_norm = register_norm(
    "nn.layer_norm",
    LayerNormAttrs,
    lambda attrs, shape: (shape, (attrs.axis % len(shape),)),
)


@FQChannelFactors.register(layer_norm)
def layer_norm_factors(call: Call) -> ChannelFactors | None:
    """Gamma and beta times the factors of the result; none come in."""
    attrs = LayerNormAttrs.of(call)
    if not attrs.scale or not all(isinstance(arg, Constant) for arg in call.args[1:]):
        return None
    axis = attrs.axis % len(call.tensor_type.shape)
    gamma, beta = Absorber(1, RESULT, 0), Absorber(2, RESULT, 0)
    return ChannelFactors({RESULT: axis}, absorbers=(gamma, beta))


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
    factor = gamma.data.astype(np.float64) if attrs.scale else np.ones(size)
    offset = beta.data.astype(np.float64) if attrs.center else None
    norm = Norm(attrs.axis, attrs.epsilon, factor, offset)
    return realize_norm(ref_call, data, norm, ctx)
