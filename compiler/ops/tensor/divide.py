"""divide: out = lhs / rhs, broadcast; integers truncate toward zero, and give 0 over 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.lir.scalars import Bin, Scalar
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.lower import elementwise
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.ops.tensor.broadcast import binary_op
from compiler.ops.tensor.integer_division import truncated_quotient
from compiler.ops.tensor.scale_change import (
    annotate_scale_change,
    changed_scale,
    realize_scale_change,
)


def _quotient(lhs: NDArray[Any], rhs: NDArray[Any]) -> Any:
    return np.divide(lhs, rhs) if lhs.dtype.kind == "f" else truncated_quotient(lhs, rhs)


@elementwise
def divide_lower(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    """Integers truncate."""
    return Bin("/" if a.dtype.startswith("float") else "truncdiv", a, b)


divide = binary_op("divide", _quotient, divide_lower)

FQAnnotateRewrite.register(divide)(annotate_scale_change)
FQRealizeRewrite.register(divide)(realize_scale_change)
FQDomScale.register(divide)(changed_scale)
FQZeroPoint.register(divide)(always(ZeroPoint.CENTRES))
FNeverNegative.register(divide)(all_positive)
