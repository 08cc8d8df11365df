"""floor_divide, floor_mod, mod, trunc_divide, trunc_mod: broadcast; an integer over 0 is 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import Bin, Intrin, Scalar, Select
from compiler.ops.number_format import Array
from compiler.ops.rules.lower import elementwise, like_first
from compiler.ops.tensor.broadcast import binary_op


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


binary_op("floor_divide", np.floor_divide, "floordiv")
binary_op("floor_mod", np.mod, "floormod")
binary_op("trunc_divide", _trunc_divide, elementwise(_truncated))
# Relay's mod is C's: the sign of the dividend.
binary_op("mod", np.fmod, elementwise(_remainder, reads=3))
binary_op("trunc_mod", np.fmod, elementwise(_remainder, reads=3))


@FBody.register("trunc_divide")
def trunc_divide_body(step: Step, words: Words) -> Value:
    """The floor, one more where the signs differ and something is left."""
    a, b = step.args
    dtype = a.type.dtype
    if b.data is not None and b.data.size and b.data.min() > 0:
        return words.truncated(a, b)
    floor = words.binary("floor_divide", a, b)
    if dtype.startswith("u"):
        return floor
    zero, one = (words.constant(n, dtype) for n in (0, 1))
    same_sign = words.equal(words.less(a, 0), words.less(b, 0))
    bump = words.where(same_sign, zero, one)
    rest = words.subtract(a, words.multiply(floor, b))
    for nothing in (rest, b):
        bump = words.where(words.equal(nothing, 0), zero, bump)
    return words.add(floor, bump)
