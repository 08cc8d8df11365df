"""nn.softmax: exp(x - max) / sum(exp(x - max)) over one axis; nn.log_softmax: its logarithm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ir.ty import Type
from compiler.ops.annotation.minus_infinity import is_score_point, score_point
from compiler.ops.nn.integer_softmax import (
    MOST_SUMMANDS,
    OUT_BITS,
    FixedPointSoftmaxAttrs,
    IntegerSoftmaxAttrs,
    exponentials,
    fixed_point_softmax,
    integer_softmax,
)
from compiler.ops.nn.normalize import floats_along_axis
from compiler.ops.number_format import working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules import integer_calls
from compiler.ops.rules.annotate import FQAnnotateRewrite, QAnnotateExpr, unannotated
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import annotate_tabulated
from compiler.ops.rules.realize import (
    WIDE_INPUT,
    FQRealizeRewrite,
    QRealizeIntExpr,
    integer_limits,
    integers,
    of_integers,
    storage_dtype,
)
from compiler.ops.rules.requantize import to_fewer_bits, to_scalar
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.rules.with_tables import tabulates
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind, QConfig


class SoftmaxAttrs(OpAttrs):
    """The axis whose values sum to 1."""

    axis: int = -1


softmax = floats_along_axis("nn.softmax", SoftmaxAttrs)


@FNumpyCompute.register(softmax)
def softmax_numpy(attrs: SoftmaxAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The maximum is taken away first, so that exp never overflows."""
    data = working(args[0])
    e = np.exp(data - data.max(axis=attrs.axis, keepdims=True))
    return [(e / e.sum(axis=attrs.axis, keepdims=True)).astype(args[0].dtype, copy=False)]


_OUT_BITS = 15

# Entries of the table of exponentials at most: a step of 2^-22 is far below one of the result.
_TABLE_BITS = 22


_MOST_ENTRIES = 1 << 12


@FQAnnotateRewrite.register("nn.softmax", "nn.log_softmax", needs_tables=True)
def softmax_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Looks narrow integers up in a table; scores that may be masked are integers of 16 bits, whose
    least ones the table gives no weight."""
    if ref_call.args[0] in ctx.facts.masks and not ctx.check_to_skip(ref_call) and tabulates(ctx):
        args = (QAnnotateExpr(score_point(unannotated(args[0]), ctx), QAnnotateKind.INPUT),)
    return annotate_tabulated(ref_call, args, ctx)


@FQRealizeRewrite.register(softmax, needs_tables=True)
@of_integers
def softmax_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """nn.integer_softmax with exp(-d * scale) for every difference d of two scores; with
    ``requantization`` "tflite" what TFLM's kernel makes of 8 bits."""
    attrs = SoftmaxAttrs.of(ref_call)
    if not tabulates(ctx):
        return None
    shape = ref_call.tensor_type.concrete_shape
    data = to_scalar(data, len(shape), ctx.qconfig).with_zero_point(ctx.qconfig)
    least = math.exp((1 - _MOST_ENTRIES) * float(data.dom_scale.data))
    if least > 2.0**-_TABLE_BITS and not is_score_point(ref_call.args[0]):
        data = to_fewer_bits(data, _MOST_ENTRIES.bit_length() - 1, len(shape), ctx.qconfig)
    dtype = storage_dtype(data.low, data.high, ctx.qconfig)
    if dtype is None and data.fits(WIDE_INPUT):
        dtype = WIDE_INPUT
    # The annotate rule narrows the operand; where debug_enabled_ops left it out, this stays float.
    if dtype is None:
        return None
    if ctx.qconfig.for_tflm:
        return _of_tflm(data, attrs.axis, shape, ctx.qconfig)
    # The sum of a row stays below 2^31.
    table_bits = min(_TABLE_BITS, 30 - (shape[attrs.axis] - 1).bit_length())
    differences = np.arange(min(data.high - data.low + 1, _MOST_ENTRIES), dtype=np.float64)
    reals = np.exp(-differences * float(data.dom_scale.data))
    table = np.floor(np.ldexp(reals, table_bits) + 0.5).astype(np.int32)
    if data.high - data.low >= _MOST_ENTRIES:
        table[-1] = 0  # of masked scores, which lie lower still
        table = table[: np.count_nonzero(table) + 1]
    out = IntegerSoftmaxAttrs(axis=attrs.axis, out_bits=_OUT_BITS)
    call = Call(integer_softmax, (data.in_dtype(dtype), Constant(table)), out)
    scale = DomScale(as_scale(2.0**-_OUT_BITS), wide=True)
    acc = ctx.qconfig.dtype_activation
    data_out = call if acc == "int32" else integer_calls.cast(call, acc)
    return integers(data_out, scale, acc, data.bounds_of)


