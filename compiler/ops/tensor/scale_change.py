"""Multiplication and division by one positive constant: the integers stay, their scale changes.

before                         after
multiply(x, 0.25f), scale s    x, scale 0.25 s
"""

from __future__ import annotations

import math

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr, is_op_call
from compiler.ops.rules.annotate import annotated, kind_of, unannotated
from compiler.ops.rules.dom_scale import DomScale, Scales, as_scale
from compiler.ops.rules.pass_through import in_integers
from compiler.ops.rules.realize import QRealizeIntExpr, integers
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig


def _constant_side(ref_call: Call, qconfig: QConfig) -> tuple[int, float] | None:
    """(side, factor) of a constant that only changes units."""
    if not qconfig.integer_tables:
        return None
    sides = (1,) if is_op_call(ref_call, "divide") else (1, 0)
    for side in sides:
        constant = ref_call.args[side]
        other = ref_call.args[1 - side]
        if not isinstance(constant, Constant) or isinstance(other, Constant):
            continue
        if constant.data.size != 1 or other.tensor_type.shape != ref_call.tensor_type.shape:
            continue
        factor = float(constant.data.reshape(()))
        if is_op_call(ref_call, "divide"):
            factor = 1.0 / factor if factor else math.inf
        # Scales stay far inside the range of normal float32 numbers.
        if 2.0**-40 <= factor <= 2.0**40:
            return side, factor
    return None


def annotate_scale_change(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The result has the kind of the computed operand; None where integers must be multiplied."""
    found = _constant_side(ref_call, ctx.qconfig)
    if found is None or ctx.stopped:
        return None
    kind = kind_of(args[1 - found[0]])
    if kind is None:
        return None
    return annotated(ref_call, tuple(map(unannotated, args)), kind)


def realize_scale_change(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """The same integers at another scale; None where the constant was quantized."""
    found = _constant_side(ref_call, ctx.qconfig)
    if found is None or not isinstance(args[found[0]], Constant):
        return None
    data = args[1 - found[0]]
    if not isinstance(data, QRealizeIntExpr):
        return None
    data = in_integers(data, ctx)
    scale = rescaled(data.scale, found[1])
    return integers(data.data, scale, data.dtype, ctx.bounds_of)


def changed_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """The FQDomScale rule of such a call; None for other products."""
    found = _constant_side(call, qconfig)
    if found is None:
        return None
    scale = scales[1 - found[0]]
    if scale is None:
        return None
    return rescaled(scale, found[1])


def rescaled(scale: DomScale, factor: float) -> DomScale:
    """The scale times a factor, rounded to float32."""
    return DomScale(as_scale(scale.values.astype(np.float64) * factor), scale.trailing, scale.wide)
