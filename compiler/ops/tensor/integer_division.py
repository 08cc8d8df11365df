"""floor_divide, floor_mod, mod, trunc_divide, trunc_mod: broadcast; an integer over 0 is 0."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import Bin, Intrin, Scalar, Select
from compiler.ops.rules.lower import FLower, binary, elementwise, like_first
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel

Array = NDArray[Any]


def truncated_quotient(lhs: Array, rhs: Array) -> Array:
    """lhs / rhs toward zero, for integers, in their dtype."""
    floor = np.floor_divide(lhs, rhs)
    if lhs.dtype.kind == "u":
        return np.asarray(floor)
    rest = lhs - floor * rhs
    bump = (rest != 0) & (rhs != 0) & ((lhs < 0) != (rhs < 0))
    return np.asarray(floor + bump.astype(lhs.dtype))


def _trunc_divide(lhs: Array, rhs: Array) -> Any:
    return np.trunc(lhs / rhs) if lhs.dtype.kind == "f" else truncated_quotient(lhs, rhs)


_FUNCTIONS = {
    "floor_divide": np.floor_divide,
    "floor_mod": np.mod,
    # Relay's mod is C's: the sign of the dividend.
    "mod": np.fmod,
    "trunc_divide": _trunc_divide,
    "trunc_mod": np.fmod,
}


def _register(name: str, function: Any) -> None:
    op = register_op(
        name, arg_names=("lhs", "rhs"), rel=broadcast_rel(name), pattern=OpPattern.BROADCAST
    )

    @FNumpyCompute.register(op)
    def compute(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
        return [function(args[0], args[1])]


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)


intrinsics.register("truncdiv")(truncated_quotient)
intrinsics.register("fmod")(np.fmod)


def _truncated(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.startswith("float"):
        return Intrin("trunc", (Bin("/", a, b),))
    return Bin("truncdiv", a, b)


def _remainder(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.startswith("float"):
        return Intrin("fmod", (a, b))
    rest = Bin("-", a, Bin("*", Bin("truncdiv", a, b), b))
    zero = like_first(0, b)
    return Select(Bin("==", b, zero), zero, rest)


FLower.register("floor_divide")(binary("floordiv"))
FLower.register("floor_mod")(binary("floormod"))
FLower.register("trunc_divide")(elementwise(_truncated))
FLower.register("mod", "trunc_mod")(elementwise(_remainder, reads=3))
