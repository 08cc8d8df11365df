"""Shifts and fixed-point products in 64 bits.

BitShift knows unsigned integers only, and fills with zeros. A signed value is first moved up by
2^63, which turns its order into that of uint64; the shifted 2^63 is taken off again:

    x >> n  =  int64(uint64(x + 2^63) >> n) - (2^63 >> n)        all modulo 2^64
"""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.convert.tensor import low_bits
from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.ir.dataflow import Step, Value
from compiler.ops.number_format import Array

_HALF_TURN = -(1 << 63)
POWER_OF_TWO = 1 << 30
"""A multiplier of exactly this is a shift in the dtype of the data."""


def shifted_right(name: str, amount: str, e: IntegerEmitter) -> str:
    """Arithmetic shift of an int64 tensor.

    Args:
        name: int64 tensor.
        amount: uint64 tensor of bits, each in [0, 63].
    """
    moved = e.writer.cast(e.node("Add", [name, e.scalar(_HALF_TURN, "int64")]), "uint64")
    down = e.writer.cast(e.node("BitShift", [moved, amount], direction="RIGHT"), "int64")
    turn = e.scalar(1 << 63, "uint64")
    offset = e.writer.cast(e.node("BitShift", [turn, amount], direction="RIGHT"), "int64")
    return e.node("Sub", [down, offset])


def shifted_left(name: str, amount: str, e: IntegerEmitter) -> str:
    """``x << n`` modulo 2^64 of an int64 tensor; ``amount`` as for ``shifted_right``."""
    unsigned = e.writer.cast(name, "uint64")
    return e.writer.cast(e.node("BitShift", [unsigned, amount], direction="LEFT"), "int64")


@FToInteger.register("right_shift", "left_shift")
def shift(step: Step, e: IntegerEmitter) -> str:
    """In 64 bits; what leaves the dtype on the left is cut off by the cast."""
    e.working_dtype(step)
    data, amount = (e.widened(value, "int64") for value in step.args)
    turn = shifted_right if step.name == "right_shift" else shifted_left
    return e.writer.cast(turn(data, e.writer.cast(amount, "uint64"), e), step.result.type.dtype)


@FToInteger.register("bitwise_and")
def bitwise_and(step: Step, e: IntegerEmitter) -> str:
    """x & (2^n - 1) = x modulo 2^n; opset 17 knows no other conjunction of numbers."""
    rest = low_bits(step, e, e.widened(step.args[0], "int64"))
    return e.writer.cast(rest, step.result.type.dtype)


@FToInteger.register("fixed_point_multiply")
def fixed_point_multiply(step: Step, e: IntegerEmitter) -> str:
    """One multiplier and shift for all elements."""
    attrs = step.attrs
    return _scaled(step, np.asarray(attrs.multiplier), np.asarray(attrs.shift), e)


@FToInteger.register("fixed_point_multiply_per_axis")
def fixed_point_multiply_per_axis(step: Step, e: IntegerEmitter) -> str:
    """A multiplier and shift per channel."""
    rank = len(step.args[0].type.shape)
    shape = [1] * rank
    shape[step.attrs.axis % rank] = -1
    multiplier, amount = (_known(step, value, e).reshape(shape) for value in step.args[1:])
    return _scaled(step, multiplier, amount, e)


def _known(step: Step, value: Value, e: IntegerEmitter) -> Array:
    if value.data is None:
        raise e.refuse(step, "its multipliers and shifts are computed", "fold them to constants")
    return value.data


def _scaled(step: Step, multiplier: Array, amount: Array, e: IntegerEmitter) -> str:
    """Channels whose multiplier is 2^30 take the short way, the others the general one."""
    e.working_dtype(step)
    data, dtype = step.args[0], step.result.type.dtype
    multiplier, amount = multiplier.astype(np.int64), amount.astype(np.int64)
    exact = multiplier == POWER_OF_TWO
    if exact.all():
        return _power_of_two(data, amount, dtype, e)
    general = _general(data, multiplier, amount, dtype, e)
    if not exact.any():
        return general
    short = _power_of_two(data, np.where(exact, amount, 1), dtype, e)
    wide = [e.cast(name, dtype, "int64") for name in (short, general)]
    picked = e.node("Where", [e.writer.constant(exact), *wide])
    return e.cast(picked, "int64", dtype)


def _general(data: Value, multiplier: Array, amount: Array, dtype: str, e: IntegerEmitter) -> str:
    """((x << L) * M + 2^(30+R)) >> (31+R), wrapped to 32 bits; L or R is the shift."""
    left, right = np.maximum(amount, 0), np.maximum(-amount, 0)
    # |x << L| < 2^32 is the operator's contract, so from R = 33 on the result is 0.
    vanishes, right = right > 32, np.minimum(right, 32)
    wide = e.widened(data, "int64")
    if left.any():
        wide = shifted_left(wide, e.array(np.minimum(left, 63), "uint64"), e)
    product = e.node("Mul", [wide, e.array(np.where(vanishes, 0, multiplier), "int64")])
    half = np.left_shift(np.int64(1), 30 + right)
    rounded = e.node("Add", [product, e.array(half, "int64")])
    down = shifted_right(rounded, e.array(31 + right, "uint64"), e)
    return e.cast(e.writer.cast(down, "int32"), "int32", dtype)


def _power_of_two(data: Value, amount: Array, dtype: str, e: IntegerEmitter) -> str:
    """x * 2^(amount - 1), rounding half up, in the dtype of x."""
    width = np.dtype(dtype).itemsize * 8
    left, right = np.maximum(amount - 1, 0), np.maximum(1 - amount, 0)
    wide = e.widened(data, "int64")
    result: str = wide
    if right.any():
        held = np.minimum(right, width - 1)
        half = np.where(right > 0, np.left_shift(np.int64(1), np.maximum(held, 1) - 1), 0)
        # The sum wraps in the data's dtype before it is shifted.
        total = e.writer.cast(e.node("Add", [wide, e.array(half, "int64")]), dtype)
        result = shifted_right(e.cast(total, dtype, "int64"), e.array(held, "uint64"), e)
        if (right >= width).any():
            result = e.node("Mul", [result, e.array(right < width, "int64")])
    if left.any():
        result = shifted_left(result, e.array(np.minimum(left, 63), "uint64"), e)
        if (left >= width).any():
            result = e.node("Mul", [result, e.array(left < width, "int64")])
    return e.writer.cast(result, dtype)