def _of_tflm(
    data: QRealizeIntExpr, axis: int, shape: Sequence[int], qconfig: QConfig
) -> Expr | None:
    data = to_fewer_bits(data, 8, len(shape), qconfig)  # the kernel reads no more
    dtype = "int8" if data.fits("int8") else "uint8"
    real = float(data.dom_scale.data)
    table = exponentials(real)
    if table is None or shape[axis] > MOST_SUMMANDS:
        return None
    how = FixedPointSoftmaxAttrs(axis, real)
    call = Call(fixed_point_softmax, (data.in_dtype(dtype), Constant(table)), how)
    scale = DomScale(as_scale(2.0**-OUT_BITS), wide=True)
    return integers(call, scale, "int32", data.bounds_of)


log_softmax = floats_along_axis("nn.log_softmax", SoftmaxAttrs)


@FNumpyCompute.register(log_softmax)
def log_softmax_numpy(attrs: SoftmaxAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """x - max - log(sum(exp(x - max)))."""
    data = working(args[0])
    shifted = data - data.max(axis=attrs.axis, keepdims=True)
    total = np.log(np.exp(shifted).sum(axis=attrs.axis, keepdims=True))
    return [(shifted - total).astype(args[0].dtype, copy=False)]


# The reciprocal of the sum of exponentials, which is the largest probability, as a table's index.
_INDEX_DTYPE = "uint16"
_FINER_BITS = 8


@FQRealizeRewrite.register(log_softmax, needs_tables=True)
def log_softmax_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """x - max(x) + log(p), where p, the largest probability, is 1 / sum(exp(x - max(x)))."""
    (data,) = args
    attrs = SoftmaxAttrs.of(ref_call)
    probabilities = softmax_realize(ref_call, args, ctx)
    if not isinstance(probabilities, QRealizeIntExpr) or not isinstance(data, QRealizeIntExpr):
        return None
    rank = len(ref_call.tensor_type.shape)
    data = to_scalar(data, rank, ctx.qconfig)
    acc = ctx.qconfig.dtype_activation
    scale = data.scale.over(1 << _FINER_BITS)
    axis = (attrs.axis % rank,)
    wide = data.in_dtype(acc)
    below = op_call("subtract", wide, op_call("max", wide, axis=axis, keepdims=True))
    below = op_call("left_shift", below, integer_calls.scalar(_FINER_BITS, acc))
    one = round(1 / float(probabilities.dom_scale.data))
    # A row's largest probability is never 0.
    logs = np.log(np.maximum(np.arange(one + 1, dtype=np.float64), 1) / one)
    units = np.rint(logs / float(scale.values))
    limit = integer_limits(acc)[1] >> 2
    table = np.clip(units, -limit, 0).astype(acc)
    largest = integer_calls.cast(
        op_call("max", probabilities.data, axis=axis, keepdims=True), _INDEX_DTYPE
    )
    result = op_call("add", below, integer_calls.lookup(largest, Constant(table)))
    return integers(result, DomScale(scale.values, wide=True), acc, data.bounds_of)


def _along(call: Call) -> dict[str, Any]:
    """How reductions run along the axis."""
    return {"axis": (SoftmaxAttrs.of(call).axis,), "keepdims": True, "span": call.span}


def _shifted(call: Call, data: Expr) -> Call:
    """The data minus their maximum along the axis."""
    return op_call("subtract", data, op_call("max", data, **_along(call)), span=call.span)


@FDefinition.register(softmax)
def softmax_definition(ref_call: Call, new_args: Args) -> Expr:
    """Maximum, exponentials, their sum, quotients."""
    e = op_call("exp", _shifted(ref_call, new_args[0]), span=ref_call.span)
    return op_call("divide", e, op_call("sum", e, **_along(ref_call)), span=ref_call.span)


@FDefinition.register(log_softmax)
def log_softmax_definition(ref_call: Call, new_args: Args) -> Expr:
    """Maximum, logarithm of the sum of exponentials, difference."""
    shifted, span = _shifted(ref_call, new_args[0]), ref_call.span
    total = op_call("sum", op_call("exp", shifted, span=span), **_along(ref_call))
    return op_call("subtract", shifted, op_call("log", total, span=span), span=span)
