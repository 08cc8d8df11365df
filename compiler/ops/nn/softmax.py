"""nn.softmax: exp(x - max) / sum(exp(x - max)) over one axis; nn.log_softmax: its logarithm.

nn.integer_softmax(data, table): softmax of narrow integers by a table of exponentials.

    d = max(data) - data                                  along ``axis``, >= 0
    e = table[min(d, len(table) - 1)]                     table[d] = round(exp(-d * scale) * 2^q)
    out = floor((e * 2^(out_bits + 1) + S) / (2 * S))     S = sum of e along ``axis``

The quotient is exact and rounded half up; out / 2^out_bits is the probability. With entries of at
most 2^30 / N for N summands, S fits in 31 bits.

nn.fixed_point_softmax(data, table): softmax of 8 bits as TFLM's kernel computes it.

    d = max(data) - data                                   along ``axis``, >= 0
    e = table[min(d, len(table) - 1)]                      exp(-d * scale) in 31 bits
    S = sum of round(e / 2^12)                             19 bits behind the point
    r = 2^k / S                                            in [1/2, 1], 31 bits, three Newton steps
    out = round(e * r / 2^k)                               0 .. 2^16 - 1, in steps of 2^-16

Source: TensorFlow Lite, Softmax of int8 to int16 (kernels/internal/reference/softmax.h), with the
fixed-point functions of gemmlowp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.annotation.minus_infinity import is_score_point, score_point
from compiler.ops.arg_types import Types, check_dtype, normalize_axis, tensor_of_rank
from compiler.ops.evaluate import computes
from compiler.ops.nn.normalize import floats_along_axis
from compiler.ops.number_format import Array
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules import integer_calls
from compiler.ops.rules.annotate import FQAnnotateRewrite, QAnnotateExpr, unannotated
from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.ops.rules.never_negative import FNeverNegative, always_positive
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
from compiler.ops.rules.requantize import multiplier_and_shift, to_fewer_bits, to_scalar
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.rules.with_tables import tabulates
from compiler.ops.rules.zero_point import FQZeroPoint, taken
from compiler.ops.tensor.lookup import INDEX_DTYPES
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

OP = "nn.integer_softmax"
MAX_OUT_BITS = 20


class IntegerSoftmaxAttrs(OpAttrs):
    """The axis whose values sum to 2^out_bits, up to rounding."""

    axis: int = -1
    out_bits: int = 15


@define_op(OP, arg_names=("data", "table"), pattern=OpPattern.OPAQUE)
def integer_softmax(types: Types, attrs: IntegerSoftmaxAttrs) -> Type:
    """The shape of the data, int32.

    Raises:
        TypeInferenceError: dtypes are not narrow integers and an int32 table, or out_bits is not
            within 1 .. 20.
    """
    data = tensor_of_rank(OP, types, 0, "data", 1, at_least=True)
    check_dtype(OP, data, INDEX_DTYPES)
    normalize_axis(OP, attrs.axis, len(data.shape))
    check_table(OP, types)
    if not 1 <= attrs.out_bits <= MAX_OUT_BITS:
        raise TypeInferenceError(
            f"{OP}: out_bits {attrs.out_bits} is not between 1 and {MAX_OUT_BITS}"
        )
    return TensorType(data.shape, "int32")


def check_table(op: str, types: Types) -> None:
    """The exponentials, argument 1.

    Raises:
        TypeInferenceError: they are no int32, or none.
    """
    table = tensor_of_rank(op, types, 1, "table", 1)
    if table.dtype != "int32" or table.shape[0] == 0:
        raise TypeInferenceError(
            f"{op}: argument 1 (table) is {table}, int32 with at least one entry is needed"
        )


@FNumpyCompute.register(integer_softmax)
def integer_softmax_numpy(attrs: IntegerSoftmaxAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """In int64; entries below 0 count as 0, and a sum of 0 as 1."""
    data, table = args
    if data.size == 0:
        return [data.astype(np.int32)]
    e = exponentials_of(data, table, attrs.axis)
    total = np.maximum(e.sum(axis=attrs.axis, keepdims=True), 1)
    quotient = ((e << (attrs.out_bits + 1)) + total) // (2 * total)
    return [quotient.astype(np.int32)]


def exponentials_of(data: Array, table: Array, axis: int) -> Array:
    """The entry of every difference from the largest along an axis, int64; below 0 it is 0."""
    wide = data.astype(np.int64)
    place = wide.max(axis=axis, keepdims=True) - wide
    return np.asarray(np.maximum(table.astype(np.int64), 0)[np.minimum(place, table.size - 1)])


@FBody.register(integer_softmax)
def integer_softmax_body(step: Step, words: Words) -> Value:
    """Write the formula of the module docstring; the last limit is met anyway, and tells the
    bounds."""
    data, table = step.args
    attrs = step.attrs
    axes = (attrs.axis % len(data.type.shape),)
    wide = words.cast(data, "int32")
    place = words.subtract(words.reduce("max", wide, axes), wide)
    e = words.maximum(words.take(table, place, 0), 0)
    total = words.cast(words.maximum(words.reduce("sum", e, axes), 1), "int64")
    e = words.cast(e, "int64")
    scaled = words.add(words.multiply(e, 1 << (attrs.out_bits + 1)), total)
    quotient = words.binary("floor_divide", scaled, words.multiply(total, 2))
    return words.cast(words.minimum(quotient, 1 << attrs.out_bits), "int32")


# ---- fixed_point_softmax -------------------------------------------------------------------------


FIXED_POINT: Final = "nn.fixed_point_softmax"
OUT_BITS: Final = 16
MOST_SUMMANDS: Final = (1 << 12) - 1
"""Exponentials whose sum int32 holds."""
_SUM_BITS: Final = 19
_ACCURATE: Final = 31
_ONE: Final = (1 << 31) - 1
_SMALLEST = 1 << _SUM_BITS
_LARGEST = _ONE
_DIFFERENCE_BITS: Final = 26
_POINT: Final = 29
"""Bits behind the point of what Newton's steps improve."""

