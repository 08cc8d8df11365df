"""power: out = lhs ** rhs, broadcast; an integer to a negative power truncates like 1 / x."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.lir.routines import intrinsics
from compiler.lir.scalars import Intrin, Scalar
from compiler.ops.rules.lower import elementwise
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.tensor.broadcast import binary_op


def _power(lhs: NDArray[Any], rhs: NDArray[Any]) -> NDArray[Any]:
    """Floats as C's pow; integers wrap."""
    base, exponent = np.broadcast_arrays(lhs, rhs)
    if base.dtype.kind != "i" or not (exponent < 0).any():
        return np.asarray(np.power(base, exponent))
    negative = exponent < 0
    result = np.power(base, np.where(negative, 0, exponent).astype(base.dtype))
    odd = (exponent & 1) == 1
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return np.where(negative, inverse, result).astype(base.dtype)


intrinsics.register("pow")(np.power)
intrinsics.register("ipow")(_power)


@elementwise
def power_lower(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    """One intrinsic per kind of number."""
    return Intrin("pow" if a.dtype.startswith("float") else "ipow", (a, b))


power = binary_op("power", _power, power_lower)


FNeverNegative.register("power")(all_positive)
