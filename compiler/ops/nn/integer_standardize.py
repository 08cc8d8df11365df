"""nn.integer_standardize(data): (x - mean) / sqrt(variance + eps) of integers, N along ``axis``.

    c = N x - sum(x)                                       exact, N times x - mean
    D = N sum(x x) - sum(x)^2 + epsilon                    exact, N^2 times the variance
    r = max(isqrt(D * 4^root_bits), 1)                     the root, root_bits of it fractional
    out = floor((c * 2^(out_bits + root_bits + 1) + r) / (2 r))

out / 2^out_bits is the normalised value, rounded half up; ``output_bound`` limits it. Without
``centred`` the sum counts as 0: x over the root of its mean square. The contract
is D * 4^root_bits < 2^62 and |c| * 2^(out_bits + root_bits + 1) < 2^62.

Normalised values as TFLM's kernels compute them: MEAN, QUANTIZE, GATHER, arithmetic of int32.

    x   = data * 2^6, or half of data of 16 bits           int16
    d   = x - mean(x)
    v   = mean(d d / 2^k)                                  15 bits, and 4 more behind the point
    y   = d * root[place(v)]                               root[p] = 1 / sqrt(value(p) + eps)
    out = y * root'[place(mean(y y) + eps root^2)]         what v has lost of small rows comes back

``place`` grows with v as a float's bits do: steps of 1/4, 2, 16 and 128, at least 32 of each in
front of the next. So a root is within 0.8 %.

In nn.layer_norm and nn.rms_norm either gives the normalised value; gamma and beta follow in units
of one scale:

    standardized * round(gamma / unit) + round(beta / unit)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr, describe
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.annotation.wide_point import wide_point
from compiler.ops.arg_types import Types, check_dtype, normalize_axis, tensor_of_rank
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import QAnnotateExpr, annotated, kind_of, unannotated
from compiler.ops.rules.dom_scale import DomScale, as_scale, chosen_scale
from compiler.ops.rules.integer_calls import (
    add,
    along_axis,
    cast,
    clip,
    left_shift,
    multiply,
    scalar,
    subtract,
    worth,
)
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import in_integers
from compiler.ops.rules.realize import QRealizeIntExpr, integers
from compiler.ops.rules.requantize import multiplier_and_shift, requantize, requantized, to_scalar
from compiler.ops.tensor.isqrt import integer_sqrt
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

OP = "nn.integer_standardize"
DTYPES = ("int8", "int16", "int32")


class IntegerStandardizeAttrs(OpAttrs):
    """``epsilon`` in units of N^2 data^2; bits behind the point of the root and of the result;
    whether the mean is taken away."""

    axis: int = -1
    epsilon: int = 0
    root_bits: int = 0
    out_bits: int = 12
    centred: bool = True


@define_op(OP, pattern=OpPattern.OPAQUE)
def integer_standardize(types: Types, attrs: IntegerStandardizeAttrs) -> Type:
    """The shape of the data, int32.

    Raises:
        TypeInferenceError: the data are no signed integers, epsilon is negative, or the bits are
            not within 0 .. 20.
    """
    data = tensor_of_rank(OP, types, 0, "data", 1, at_least=True)
    check_dtype(OP, data, DTYPES)
    normalize_axis(OP, attrs.axis, len(data.shape))
    if attrs.epsilon < 0 or not (0 <= attrs.root_bits <= 20 and 0 <= attrs.out_bits <= 20):
        raise TypeInferenceError(
            f"{OP}: epsilon {attrs.epsilon}, root_bits {attrs.root_bits}, out_bits "
            f"{attrs.out_bits}",
            fix="epsilon must be >= 0, the others between 0 and 20",
        )
    return TensorType(data.shape, "int32")


def output_bound(count: int, out_bits: int) -> int:
    """max |out| over all data: no element is farther than sqrt(N - 1) deviations from the mean, or
    more than sqrt(N) times the root of the mean square."""
    # Data that are not all equal have D >= N - 1, so the floor of the root adds less than two.
    return (math.isqrt(max(count - 1, 0)) + 3) * (1 << out_bits) + 1


@FNumpyCompute.register(integer_standardize)
def integer_standardize_numpy(
    attrs: IntegerStandardizeAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """In int64."""
    wide = args[0].astype(np.int64)
    axis = attrs.axis
    count = wide.shape[axis]
    total = wide.sum(axis=axis, keepdims=True)
    if not attrs.centred:
        total = np.zeros_like(total)
    centred = count * wide - total
    deviation = count * (wide * wide).sum(axis=axis, keepdims=True) - total * total
    squared = np.maximum(deviation + attrs.epsilon, 0) << (2 * attrs.root_bits)
    root = np.maximum(integer_sqrt(np.maximum(squared, 0)), 1)
    scaled = centred << (attrs.out_bits + attrs.root_bits + 1)
    return [((scaled + root) // (2 * root)).astype(np.int32)]


@FBody.register(integer_standardize)
def integer_standardize_body(step: Step, words: Words) -> Value:
    """Write the formula of the module docstring; the last limits are met anyway, and tell the
    bounds."""
    attrs = step.attrs
    x = words.cast(step.args[0], "int64")
    axes = (attrs.axis % len(x.type.shape),)
    count = shape_of(x)[axes[0]]
    centred = words.multiply(x, count)
    spread = words.multiply(words.reduce("sum", words.multiply(x, x), axes), count)
    if attrs.centred:
        total = words.reduce("sum", x, axes)
        centred = words.subtract(centred, total)
        spread = words.subtract(spread, words.multiply(total, total))
    spread = words.maximum(words.add(spread, attrs.epsilon), 0)
    squared = words.maximum(words.multiply(spread, 1 << (2 * attrs.root_bits)), 0)
    root = words.maximum(words.isqrt(squared), 1)
    scaled = words.multiply(centred, 1 << (attrs.out_bits + attrs.root_bits + 1))
    quotient = words.binary("floor_divide", words.add(scaled, root), words.multiply(root, 2))
    bound = output_bound(count, attrs.out_bits)
    return words.cast(words.clip(quotient, -bound, bound), "int32")


# ---- TFLM ----------------------------------------------------------------------------------------


MOST_SUMMANDS: Final = 1 << 16
"""Values of 15 bits whose sum int32 holds."""
_FINER: Final = 6
_FINE: Final = 4
_LEVELS: Final = ((_FINE, -2), (_FINE, 1), (0, 4), (0, 7))
"""Bits behind the point of the mean square that a level reads, and log2 of its steps."""
_NEAR_ONE: Final = _LEVELS[:2]
_BEGINS: Final = 32
_STEPS: Final = 256
_BITS: Final = 15

_Reals = NDArray[np.float64]


def tflm_standardize(
    data: QRealizeIntExpr, axis: int, count: int, epsilon: float, centred: bool, out_bits: int
) -> Expr:
    """The normalised data in ``out_bits`` fractional bits, int32 of 16 bits.

    Args:
        data: of 16 bits, 0 stands for 0.
        axis: of the sums, of ``count`` elements, at most MOST_SUMMANDS.
        epsilon: added to the mean square.
        centred: take the mean away.
        out_bits: so many that int16 holds the result.
    """
    if max(data.high - data.low, data.bound) < _STEPS:
        finer = _FINER
    else:
        finer = -1
    step = math.ldexp(float(data.dom_scale.data), -finer)
    wide = data.in_dtype("int32")
    if finer > 0:
        x: Expr = cast(left_shift(wide, scalar(finer, "int32")), "int16")
    else:
        x = _scaled(wide, finer, step)
    d: Expr = cast(x, "int32")
    reach = data.bound
    if centred:
        d = subtract(d, cast(_mean(x, axis, count, step), "int32"))
        reach = data.high - data.low
    fewer = max(math.ceil(math.ldexp(reach, finer)).bit_length() * 2 - _BITS, 0)
    worth = step * math.ldexp(step, fewer)
    squares = _scaled(multiply(d, d), -fewer, worth)
    means = {bits: _mean(squares, axis, count, worth, bits) for bits in (0, _FINE)}
    place = _place({b: cast(mean, "int32") for b, mean in means.items()}, _LEVELS, worth)
    roots = 1 / np.sqrt(_mean_squares(_LEVELS) * worth + epsilon)
    y = cast(_times(d, place, roots * step, out_bits), "int32")
    unit = 2.0 ** (_BITS - 2 * out_bits)
    squares = _scaled(multiply(y, y), -_BITS, unit)
    rest = _taken(np.rint(epsilon * roots**2 / unit * 2**_FINE), place)
    mean = cast(_mean(squares, axis, count, unit, _FINE), "int32")
    place = _place({_FINE: add(mean, rest)}, _NEAR_ONE, unit)
    again = 1 / np.sqrt(_mean_squares(_NEAR_ONE) * unit)
    return cast(_times(y, place, again * 2.0**-out_bits, out_bits), "int32")


def _place(means: Mapping[int, Expr], levels: Sequence[tuple[int, int]], worth: float) -> Expr:
    places: list[Expr] = []
    for bits, log_step in levels:
        low = _BEGINS if places else 0
        moved = _rescale(means[bits], -bits - log_step, math.ldexp(worth, log_step))
        places.append(cast(cast(clip(moved, low, _STEPS - 1), "uint8"), "int32"))
    return add(reduce(add, places), scalar((1 - len(places)) * _BEGINS, "int32"))


def _mean_squares(levels: Sequence[tuple[int, int]]) -> _Reals:
    """Return the real value of every place, in steps of the mean square."""
    steps = np.arange(_STEPS, dtype=np.float64)
    steps[0] = 1 / 4  # below half a step
    parts = [
        np.ldexp(steps[_BEGINS + 1 if level else 0 :], log_step)
        for level, (_, log_step) in enumerate(levels)
    ]
    return np.concatenate(parts)


def _times(data: Expr, place: Expr, roots: _Reals, out_bits: int) -> Expr:
    """``data`` times the root at a place, in int16 of ``out_bits`` fractional bits."""
    bits = _BITS - math.frexp(float(roots.max()))[1]
    product = multiply(data, _taken(np.rint(np.ldexp(roots, bits)), place))
    return _scaled(product, out_bits - bits, 2.0**-out_bits)


def _taken(entries: _Reals, place: Expr) -> Expr:
    table = np.minimum(entries, (1 << _BITS) - 1).astype(np.int16)
    return cast(op_call("take", Constant(table), place, axis=0), "int32")


def _rescale(data: Expr, log_factor: int, scale: float) -> Expr:
    factor = multiplier_and_shift(np.asarray(2.0**log_factor))
    before, behind = (DomScale(as_scale(math.ldexp(scale, n))) for n in (log_factor, 0))
    return requantized(data, *factor, None, 0, "tflm", "int32", (before, behind))


def _scaled(data: Expr, log_factor: int, scale: float) -> Expr:
    return cast(clip(_rescale(data, log_factor, scale), -(1 << 15), (1 << 15) - 1), "int16")


def _mean(data: Expr, axis: int, count: int, scale: float, bits: int = 0) -> Expr:
    """The mean of int16 with more bits behind the point; its factor is cut off as TFLM's is."""
    total = op_call("sum", cast(data, "int32"), axis=(axis,), keepdims=True)
    one, shift = (int(part) for part in multiplier_and_shift(np.asarray(2.0**bits)))
    more = count.bit_length() - 1
    factor = np.array((one << more) // count)
    scaled = requantized(total, factor, np.array(shift - more), None, 0, "tflm", "int32")
    scaled = worth(scaled, math.ldexp(scale, -bits))
    return cast(clip(scaled, -(1 << 15), (1 << 15) - 1), "int16")


# ---- norms ---------------------------------------------------------------------------------------


Vector = NDArray[np.float64]

# The result leaves room for a Q24 factor in the 53 bits of a double.
_RESULT_BITS = 28
# Exact square roots in double.
_ROOT_LIMIT_BITS = 52


def annotate_norm(ref_call: Call, args: Args, axis: int, ctx: QuantizeContext) -> Expr | None:
    """Narrow data stay as they are, anything else gets 16 bits; the result is an accumulator.

    An axis too long for exact sums of squares of 16 bits gets narrow data.
    """
    if ctx.check_to_skip(ref_call) or ctx.qconfig.dtype_activation != "int32":
        return None
    data = unannotated(args[0])
    if kind_of(args[0]) != QAnnotateKind.INPUT:
        count = ref_call.tensor_type.concrete_shape[axis]
        wide = (count << (WIDE_BITS - 1)).bit_length() * 2 <= _ROOT_LIMIT_BITS
        if ctx.qconfig.form.stores_values:
            wide = isinstance(args[0], QAnnotateExpr) and args[0].wide
        data = wide_point(data, ctx) if wide else as_input(args[0], ctx)
    return annotated(ref_call, (data, *args[1:]))


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """The normalised data times ``factor`` plus ``offset``.

    Attributes:
        axis: of the sums.
        epsilon: added to the variance, or to the mean square.
        factor: one value per index of the axis, or one for all.
        offset: likewise; None for nothing.
        centred: take the mean away.
    """

    axis: int
    epsilon: float
    factor: Vector
    offset: Vector | None = None
    centred: bool = True


def realize_norm(ref_call: Call, data: Expr, norm: Norm, ctx: QuantizeContext) -> Expr | None:
    """The integer form of a norm, of fewer bits where the sums are too long.

    Args:
        data: the operand; anything but integers gives None.
    """
    axis = norm.axis
    epsilon = norm.epsilon
    factor = norm.factor
    offset = norm.offset
    if not isinstance(data, QRealizeIntExpr):
        return None
    shape = ref_call.tensor_type.concrete_shape
    data = to_scalar(data, len(shape), ctx.qconfig)
    trailing = len(shape) - axis % len(shape) - 1
    count = shape[axis]
    for coarser in range(data.bound.bit_length() or 1):
        step = float(data.dom_scale.data) * 2.0**coarser
        bound = -(-data.bound >> coarser)
        whole_epsilon = int(np.floor(min(count * count * epsilon / step**2, 2.0**60) + 0.5))
        spread = count * count * bound * bound + whole_epsilon
        if spread.bit_length() <= _ROOT_LIMIT_BITS:
            break
    else:
        ctx.report.diagnostics.append(
            f"{describe(ref_call)} runs in float: {count} values have no exact deviation in double"
        )
        return None
    if coarser:
        scale = DomScale(as_scale(step))
        data = requantize(in_integers(data, ctx), scale, -bound, bound, len(shape), ctx.qconfig)
    affine = _rounded(count, factor, np.zeros(1) if offset is None else offset, ctx.qconfig)
    if ctx.qconfig.form.int32_kernels:
        if not data.fits("int16") or count > MOST_SUMMANDS:
            return None
        standard = tflm_standardize(data, axis, count, epsilon, norm.centred, affine.out_bits)
    else:
        source = data.in_dtype("int16" if data.fits("int16") else "int32")
        standard = Call(
            integer_standardize,
            (source,),
            IntegerStandardizeAttrs(
                axis=axis,
                epsilon=whole_epsilon,
                root_bits=min((_ROOT_LIMIT_BITS - spread.bit_length()) // 2, 8),
                out_bits=affine.out_bits,
                centred=norm.centred,
            ),
            span=ref_call.span,
        )
    result: Expr = multiply(standard, along_axis(affine.factors, trailing, "int32"))
    if offset is not None:
        result = add(result, along_axis(affine.offsets, trailing, "int32"))
    return integers(result, affine.scale, "int32", ctx.bounds_of)


class _Affine(NamedTuple):
    """A factor and an offset as integers.

    Attributes:
        scale: of the result, which the offsets count as well.
        out_bits: fractional bits of the normalised value that the factors multiply.
        factors: int64.
        offsets: int64.
    """

    scale: DomScale
    out_bits: int
    factors: NDArray[np.int64]
    offsets: NDArray[np.int64]


def _rounded(count: int, factor: Vector, offset: Vector, qconfig: QConfig) -> _Affine:
    # Bits are shared evenly between the normalised value and gamma.
    reach = (output_bound(count, 0) + 1).bit_length()
    out_bits = (_RESULT_BITS - reach) // 2
    if qconfig.form.int32_kernels:
        out_bits = min(out_bits, WIDE_BITS - 1 - reach)
    factor_bits = _RESULT_BITS - 1 - reach - out_bits
    unit = max(
        float(np.abs(factor).max(initial=0)) / (1 << factor_bits),
        float(np.abs(offset).max(initial=0)) / (1 << (_RESULT_BITS - 2 - out_bits)),
        float(np.finfo(np.float32).tiny) * 2.0**32,
    )
    scale = DomScale(chosen_scale(unit / (1 << out_bits), qconfig), wide=True)
    per_step = float(scale.values)
    factors = np.rint(factor / (per_step * (1 << out_bits))).astype(np.int64)
    return _Affine(scale, out_bits, factors, np.rint(offset / per_step).astype(np.int64))
