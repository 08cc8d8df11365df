"""RecoverPoints: fake quantization that is written as arithmetic becomes a given quantize point.

    before                                              after
    %0 = round_even(divide(%x, 0.03f));                 simulated_quantize(%x, 0.03f, -128f, 127f,
    %1 = clip(%0, a_min=-128f, a_max=127f);                                given=True)
    multiply(%1, 0.03f)

The scale may be a factor or a divisor, the limits a clip or a minimum and a maximum, and a zero
point may be added and subtracted, as exporters of quantization-aware training write it.
Not handled: a scale for each channel, limits in front of the rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ops.annotation.attach_simulated_quantize import SQ
from compiler.ops.op_call import op_call
from compiler.ops.tensor.clip import ClipAttrs
from compiler.passes.recovered_calls import with_recovered_calls
from compiler.qtypes.qconfig import QAnnotateKind

_SAME_SCALE = 1e-5
_MOST_STEPS = 1 << 16
_STEPS = ("add", "subtract", "minimum", "maximum", "clip")


@register_pass("RecoverPoints", opt_level=0, required=("InferType",))
class RecoverPoints(FunctionPass):
    """Make one given point of its division, rounding, limits and product."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with given points, itself where there are none."""
        return with_recovered_calls(fn, mod, _point, _call, needed=("round_even",))


@dataclass(frozen=True, slots=True)
class _Point:
    data: Expr
    scale: float
    low: float
    high: float


def _call(point: _Point, new: Mapping[Expr, Expr], node: Expr) -> Expr:
    parameters = [
        Constant(np.asarray(number, np.float32)) for number in (point.scale, point.low, point.high)
    ]
    return op_call(
        SQ,
        new[point.data],
        *parameters,
        kind=int(QAnnotateKind.INPUT),
        rounding="round_even",
        given=True,
        span=node.span,
    )


def _point(node: Expr) -> _Point | None:
    """Return the point that a product with a scale ends."""
    scaled = _scaled(node)
    if scaled is None or node.tensor_type.dtype != "float32":
        return None
    value, scale = scaled
    steps = []
    while is_op_call(value, *_STEPS):
        steps.append(value)
        value = value.operands()[1]
    if not is_op_call(value, "round_even"):
        return None
    (value,) = value.args
    while is_op_call(value, "add", "subtract"):  # a zero point in front of the rounding
        steps.append(value)
        value = value.operands()[1]
    divided = _scaled(value)
    if divided is None or not math.isclose(divided[1] * scale, 1, rel_tol=_SAME_SCALE):
        return None
    limits = _limits(steps[::-1])
    if limits is None or not (scale > 0 and 1 < limits[1] - limits[0] < _MOST_STEPS):
        return None
    return _Point(divided[0], scale, *limits)


def _limits(steps: Sequence[Call]) -> tuple[float, float] | None:
    """Return the lowest and the highest integer; None where a zero point is left, or no number."""
    zero, low, high = 0.0, -math.inf, math.inf
    for step in steps:
        if is_op_call(step, "clip"):
            attrs = ClipAttrs.of(step)
            low = max(low, attrs.a_min - zero)
            high = min(high, attrs.a_max - zero)
            continue
        number = _number(step.operands()[2])
        if number is None or number % 1:
            return None
        assert isinstance(step.op, Op)
        match step.op.name:
            case "add":
                zero += number
            case "subtract":
                zero -= number
            case "maximum":
                low = max(low, number - zero)
            case "minimum":
                high = min(high, number - zero)
    if zero or low % 1 or high % 1:  # an infinite remainder is NaN, which counts
        return None
    return low, high


def _scaled(node: Expr) -> tuple[Expr, float] | None:
    """Return what is multiplied by a number, and the number; None of other nodes."""
    if not is_op_call(node, "multiply", "divide"):
        return None
    _, data, constant = node.operands()
    number = _number(constant)
    if not number or not math.isfinite(number):
        return None
    if is_op_call(node, "divide"):
        return data, 1 / number
    return data, number


def _number(expr: Expr) -> float | None:
    if isinstance(expr, Constant) and expr.data.dtype == np.float32 and expr.data.size == 1:
        return float(expr.data.reshape(-1)[0])
    return None
