"""nn.relu: out = max(x, 0) in the dtype of x.
nn.leaky_relu(alpha): x where x > 0, else alpha * x.
nn.prelu(data, alpha; axis): x where x > 0, else alpha * x, one alpha per channel.

In integers: max(x, 0) + round(min(x, 0) * alpha). The product is a fixed-point one, as in a
requantization. Narrow data are shifted up first, so that it loses nothing of their step. LiteRT
files have neither: slopes are whole numbers of 2^-12 there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.arg_types import vectors_along_axis
from compiler.ops.evaluate import computes
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import expand_to_axis, op_call, scalar
from compiler.ops.rules.annotate import FQAnnotateRewrite, annotated, kind_of, unannotated
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, same_scale
from compiler.ops.rules.integer_calls import (
    add,
    along_axis,
    cast,
    left_shift,
    maximum,
    minimum,
    multiply,
    subtract,
)
from compiler.ops.rules.never_negative import FNeverNegative, always_positive
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import (
    annotate_pass_through,
    partition_pass_through,
    realize_relu,
)
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, integers
from compiler.ops.rules.requantize import (
    TIES,
    multiplier_and_shift,
    requantized,
    to_scalar,
    within_contract,
)
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.ops.tensor.number_rel import number_rel
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

relu = register_op("nn.relu", rel=number_rel("nn.relu"), pattern=OpPattern.ELEMWISE)


# A NaN stays a NaN.
FNumpyCompute.register(relu)(of_arrays(lambda x: np.maximum(x, x.dtype.type(0))))
FQPartitionRewrite.register(relu)(partition_pass_through)
FQAnnotateRewrite.register(relu)(annotate_pass_through)
FQRealizeRewrite.register(relu)(realize_relu)
FQDomScale.register(relu)(same_scale)
FQZeroPoint.register(relu)(centred)
FNeverNegative.register(relu)(always_positive)


@FBody.register(relu)
def relu_body(step: Step, words: Words) -> Value:
    """The larger of x and 0."""
    return words.maximum(step.args[0], 0)


# ---- leaky_relu ----------------------------------------------------------------------------------


class LeakyReluAttrs(OpAttrs):
    """Slope below zero."""

    alpha: float = 0.25


leaky_relu = register_op(
    "nn.leaky_relu",
    attrs_type=LeakyReluAttrs,
    rel=number_rel("nn.leaky_relu", floats_only=True),
    pattern=OpPattern.ELEMWISE,
)


@FDefinition.register(leaky_relu)
@computes(leaky_relu)
def leaky_relu_definition(ref_call: Call, new_args: Args) -> Expr:
    """Write one comparison."""
    dtype = ref_call.tensor_type.dtype
    return _with_slope(new_args[0], scalar(LeakyReluAttrs.of(ref_call).alpha, dtype), dtype)


def _with_slope(data: Expr, slope: Expr, dtype: str) -> Expr:
    """The data where they are above 0, else their product with a slope."""
    return op_call("where", op_call("greater", data, scalar(0, dtype)), data, data * slope)


# ---- prelu ---------------------------------------------------------------------------------------


OP = "nn.prelu"
_NARROW_BITS = 16
_FINER_BITS = 12


class PReluAttrs(OpAttrs):
    """The axis of the data alpha lies along."""

    axis: int = 1


prelu = register_op(
    OP,
    arg_names=("data", "alpha"),
    attrs_type=PReluAttrs,
    rel=vectors_along_axis(OP, "alpha"),
    pattern=OpPattern.BROADCAST,
)


@FDefinition.register(prelu)
@computes(prelu)
def prelu_definition(ref_call: Call, new_args: Args) -> Expr:
    """One comparison."""
    data, alpha = new_args
    ty = ref_call.tensor_type
    rank = len(ty.shape)
    slope = expand_to_axis(alpha, PReluAttrs.of(ref_call).axis % rank, rank)
    return _with_slope(data, slope, ty.dtype)


@FQPartitionRewrite.register(OP, needs_tables=True)
def prelu_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Stays inside the region of its data."""
    constant = isinstance(args[1], Constant)
    if constant:
        return partition_pass_through(ref_call, args, ctx)
    return None


@FQAnnotateRewrite.register(OP, needs_tables=True)
def prelu_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Constant slopes need no quantize point; the result is an accumulator."""
    data, alpha = args
    if kind_of(data) is None or not isinstance(alpha, Constant) or ctx.check_to_skip(ref_call):
        return None
    if ctx.qconfig.form.stores_values:
        held = as_input(data, ctx)
    else:
        held = unannotated(data)
    return annotated(ref_call, (held, alpha))


@FQRealizeRewrite.register(OP, needs_tables=True)
def prelu_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Two halves in the accumulator dtype; float where the negative one would leave it."""
    data, alpha = args
    if not isinstance(data, QRealizeIntExpr) or not isinstance(alpha, Constant):
        return None
    attrs: Any = ref_call.attrs
    rank = len(ref_call.tensor_type.shape)
    trailing = rank - attrs.axis % rank - 1
    slopes = np.atleast_1d(alpha.data).astype(np.float32)
    data = data.settled()
    if data.trailing not in (None, trailing):
        data = to_scalar(data, rank, ctx.qconfig)
    acc = ctx.qconfig.dtype_activation
    finer = _FINER_BITS if data.bound < 1 << _NARROW_BITS else 0
    if not within_contract(-min(data.low, 0) << finer, slopes):
        return None
    wide: Expr = data.in_dtype(acc)
    if finer:
        wide = left_shift(wide, scalar(finer, acc))
    zero = scalar(0, acc)
    scale = data.scale.over(1 << finer)
    if finer and ctx.qconfig.form.int32_kernels:
        whole = along_axis(np.rint(np.ldexp(slopes, finer)), trailing, acc)
        parts = multiply(minimum(data.in_dtype(acc), zero), whole), maximum(wide, zero)
        return integers(add(*parts), scale, acc, ctx.bounds_of)
    below = cast(minimum(wide, zero), "int64")
    result: Expr = maximum(wide, zero)
    for sign, join in ((1, add), (-1, subtract)):
        part = np.maximum(sign * slopes, 0).astype(np.float32)
        if part.any():
            result = join(result, cast(_product(below, part, trailing, rank, ctx.qconfig), acc))
    made = integers(result, scale, acc, ctx.bounds_of)
    if made.fits(acc):
        return made
    return None


def _product(
    data: Expr, slopes: NDArray[np.float32], trailing: int, rank: int, qconfig: QConfig
) -> Expr:
    one = (slopes == slopes[0]).all()
    factors = multiplier_and_shift(slopes[0] if one else slopes)
    ties = TIES[qconfig.rounding]
    return requantized(data, *factors, None if one else trailing, rank, ties, "int64")


@FQDomScale.register(OP)
def prelu_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """Return the scale: an accumulator keeps its own, narrow data get a finer one."""
    if scales[0] is None or scales[0].wide:
        return scales[0]
    return scales[0].over(1 << _FINER_BITS)
