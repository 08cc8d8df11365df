"""divide: out = lhs / rhs, broadcast; integers truncate toward zero."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.scalars import Bin, Scalar
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.lower import FLower, elementwise
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.ops.tensor.broadcast import broadcast_rel
from compiler.ops.tensor.integer_division import truncated_quotient
from compiler.ops.tensor.scale_change import (
    annotate_scale_change,
    changed_scale,
    realize_scale_change,
)

divide = register_op(
    "divide",
    arg_names=("lhs", "rhs"),
    rel=broadcast_rel("divide"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(divide)
def divide_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """True division of floats, truncated quotient of integers; an integer divided by 0 gives 0."""
    lhs, rhs = args
    if lhs.dtype.kind == "f":
        return [np.divide(lhs, rhs)]
    return [truncated_quotient(lhs, rhs)]


FQAnnotateRewrite.register(divide)(annotate_scale_change)
FQRealizeRewrite.register(divide)(realize_scale_change)
FQDomScale.register(divide)(changed_scale)
FQZeroPoint.register(divide)(always(ZeroPoint.CENTRES))


@FLower.register(divide)
@elementwise
def divide_lower(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    """Integers truncate."""
    return Bin("/" if a.dtype.startswith("float") else "truncdiv", a, b)


FNeverNegative.register(divide)(all_positive)
