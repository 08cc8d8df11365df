"""fixed_point_multiply(x; multiplier, shift) and its per-axis form: x times a real factor.

    out = floor(x * multiplier * 2^(shift - 31) + 1/2)        multiplier in [2^30, 2^31), or 0

computed in 64 bits, half toward plus infinity, wrapped to 32 bits. A multiplier of exactly 2^30
is a power of two and becomes one shift in the dtype of x. Contract: |x * 2^max(shift, 0)| < 2^32.
numpy and C have it by name; its body says it in words for all others.
Source: Relay v0.10 fixed_point_multiply.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op, register_op
from compiler.ir.ty import Type, bits
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import IntImm, Intrin, Scalar
from compiler.ops.arg_types import Types, check_integers, integer_tensor, vectors_along_axis
from compiler.ops.number_format import Array, aligned_vector
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views, elementwise
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

POWER_OF_TWO = 1 << 30
_MOST_RIGHT = 32
"""|product| <= 2^62, so from a shift by 63 on the added half decides alone."""


class FixedPointMultiplyAttrs(OpAttrs):
    """The factor is multiplier * 2^(shift - 31)."""

    multiplier: int
    shift: int


class FixedPointMultiplyPerAxisAttrs(OpAttrs):
    """The axis of the data along which multipliers and shifts vary."""

    axis: int = 1


@define_op("fixed_point_multiply", pattern=OpPattern.ELEMWISE)
def fixed_point_multiply(types: Types, attrs: FixedPointMultiplyAttrs) -> Type:
    """Type of the data, an integer tensor.

    Raises:
        TypeInferenceError: the multiplier is outside [0, 2^31), or the shift no int32.
    """
    if not -(1 << 31) <= attrs.shift < 1 << 31:
        raise TypeInferenceError(f"fixed_point_multiply: shift {attrs.shift} is no int32")
    if not 0 <= attrs.multiplier < 1 << 31:
        raise TypeInferenceError(
            f"fixed_point_multiply: multiplier {attrs.multiplier} is outside [0, 2^31)"
        )
    return integer_tensor("fixed_point_multiply", types, 0, "data")


@FNumpyCompute.register(fixed_point_multiply)
def fixed_point_multiply_numpy(
    attrs: FixedPointMultiplyAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """One factor for all elements."""
    return [scaled(args[0], np.array(attrs.multiplier), np.array(attrs.shift))]


PER_AXIS = "fixed_point_multiply_per_axis"
PRODUCTS = ("fixed_point_multiply", PER_AXIS)
fixed_point_multiply_per_axis = register_op(
    PER_AXIS,
    arg_names=("data", "multiplier", "shift"),
    attrs_type=FixedPointMultiplyPerAxisAttrs,
    rel=vectors_along_axis(PER_AXIS, "multiplier", "shift", check=check_integers, dtype="int32"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(fixed_point_multiply_per_axis)
def fixed_point_multiply_per_axis_numpy(
    attrs: FixedPointMultiplyPerAxisAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """``fixed_point_multiply`` channel by channel."""
    data, multiplier, shift = args
    factors = (aligned_vector(each, attrs.axis, data.ndim) for each in (multiplier, shift))
    return [scaled(data, *factors)]


@intrinsics.register("fixed_point_multiply")
def scaled(data: Array, multiplier: Array, shift: Array) -> Array:
    """``data`` times multiplier * 2^(shift - 31), broadcast, done at once where all go one way."""
    exact = multiplier == POWER_OF_TWO
    if not exact.any():
        return _general(data, multiplier, shift)
    if exact.all():
        return _power_of_two(data, shift)
    return np.where(
        exact, _power_of_two(data, np.where(exact, shift, 1)), _general(data, multiplier, shift)
    )


def _power_of_two(data: Array, shift: Array) -> Array:
    """data * 2^(shift - 1): a left shift, or a right shift with half added, in the data's dtype."""
    width = data.dtype.itemsize * 8
    kind = data.dtype.type
    # Not in the int32 that shifts come in: half of a shift by 32 has more bits.
    left = shift.astype(np.int64) - 1
    if (left >= 0).all():
        return np.asarray(np.left_shift(data, np.minimum(left, width).astype(kind)))
    right = np.maximum(-left, 0)
    # Past the width the true quotient, half added, is 0 for every value the dtype holds.
    held = np.minimum(right, width - 1)
    half = np.where(held > 0, np.left_shift(np.int64(1), np.maximum(held, 1) - 1), 0).astype(kind)
    result = np.asarray(np.add(data, half))
    np.right_shift(result, held.astype(kind), out=result)
    if (right >= width).any():
        result = np.where(right >= width, kind(0), result)
    if (left > 0).any():
        result = np.where(
            left > 0, np.left_shift(data, np.clip(left, 0, width).astype(kind)), result
        )
    return np.asarray(result)


