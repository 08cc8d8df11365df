"""floor_divide, floor_mod, mod, trunc_mod: broadcast; an integer over 0 is 0."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import is_float
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


intrinsics.register("truncdiv")(truncated_quotient)
intrinsics.register("fmod")(np.fmod)


def _remainder(attrs: Any, a: Scalar, b: Scalar) -> Scalar:
    if a.dtype.startswith("float"):
        return Intrin("fmod", (a, b))
    rest = Bin("-", a, Bin("*", Bin("truncdiv", a, b), b))
    zero = like_first(0, b)
    return Select(Bin("==", b, zero), zero, rest)


binary_op("floor_divide", np.floor_divide, "floordiv")
binary_op("floor_mod", np.mod, "floormod")
# Relay's mod is C's: the sign of the dividend.
binary_op("mod", np.fmod, elementwise(_remainder, reads=3))
binary_op("trunc_mod", np.fmod, elementwise(_remainder, reads=3))


def _quotient(a: Value, b: Value, words: Words) -> Value:
    """Toward zero: the floor, one more where the signs differ and something is left."""
    dtype = a.type.dtype
    floor = words.binary("floor_divide", a, b)
    if dtype.startswith("u"):
        return floor
    if b.data is not None and b.data.size and b.data.min() > 0:
        below = words.add(words.minimum(a, 0), words.subtract(b, 1))
        return words.where(words.less(a, 0), words.binary("floor_divide", below, b), floor)
    zero, one = (words.constant(n, dtype) for n in (0, 1))
    same_sign = words.equal(words.less(a, 0), words.less(b, 0))
    bump = words.where(same_sign, zero, one)
    rest = words.subtract(a, words.multiply(floor, b))
    for nothing in (rest, b):
        bump = words.where(words.equal(nothing, 0), zero, bump)
    return words.add(floor, bump)


@FBody.register("divide")
def divide_body(step: Step, words: Words) -> Value | None:
    """The quotient toward zero, of integers."""
    a, b = step.args
    if is_float(a.type.dtype):
        return None
    return _quotient(a, b, words)


@FBody.register("floor_mod", "mod", "trunc_mod")
def remainder_body(step: Step, words: Words) -> Value | None:
    """Return the remainder of the integer quotient; 0 over 0."""
    a, b = step.args
    dtype = a.type.dtype
    if is_float(dtype):
        return None
    floors = step.name == "floor_mod" or dtype.startswith("u")
    if b.data is not None and b.data.size and b.data.min() > 0:
        # Below the divisor, whatever the quotient: no bound of the dividend is needed to know.
        if floors and not (b.data & (b.data - 1)).any():
            return words.binary("bitwise_and", a, words.constant(b.data - 1, dtype))
        if floors:
            quotient = words.binary("floor_divide", a, b)
        else:
            quotient = _quotient(a, b, words)
        wide = "int64" if dtype != "uint64" else dtype
        taken = words.multiply(*(words.cast(value, wide) for value in (quotient, b)))
        rest = words.subtract(words.cast(a, wide), taken)
        low = 0 if floors else -int(b.data.max() - 1)
        return words.cast(words.clip(rest, low, int(b.data.max() - 1)), dtype)
    if floors:
        quotient = words.binary("floor_divide", a, b)
    else:
        quotient = _quotient(a, b, words)
    rest = words.subtract(a, words.multiply(quotient, b))
    return words.where(words.equal(b, 0), words.constant(0, dtype), rest)
