"""relay.op.annotation.simulated_quantize: what an integer tensor of a given scale holds, in float.

    y = round(clip(data / dom_scale, clip_min, clip_max)) * dom_scale     round: half away from zero

With rounding="round_even" halves go to the even neighbour, as ONNX's QuantizeLinear has it. The
bounds are counted from 0: -127 .. 127 for symmetric 8 bits, 0 .. 255 for unsigned ones, -20 .. 235
where 0 is stored as -108. So signs and zero points of what is stored are not seen here.

Kind IDENTITY (0) is the identity. ``dom_scale`` is a scalar, or with ``axis`` a vector along that
axis of the data. Source: Relay v0.10 quantize/quantize.cc; the vector is our addition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import InternalQuantizeError, QuantizeError
from compiler.ir.expr import Args, Call, Constant, Expr, TempExpr, describe
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type, is_float
from compiler.ir.type_relation import Reporter, is_known
from compiler.ops.annotation.attach_simulated_quantize import (
    SCALAR,
    SQ,
    SimulatedQuantizeAttrs,
    is_given,
)
from compiler.ops.arg_types import Types, normalize_axis, tensor_of_rank
from compiler.ops.number_format import aligned_vector
from compiler.ops.op_call import expand_to_axis, op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite, annotated, unannotated
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, as_scale
from compiler.ops.rules.integer_calls import along_axis, worth
from compiler.ops.rules.integer_calls import clip as clip_call
from compiler.ops.rules.integer_calls import multiply as multiply_call
from compiler.ops.rules.never_negative import FNeverNegative, first_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import partition_pass_through
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, integers, wide_bits
from compiler.ops.rules.requantize import lost_by_truncation, requantize
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.ops.tensor.unary import round_half_away
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

ROUNDINGS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    "round": round_half_away,
    "round_even": np.rint,
}


class UnsupportedQuantizeError(QuantizeError, AssertionError):
    """A sign or rounding that simulated_quantize names but does not compute."""


def simulated_quantize_rel(
    types: Types, num_inputs: int, attrs: SimulatedQuantizeAttrs, reporter: Reporter
) -> bool:
    """Result = type of the data; the others are float32: scalars, or one vector of scales."""
    if not is_known(types[0]):
        return False
    data = tensor_of_rank(SQ, types, 0, "data", 0, at_least=True)
    scale = SCALAR
    if attrs.axis is not None:
        axis = normalize_axis(SQ, attrs.axis, len(data.shape))
        scale = TensorType((data.shape[axis],), "float32")
    reporter.assign(types[1], scale)
    reporter.assign(types[2], SCALAR)
    reporter.assign(types[3], SCALAR)
    reporter.assign(types[4], data)
    return True


simulated_quantize = register_op(
    SQ,
    arg_names=("data", "dom_scale", "clip_min", "clip_max"),
    attrs_type=SimulatedQuantizeAttrs,
    rel=simulated_quantize_rel,
    pattern=OpPattern.ELEMWISE,
)


def check_computed(attrs: SimulatedQuantizeAttrs) -> None:
    """Refuse variants that are not computed.

    Raises:
        UnsupportedQuantizeError: unsigned points, or another rounding.
    """
    if not attrs.sign or attrs.rounding not in ROUNDINGS:
        raise UnsupportedQuantizeError(
            f"simulated_quantize: sign={attrs.sign}, rounding={attrs.rounding!r} is not computed",
            fix='use sign=True and rounding="round" or "round_even"',
        )


@FNumpyCompute.register(simulated_quantize)
def simulated_quantize_numpy(
    attrs: SimulatedQuantizeAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """Float32 arithmetic with a true division."""
    data, scale, low, high = args
    if attrs.kind == 0:
        return [data]
    check_computed(attrs)
    if attrs.axis is not None:
        scale = aligned_vector(scale, attrs.axis, data.ndim)
    u = data / scale
    # clip_max of 32 bit kinds is 2^31, beyond int32: realized integers saturate one below.
    clipped = np.maximum(np.minimum(u, high), low)
    rounded = ROUNDINGS[attrs.rounding](clipped)
    return [(rounded * scale).astype(data.dtype, copy=False)]


@FQPartitionRewrite.register(simulated_quantize)
def simulated_quantize_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """A given point belongs to the region it ends: no border comes in between."""
    if is_given(ref_call):
        return partition_pass_through(ref_call, args, ctx)
    return None


@FQAnnotateRewrite.register(simulated_quantize)
def simulated_quantize_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """A given point is the narrow form of its value; no other is laid over it."""
    if not is_given(ref_call):
        return None
    return annotated(ref_call, (unannotated(args[0]), *args[1:]), QAnnotateKind.INPUT)


@FQDomScale.register(simulated_quantize)
def simulated_quantize_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """Return the scale of a given point; the scales of other points are not known yet."""
    scale = call.args[1]
    if is_given(call) and isinstance(scale, Constant):
        return DomScale(scale.data)
    return None


@FQRealizeRewrite.register(simulated_quantize)
def simulated_quantize_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Float data become integers held in float32; integers are brought to the new scale.

    Raises:
        InternalQuantizeError: the scale or a bound is not a constant yet.
    """
    attrs = SimulatedQuantizeAttrs.of(ref_call)
    data, *parameters = args
    if attrs.kind == 0:
        return None
    constants = [p for p in parameters if isinstance(p, Constant)]
    if len(constants) != len(parameters):
        raise InternalQuantizeError(
            f"the scale of this {describe(ref_call)} is not bound",
            fix="run QuantizeCalibrate before QuantizeRealize",
            span=ref_call.span,
        )
    rank = len(ref_call.args[0].tensor_type.shape)
    if attrs.axis is None:
        trailing = None
    else:
        trailing = rank - normalize_axis(SQ, attrs.axis, rank) - 1
    scale = DomScale(constants[0].data, trailing)
    low = float(constants[1].data)
    high = float(constants[2].data)
    narrow = attrs.kind == QAnnotateKind.INPUT
    if isinstance(data, QRealizeIntExpr):
        lost = lost_by_truncation(data, scale, ctx.qconfig)
        if lost is not None:
            ctx.truncated[ref_call] = lost
        if is_given(ref_call) and is_float(data.dtype):  # integers of a point right in front
            dtype = ctx.qconfig.dtype_activation
            data = data.like(data.in_dtype(dtype), dtype=dtype)
        result = requantize(data, scale, low, high, rank, ctx.qconfig)
        if narrow:
            return result.with_zero_point(ctx.qconfig)
        return result
    if isinstance(data, TempExpr):
        raise InternalQuantizeError(f"a {type(data).__name__} cannot be quantized")
    reciprocal = along_axis(as_scale(np.float32(1) / scale.values), trailing, "float32")
    if attrs.rounding == "round":
        rounding = "round"
    else:
        rounding = "round_even"
    held = clip_call(op_call(rounding, multiply_call(data, reciprocal)), low, high)
    if not ctx.qconfig.is_relay:
        held = worth(held, scale, bits=wide_bits(low, high))
    result = integers(held, scale, "float32", ctx.bounds_of)
    if narrow:
        return result.with_zero_point(ctx.qconfig)
    return result


@FDefinition.register(simulated_quantize)
def simulated_quantize_definition(ref_call: Call, new_args: Args) -> Expr:
    """In float32, scales along their axis."""
    data, scale, low, high = new_args
    attrs = SimulatedQuantizeAttrs.of(ref_call)
    if attrs.kind == 0:
        return data
    check_computed(attrs)
    if attrs.axis is not None:
        rank = len(ref_call.tensor_type.shape)
        scale = expand_to_axis(scale, attrs.axis % rank, rank)
    units = op_call("divide", op_call("cast", data, dtype="float32"), scale)
    held = op_call("maximum", op_call("minimum", units, high), low)
    return op_call("multiply", op_call(attrs.rounding, held), scale)


FQZeroPoint.register(simulated_quantize)(centred)
FNeverNegative.register(simulated_quantize)(first_positive)
