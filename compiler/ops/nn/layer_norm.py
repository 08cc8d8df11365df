"""nn.layer_norm: (x - mean) / sqrt(variance + epsilon) over one axis, times gamma, plus beta."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, describe
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.annotation.wide_point import WIDE_BITS, wide_point
from compiler.ops.nn.integer_standardize import (
    IntegerStandardizeAttrs,
    integer_standardize,
    output_bound,
)
from compiler.ops.nn.normalization_loops import affine_view, standardized
from compiler.ops.nn.normalize import affine, affine_norm_rel, standardize, working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.reduce.reduction_loops import total_dtype
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.integer_calls import add, along_axis, cast, multiply
from compiler.ops.rules.lower import FLower, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, fits, integers
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.with_tables import with_tables
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.kind import QAnnotateKind


@dataclass(frozen=True, eq=False)
class LayerNormAttrs(OpAttrs):
    """Normalised axis, the constant added to the variance, and which of beta and gamma count."""

    type_key: ClassVar[str] = "LayerNormAttrs"
    axis: int = -1
    epsilon: float = 1e-5
    center: bool = True
    scale: bool = True


layer_norm = register_op(
    "nn.layer_norm",
    arg_names=("data", "gamma", "beta"),
    attrs_type=LayerNormAttrs,
    rel=affine_norm_rel("nn.layer_norm"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(layer_norm)
def layer_norm_numpy(attrs: LayerNormAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The variance divides by N."""
    data, gamma, beta = (working(a) for a in args)
    y = standardize(data, (attrs.axis,), attrs.epsilon)
    y = affine(y, gamma if attrs.scale else None, beta if attrs.center else None, attrs.axis)
    return [y.astype(args[0].dtype, copy=False)]


# The result leaves room for a Q24 factor in the 53 bits of a double.
_RESULT_BITS = 28
# Exact square roots in double.
_ROOT_LIMIT_BITS = 52


@FQAnnotateRewrite.register(layer_norm)
@with_tables
def layer_norm_annotate(
    ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext
) -> Expr | None:
    """Narrow data stay as they are, anything else gets 16 bits; the result is an accumulator.

    Axes too long for exact sums of squares of 16 bits get narrow data.
    """
    constants = all(isinstance(arg, Constant) for arg in args[1:])
    if ctx.check_to_skip(ref_call) or not constants or ctx.qconfig.dtype_activation != "int32":
        return None
    data = unannotated(args[0])
    if kind_of(args[0]) != QAnnotateKind.INPUT:
        attrs = ref_call.attrs
        assert isinstance(attrs, LayerNormAttrs)
        count = ref_call.tensor_type.concrete_shape[attrs.axis]
        # The sums of a whole image leave room for 8 bits only.
        wide = (count << (WIDE_BITS - 1)).bit_length() * 2 <= _ROOT_LIMIT_BITS
        data = wide_point(data, ctx) if wide else as_input(args[0], ctx)
    return QAnnotateExpr(with_args(ref_call, (data, *args[1:])), QAnnotateKind.ACTIVATION)


@FQRealizeRewrite.register(layer_norm)
@with_tables
def layer_norm_realize(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
    """nn.integer_standardize, times gamma and plus beta in units of one scale.

    Float where sums over the axis are too long for exact roots.
    """
    data, gamma, beta = args
    attrs = ref_call.attrs
    assert isinstance(attrs, LayerNormAttrs)
    if not isinstance(data, QRealizeIntExpr):
        return None
    shape = ref_call.tensor_type.concrete_shape
    data = to_scalar(data, len(shape), ctx.qconfig)
    trailing = len(shape) - attrs.axis % len(shape) - 1
    count = shape[attrs.axis]
    step = float(data.dom_scale.data)
    epsilon = int(np.floor(min(count * count * attrs.epsilon / step**2, 2.0**60) + 0.5))
    spread = count * count * data.bound * data.bound + epsilon
    if spread.bit_length() > _ROOT_LIMIT_BITS or not isinstance(gamma, Constant):
        ctx.report.diagnostics.append(
            f"{describe(ref_call)} runs in float: {count} values of up to {data.bound} have no "
            "exact deviation in double"
        )
        return None
    assert isinstance(beta, Constant)
    root_bits = min((_ROOT_LIMIT_BITS - spread.bit_length()) // 2, 8)
    factor = gamma.data.astype(np.float64) if attrs.scale else np.ones(count)
    offset = beta.data.astype(np.float64) if attrs.center else np.zeros(count)
    # Bits are shared evenly between the normalised value and gamma.
    reach = (output_bound(count, 0) + 1).bit_length()
    out_bits = (_RESULT_BITS - reach) // 2
    factor_bits = _RESULT_BITS - 1 - reach - out_bits
    unit = max(
        float(np.abs(factor).max(initial=0)) / (1 << factor_bits),
        float(np.abs(offset).max(initial=0)) / (1 << (_RESULT_BITS - 2 - out_bits)),
        float(np.finfo(np.float32).tiny) * 2.0**32,
    )
    scale = DomScale(as_scale(unit / (1 << out_bits)), wide=True)
    per_step = float(scale.values)
    factors = np.rint(factor / (per_step * (1 << out_bits))).astype(np.int64)
    offsets = np.rint(offset / per_step).astype(np.int64)
    source = cast(data.data, "int16" if fits(data, "int16") else "int32")
    standard = Call(
        integer_standardize,
        (source,),
        IntegerStandardizeAttrs(
            axis=attrs.axis, epsilon=epsilon, root_bits=root_bits, out_bits=out_bits
        ),
        span=ref_call.span,
    )
    bound = output_bound(count, out_bits)
    low = int((offsets - bound * np.abs(factors)).min())
    high = int((offsets + bound * np.abs(factors)).max())
    result: Expr = multiply(standard, along_axis(factors, trailing, "int32"))
    if attrs.center:
        result = add(result, along_axis(offsets, trailing, "int32"))
    return integers(result, scale, "int32", low, high)


FQZeroPoint.register(layer_norm)(always(ZeroPoint.CENTRES))


@FLower.register(layer_norm)
def layer_norm_lower(
    call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder
) -> list[TensorView]:
    """Mean, deviation, then one line per element."""
    attrs = call.attrs
    assert isinstance(attrs, LayerNormAttrs)
    data, gamma, beta = inputs
    axis = attrs.axis % len(data.shape)
    axes = (axis,)
    y = standardized(b, data.cast(total_dtype(data.dtype)), axes, attrs.epsilon)
    y = affine_view(y, gamma if attrs.scale else None, beta if attrs.center else None, axis)
    return [y.cast(data.dtype)]