def _general(data: Array, multiplier: Array, shift: Array) -> Array:
    left = np.maximum(shift, 0).astype(np.int64)
    right = np.maximum(-shift, 0).astype(np.int64)
    # |product| <= 2^62, so from 2^63 on the added half decides alone and the result is 0.
    vanishes = right > _MOST_RIGHT
    right = np.minimum(right, _MOST_RIGHT)
    wide = data.astype(np.int64)
    if left.any():
        wide <<= left
    wide *= multiplier.astype(np.int64)
    wide += np.left_shift(np.int64(1), 30 + right)
    wide >>= 31 + right
    result = wide.astype(np.int32).astype(data.dtype, copy=False)
    if vanishes.any():
        return np.where(vanishes, data.dtype.type(0), result)
    return result


def multiplied_by(step: Step) -> tuple[Array, Array] | None:
    """Multipliers and shifts, int64, in a shape that broadcasts against the data, 0 and 0 where all
    bits are shifted out; None where they are computed."""
    data, *vectors = step.args
    if vectors:
        known = [each.data.astype(np.int64) for each in vectors if each.data is not None]
        if len(known) < len(vectors):
            return None
        rank = len(data.type.shape)
        multiplier, shift = (aligned_vector(each, step.attrs.axis, rank) for each in known)
    else:
        multiplier, shift = (
            np.array(n, "int64") for n in (step.attrs.multiplier, step.attrs.shift)
        )
    least = np.where(multiplier == POWER_OF_TWO, 2 - bits(data.type.dtype), -_MOST_RIGHT)
    gone = shift < least
    return np.where(gone, 0, multiplier), np.where(gone, 0, shift)


@FBody.register(fixed_point_multiply, fixed_point_multiply_per_axis)
def fixed_point_multiply_body(step: Step, words: Words) -> Value | None:
    """A product in int64, half added and shifted down, or one shift in the dtype of the data."""
    known = multiplied_by(step)
    if known is None:
        return None
    x, (multiplier, shift) = step.args[0], known
    power = multiplier == POWER_OF_TWO
    if power.all():
        return _shifted(x, shift - 1, words)
    general = np.where(power, 0, shift)
    multiplier = np.where(power | (general > 63), 0, multiplier)
    wide = words.cast(x, "int64")
    right = np.maximum(-general, 0)
    if (general > 0).any():
        left = words.constant(np.clip(general, 0, 64), "int64")
        wide = words.binary("left_shift", wide, left)
    wide = words.multiply(wide, words.constant(multiplier, "int64"))
    wide = words.add(wide, words.constant(np.left_shift(np.int64(1), 30 + right), "int64"))
    wide = words.binary("right_shift", wide, words.constant(31 + right, "int64"))
    made = words.cast(words.cast(wide, "int32"), x.type.dtype)
    if not power.any():
        return made
    moved = _shifted(x, np.where(power, shift - 1, 0), words)
    return words.where(words.constant(power, "bool"), moved, made)


def shifted_down(x: Value, down: Array, rounding: str, words: Words) -> Value:
    """x * 2^-down in the dtype of x; half is added, or for "even"

    (x + 2^(n-1) - 1 + ((x >> n) & 1)) >> n        n > 0; n = 0 changes nothing
    """
    dtype = x.type.dtype
    amount = words.constant(down, dtype)
    half = np.where(down > 0, np.left_shift(np.int64(1), np.maximum(down, 1) - 1), 0)
    total = x
    if rounding == "even":
        odd = words.binary("right_shift", x, amount)
        odd = words.binary("bitwise_and", odd, words.constant(down > 0, dtype))
        total = words.add(words.add(x, words.constant(half - (down > 0), dtype)), odd)
    elif rounding == "up":
        total = words.add(x, words.constant(half, dtype))
    return words.binary("right_shift", total, amount)


def _shifted(x: Value, up: Array, words: Words) -> Value:
    """x * 2^up in its dtype, half added where bits are shifted out."""
    dtype = x.type.dtype
    made = x
    down = np.maximum(-up, 0)
    if down.any():
        made = shifted_down(made, down, "up", words)
    if (up > 0).any():
        most = bits(dtype)  # which a proof refuses, as it does more
        left = words.constant(np.clip(up, 0, most), dtype)
        made = words.binary("left_shift", made, left)
        if (up >= most).any():
            made = words.where(words.constant(up < most, "bool"), made, words.constant(0, dtype))
    return made


@FLower.register(fixed_point_multiply)
@elementwise
def fixed_point_multiply_lower(attrs: FixedPointMultiplyAttrs, x: Scalar) -> Scalar:
    """One intrinsic with constants."""
    factor = (IntImm(attrs.multiplier, "int32"), IntImm(attrs.shift, "int32"))
    return Intrin("fixed_point_multiply", (x, *factor))


@FLower.register(fixed_point_multiply_per_axis)
def fixed_point_multiply_per_axis_lower(
    call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder
) -> Lowered:
    """One intrinsic, its factor read along the axis."""
    data, multiplier, shift = inputs
    attrs: Any = call.attrs
    axis = attrs.axis % len(data.shape)

    def at(indices: tuple[Scalar, ...]) -> Scalar:
        channel = (indices[axis],)
        args = (data.at(indices), multiplier.at(channel), shift.at(channel))
        return Intrin("fixed_point_multiply", args)

    return [TensorView.of(data.shape, at)]