Ints = NDArray[np.int64]


class FixedPointSoftmaxAttrs(OpAttrs):
    """The axis whose values sum to 2^16, up to rounding.

    Attributes:
        scale: what a step of the data is worth, a float32; no integer depends on it.
    """

    axis: int = -1
    scale: float = 0.0


@define_op(FIXED_POINT, arg_names=("data", "table"), pattern=OpPattern.OPAQUE)
def fixed_point_softmax(types: Types, attrs: FixedPointSoftmaxAttrs) -> Type:
    """The shape of the data, int32.

    Raises:
        TypeInferenceError: dtypes are not 8 bits and an int32 table, or the axis is too long.
    """
    data = tensor_of_rank(FIXED_POINT, types, 0, "data", 1, at_least=True)
    check_dtype(FIXED_POINT, data, ("int8", "uint8"))
    axis = normalize_axis(FIXED_POINT, attrs.axis, len(data.shape))
    size = data.shape[axis]
    if isinstance(size, int) and size > MOST_SUMMANDS:
        raise TypeInferenceError(
            f"{FIXED_POINT}: {data} has more than {MOST_SUMMANDS} values along {axis}"
        )
    check_table(FIXED_POINT, types)
    return TensorType(data.shape, "int32")


@FNumpyCompute.register(fixed_point_softmax)
def fixed_point_softmax_numpy(
    attrs: FixedPointSoftmaxAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """In int64; entries below 0 count as 0, and a sum of less than 1 as 1."""
    data, table = args
    if data.size == 0:
        return [data.astype(np.int32)]
    e = exponentials_of(data, table, attrs.axis)
    total = ((e + (1 << 11)) >> 12).sum(axis=attrs.axis, keepdims=True)
    total = np.clip(total, _SMALLEST, _LARGEST)
    bits = np.frexp(total.astype(np.float64))[1].astype(np.int64)
    half = total << (31 - bits)
    x = _half_up(half * round(-32 / 17 * 2**_POINT)) + round(48 / 17 * 2**_POINT)
    for _ in range(3):
        x = x + 4 * _half_up(x * ((1 << _POINT) - _half_up(half * x)))
    probability = _half_up(np.minimum(2 * x, _ONE) * e)
    shift = bits - 5
    out = (probability + (1 << (shift - 1))) >> shift
    return [np.minimum(out, (1 << OUT_BITS) - 1).astype(np.int32)]


def _half_up(product: Ints) -> Ints:
    return (product + (1 << 30)) >> 31


@FBody.register(fixed_point_softmax)
def fixed_point_softmax_body(step: Step, words: Words) -> Value:
    """Write the formula of the module docstring; the limits of the reciprocal are met anyway, and
    tell the bounds."""
    data, table = step.args
    axes = (step.attrs.axis % len(data.type.shape),)

    def half_up(a: Value, b: Value) -> Value:
        return words.binary("right_shift", words.add(words.multiply(a, b), 1 << 30), 31)

    def number(value: int) -> Value:
        return words.constant(value, "int64")

    wide = words.cast(data, "int32")
    place = words.subtract(words.reduce("max", wide, axes), wide)
    e = words.cast(words.maximum(words.take(table, place, 0), 0), "int64")
    rounded = words.binary("right_shift", words.add(e, 1 << 11), 12)
    total = words.clip(words.reduce("sum", rounded, axes), _SMALLEST, _LARGEST)
    half = total
    shift = number(_ACCURATE - 5)
    for amount in (8, 4, 2, 1):
        small = words.less(half, 1 << (_ACCURATE - amount))
        half = words.multiply(half, words.where(small, number(1 << amount), number(1)))
        shift = words.subtract(shift, words.where(small, number(amount), number(0)))
    half = words.clip(half, 1 << 30, _ONE)
    slope = round(-32 / 17 * 2**_POINT)
    start = round(48 / 17 * 2**_POINT)
    x = words.add(half_up(half, number(slope)), start)
    for _ in range(3):
        error = words.subtract(number(1 << _POINT), half_up(half, x))
        x = words.add(x, words.multiply(half_up(x, error), 4))
        x = words.clip(x, 1 << (_POINT - 1), 1 << (_POINT + 1))
    reciprocal = words.minimum(words.multiply(x, 2), _ONE)
    shift = words.clip(shift, 15, _ACCURATE - 5)
    most = words.binary("left_shift", number(1), words.subtract(shift, 1))
    out = words.binary("right_shift", words.add(half_up(reciprocal, e), most), shift)
    return words.cast(words.clip(out, 0, (1 << OUT_BITS) - 1), "int32")


# ---- the table of a scale ----------------------------------------------------------------------


def exponentials(scale: float) -> NDArray[np.int32] | None:
    """exp(-d * scale) of d = 0 .. 255 in 31 bits, as TFLM's kernel computes it.

    Returns:
        None for scales that its kernel refuses.
    """
    real = min(scale * 2.0**_DIFFERENCE_BITS, 2.0**31 - 1)
    if real <= 1:
        return None
    multiplier, shift = (int(part) for part in multiplier_and_shift(np.asarray(real)))
    count = min((31 << _DIFFERENCE_BITS >> shift) + 1, 256)
    scaled = _half_up((-np.arange(count, dtype=np.int64) << shift) * multiplier)
    quarter = 1 << (_DIFFERENCE_BITS - 2)
    within = (scaled & (quarter - 1)) - quarter
    found = _near_zero(within << 5)
    quarters = within - scaled
    for power in range(-2, 5):
        passed = (quarters >> (_DIFFERENCE_BITS + power)) & 1 == 1
        factor = round(math.exp(-(2.0**power)) * 2**31)
        found = np.where(passed, _half_up(found * factor), found)
    found[0] = _ONE
    table = np.zeros(256, np.int32)
    table[:count] = found
    return table


def _near_zero(a: Ints) -> Ints:
    """exp of [-1/4, 0) in 31 bits: four terms around -1/8."""
    x = a + (1 << 28)
    x2 = _half_up(x * x)
    x3 = _half_up(x2 * x)
    x4 = _half_up(x2 * x2)
    third = _half_up((_nearest(x4, 2) + x3) * round(2**31 / 3))
    middle = round(math.exp(-1 / 8) * 2**31)
    return middle + _half_up((x + _nearest(third + x2, 1)) * middle)


def _nearest(a: Ints, bits: int) -> Ints:
    """a / 2^bits, halves away from zero."""
    return (a + (1 << (bits - 1)) - (a < 0)) >> bits


# ---- softmax of floats ---------------------------------------------------------------------------


class SoftmaxAttrs(OpAttrs):
    """The axis whose values sum to 1."""

    axis: int = -1


softmax = floats_along_axis("nn.softmax", SoftmaxAttrs)


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
    if ctx.qconfig.form.int32_kernels:
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
    if acc == "int32":
        data_out = call
    else:
        data_out = integer_calls.cast(call, acc)
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
    """Return the attributes of reductions along the axis."""
    return {"axis": (SoftmaxAttrs.of(call).axis,), "keepdims": True}


def _shifted(call: Call, data: Expr) -> Call:
    """The data minus their maximum along the axis."""
    return data - op_call("max", data, **_along(call))


@FDefinition.register(softmax)
@computes(softmax)
def softmax_definition(ref_call: Call, new_args: Args) -> Expr:
    """Maximum, exponentials, their sum, quotients."""
    e = op_call("exp", _shifted(ref_call, new_args[0]))
    return e / op_call("sum", e, **_along(ref_call))


@FDefinition.register(log_softmax)
@computes(log_softmax)
def log_softmax_definition(ref_call: Call, new_args: Args) -> Expr:
    """Maximum, logarithm of the sum of exponentials, difference."""
    shifted = _shifted(ref_call, new_args[0])
    total = op_call("sum", op_call("exp", shifted), **_along(ref_call))
    return shifted - op_call("log", total)


FQZeroPoint.register(softmax, log_softmax)(taken)
FNeverNegative.register(softmax)(always_positive)
