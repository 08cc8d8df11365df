"""power: out = lhs ** rhs, broadcast; an integer to a negative power truncates like 1 / x."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import Intrin, Scalar
from compiler.ops.rules.lower import FLower, elementwise
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel

power = register_op(
    "power", arg_names=("lhs", "rhs"), rel=broadcast_rel("power"), pattern=OpPattern.BROADCAST
)


@FNumpyCompute.register(power)
def power_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Floats as C's pow; integers wrap."""
    base, exponent = np.broadcast_arrays(args[0], args[1])
    if base.dtype.kind != "i" or not (exponent < 0).any():
        return [np.power(base, exponent)]
    negative = exponent < 0
    result = np.power(base, np.where(negative, 0, exponent).astype(base.dtype))
    odd = (exponent & 1) == 1
    inverse = np.where(base == 1, 1, np.where(base == -1, np.where(odd, -1, 1), 0))
    return [np.where(negative, inverse, result).astype(base.dtype)]


intrinsics.register("pow")(np.power)
intrinsics.register("ipow")(lambda base, exponent: power_numpy(None, (base, exponent), Type())[0])


@FLower.register(power)
@elementwise
def power_lower(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    """One intrinsic per kind of number."""
    return Intrin("pow" if a.dtype.startswith("float") else "ipow", (a, b))


FNeverNegative.register("power")(all_positive)
