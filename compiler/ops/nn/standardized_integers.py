"""Integer rules of normalisations over one axis: nn.layer_norm and nn.rms_norm.

nn.integer_standardize gives the normalised value; gamma and beta follow in units of one scale:

    standardized * round(gamma / unit) + round(beta / unit)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Args, Call, Expr, describe
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.annotation.wide_point import wide_point
from compiler.ops.nn.integer_standardize import (
    IntegerStandardizeAttrs,
    integer_standardize,
    output_bound,
)
from compiler.ops.nn.tflm_standardize import MOST_SUMMANDS, tflm_standardize
from compiler.ops.rules.annotate import QAnnotateExpr, annotated, kind_of, unannotated
from compiler.ops.rules.dom_scale import DomScale, as_scale, chosen_scale
from compiler.ops.rules.integer_calls import add, along_axis, cast, multiply
from compiler.ops.rules.pass_through import in_integers
from compiler.ops.rules.realize import QRealizeIntExpr, integers
from compiler.ops.rules.requantize import requantize, to_scalar
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

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
        if ctx.qconfig.for_tflm:
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
    axis, epsilon, factor, offset = norm.axis, norm.epsilon, norm.factor, norm.offset
    if not isinstance(data, QRealizeIntExpr):
        return None
    shape = ref_call.tensor_type.concrete_shape
    data = to_scalar(data, len(shape), ctx.qconfig)
    trailing = len(shape) - axis % len(shape) - 1
    count = shape[axis]
    for coarser in range(data.bound.bit_length() or 1):
        step, bound = float(data.dom_scale.data) * 2.0**coarser, -(-data.bound >> coarser)
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
    if ctx.qconfig.for_tflm:
        if not data.fits("int16") or count > MOST_SUMMANDS:
            return None
        standard = tflm_standardize(data, axis, count, epsilon, norm.centred, affine.out_bits)
    else:
        source = cast(data.data, "int16" if data.fits("int16") else "int32")
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
    if qconfig.for_tflm:
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
