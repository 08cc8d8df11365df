"""nn.rms_norm: x / sqrt(mean(x * x) + epsilon) over one axis.

RecoverRmsNorm makes it of the arithmetic that exporters write out.
Source: Zhang and Sennrich, "Root mean square layer normalization", 2019, without the gain.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Args, Call, Expr
from compiler.ir.ty import Type
from compiler.ops.nn.normalize import floats_along_axis
from compiler.ops.nn.standardized_integers import Norm, annotate_norm, realize_norm
from compiler.ops.number_format import working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.integer_calls import scalar
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.simplify import FDefinition
from compiler.qtypes.context import QuantizeContext

OP = "nn.rms_norm"


class RmsNormAttrs(OpAttrs):
    """Normalised axis, and the constant added to the mean square."""

    axis: int = -1
    epsilon: float = 1e-5


rms_norm = floats_along_axis(OP, RmsNormAttrs)


@FNumpyCompute.register(rms_norm)
def rms_norm_numpy(attrs: RmsNormAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """In float32 or wider."""
    data = working(args[0])
    count = data.dtype.type(data.shape[attrs.axis])
    square = np.square(data).sum(axis=attrs.axis, keepdims=True) / count
    root = np.sqrt(square + data.dtype.type(attrs.epsilon))
    return [(data / root).astype(args[0].dtype, copy=False)]


@FQAnnotateRewrite.register(rms_norm, needs_tables=True)
def rms_norm_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """As nn.layer_norm."""
    attrs = RmsNormAttrs.of(ref_call)
    return annotate_norm(ref_call, args, attrs.axis, ctx)


@FQRealizeRewrite.register(rms_norm, needs_tables=True)
def rms_norm_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """nn.integer_standardize without the mean."""
    attrs = RmsNormAttrs.of(ref_call)
    norm = Norm(attrs.axis, attrs.epsilon, np.ones(1), centred=False)
    return realize_norm(ref_call, args[0], norm, ctx)


@FDefinition.register(rms_norm)
def rms_norm_definition(ref_call: Call, new_args: Args) -> Expr:
    """The root of the mean square, then quotients."""
    attrs, span, data = RmsNormAttrs.of(ref_call), ref_call.span, new_args[0]
    square = op_call("multiply", data, data, span=span)
    mean = op_call("mean", square, axis=(attrs.axis,), keepdims=True, span=span)
    epsilon = scalar(attrs.epsilon, ref_call.tensor_type.dtype)
    root = op_call("sqrt", op_call("add", mean, epsilon, span=span), span=span)
    return op_call("divide", data, root, span=span)
