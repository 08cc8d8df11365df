"""Integer rules of sqrt behind a sum, such as the magnitude of a spectrum, sqrt(re * re + im * im).

    y = isqrt(max(x, 0) * 2^30),   scale of y = sqrt(scale of x) / 2^15

x are the sums of 32 bits as they are. A table would have to begin with a few bits of them, of which
the root takes half: quiet parts of a signal were lost.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Args, Call, Expr
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite, accumulating, kind_of
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, as_scale, moved_scale
from compiler.ops.rules.integer_calls import cast, scalar
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import annotate_tabulated, partition_pass_through
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, integers, of_integers
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.tensor.unary_formula import (
    UnaryFormulaAttrs,
    unary_formula,
    unary_formula_realize,
)
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

FQPartitionRewrite.register("sqrt")(partition_pass_through)


@FQAnnotateRewrite.register("sqrt", needs_tables=True)
def sqrt_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """An accumulator of the sums as they are; in a module for TFLM a table of narrow integers."""
    if kind_of(args[0]) is None or ctx.check_to_skip(ref_call):
        return None
    if ctx.qconfig.form.byte_tables:
        return annotate_tabulated(ref_call, args, ctx)
    return accumulating(ref_call, args[0])


@FQRealizeRewrite.register("sqrt", needs_tables=True)
@of_integers
def sqrt_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """The exact root of the integers, 15 bits of it behind the point."""
    if ctx.qconfig.form.byte_tables:
        table = Call(unary_formula, ref_call.args, UnaryFormulaAttrs("x sqrt"), span=ref_call.span)
        return unary_formula_realize(table, (data,), ctx)
    data = to_scalar(data, len(ref_call.tensor_type.shape), ctx.qconfig)
    held = op_call("maximum", data.in_dtype("int64"), scalar(0, "int64"))
    shifted = op_call("left_shift", held, scalar(_shift(data.dom_scale.data), "int64"))
    acc = ctx.qconfig.dtype_activation
    root = cast(op_call("isqrt", shifted, span=ref_call.span), acc)
    return integers(root, _rooted(data.scale), acc, ctx.bounds_of)


@FQDomScale.register("sqrt")
def sqrt_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The root of the one scale of all channels."""
    scale = moved_scale(call, scales, qconfig)
    if scale is None:
        return None
    return _rooted(scale)


def _rooted(scale: DomScale) -> DomScale:
    units = np.ldexp(scale.values.astype(np.float64), -_shift(scale.values))
    return DomScale(as_scale(np.sqrt(units)), wide=True)


def _shift(scale: NDArray[np.float32]) -> int:
    """Bits in front of the root; one less where a power of two has no root that is one."""
    fraction, exponent = np.frexp(scale)
    if float(fraction) == 0.5 and int(exponent) % 2 == 0:
        return 29
    return 30
