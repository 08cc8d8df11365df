"""Shifts and fixed-point products: in float64 where it holds them, else in 64 bits.

BitShift knows unsigned integers only, and fills with zeros. A signed value is first moved up by
2^63, which turns its order into that of uint64; the shifted 2^63 is taken off again:

    x >> n  =  int64(uint64(x + 2^63) >> n) - (2^63 >> n)        all modulo 2^64
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.legalize import forget
from compiler.core.words import Words
from compiler.export.to_onnx.integer.emitter import SINGLE, FToInteger, Held, IntegerEmitter
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import bits
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import OP as REQUANTIZE
from compiler.ops.qnn.requantize import (
    Factors,
    RequantizeAttrs,
    factors_in,
    finished,
    limits_of,
    scaled_sum,
    summed,
)
from compiler.ops.rules.float_product import same_as_float_product
from compiler.ops.tensor.fixed_point_multiply import PRODUCTS, multiplied_by

_HALF_TURN = -(1 << 63)
_SUMMED = 32
"""Bits in one ReduceSum: onnxruntime adds int64 in float64."""


def shifted_right(name: str, amount: str, e: IntegerEmitter) -> str:
    """Arithmetic shift of an int64 tensor.

    Args:
        name: int64 tensor.
        amount: uint64 tensor of bits, each in [0, 63].
    """
    moved = e.writer.cast(e.node("Add", [name, e.constant(_HALF_TURN, "int64")]), "uint64")
    down = e.writer.cast(e.node("BitShift", [moved, amount], direction="RIGHT"), "int64")
    turn = e.constant(1 << 63, "uint64")
    offset = e.writer.cast(e.node("BitShift", [turn, amount], direction="RIGHT"), "int64")
    return e.node("Sub", [down, offset])


def shifted_left(name: str, amount: str, e: IntegerEmitter) -> str:
    """``x << n`` modulo 2^64 of an int64 tensor; ``amount`` as for ``shifted_right``."""
    unsigned = e.writer.cast(name, "uint64")
    return e.writer.cast(e.node("BitShift", [unsigned, amount], direction="LEFT"), "int64")


@FToInteger.register("right_shift", "left_shift")
def shift(step: Step, e: IntegerEmitter) -> Held:
    """Floor of a product with a power of two; else in 64 bits, where what leaves the dtype on the
    left is cut off by the cast."""
    data, amount = step.args
    right = step.name == "right_shift"
    work = e.exact_dtype(e.reach((data, step.result)))
    if work is not None and amount.data is not None:
        if right:
            power = -amount.data.astype(np.int32)
        else:
            power = amount.data.astype(np.int32)
        factor = e.constant(np.ldexp(1.0, power), work)
        moved = e.node("Mul", [e.widened(data, work), factor])
        return Held(e.node("Floor", [moved]) if right else moved, work)
    e.working_dtype(step)
    turn = shifted_right if right else shifted_left
    counts = e.writer.cast(e.widened(amount, "int64"), "uint64")
    return e.result(step, turn(e.widened(data, "int64"), counts, e), "int64")


@FToInteger.register("bitwise_and", "bitwise_or")
def bitwise(step: Step, e: IntegerEmitter) -> Held:
    """x & (2^n - 1) is x modulo 2^n. Opset 17 knows no other conjunction of numbers: bits lie along
    a new last axis, and a | b = a + b - (a & b)."""
    mask = step.args[1].data
    wide = np.asarray(-1 if mask is None else mask).astype(np.int64)
    sides = [e.widened(value, "int64") for value in step.args]
    if step.name == "bitwise_and" and _are_low_bits(wide):
        return e.result(step, e.node("Mod", [sides[0], e.constant(wide + 1, "int64")]), "int64")
    both = e.constant(0, "int64")
    for start in range(0, bits(step.result.type.dtype), _SUMMED):
        places = np.arange(start, min(start + _SUMMED, bits(step.result.type.dtype)))
        weights = e.constant(np.left_shift(np.int64(1), places - start), "int64")
        part = e.node("Mul", [_bits_of(side, places, e) for side in sides])
        axes = e.ints([-1])
        part = e.node("ReduceSum", [e.node("Mul", [part, weights]), axes], keepdims=0)
        both = e.node("Add", [both, e.node("Mul", [part, e.constant(1 << start, "int64")])])
    if step.name == "bitwise_or":
        both = e.node("Sub", [e.node("Add", sides), both])
    return e.result(step, both, "int64")


def _are_low_bits(mask: Array) -> bool:
    """Return whether all are 2^n - 1, n < 63."""
    return not (np.any(mask < 0) or np.any(mask >= 1 << 62) or np.any(mask & (mask + 1)))


def _bits_of(name: str, places: Array, e: IntegerEmitter) -> str:
    """The bits of an int64 tensor at some places, along a new last axis."""
    unsigned = e.writer.cast(e.node("Unsqueeze", [name, e.ints([-1])]), "uint64")
    moved = e.node("BitShift", [unsigned, e.constant(places, "uint64")], direction="RIGHT")
    return e.node("Mod", [e.writer.cast(moved, "int64"), e.constant(2, "int64")])


@FToInteger.register(*PRODUCTS)
def fixed_point_multiply(step: Step, e: IntegerEmitter) -> Held:
    """Floor(x * a + 1/2) where a float dtype holds every product and sum; else its words."""
    known = multiplied_by(step)
    if known is None:
        raise e.refuse(step, "its multipliers and shifts are computed", "fold them to constants")
    work = _exact_product(step, *known, e) if e.skip(step) else None
    if work is None:
        e.emit_words(step)
        return e.held(step.result)
    product = e.node("Mul", [e.apart(step.args[0], work), _real(*known, work, e)])
    if np.any(known[1] <= 30):
        product = e.node("Floor", [e.node("Add", [product, e.constant(0.5, work)])])
    return Held(product, work)


_SHORT = ("float32", "int8", "uint8", "int16", "uint16")


@FToInteger.register(REQUANTIZE)
def requantize(step: Step, e: IntegerEmitter) -> Held:
    """The words of its body; a product that is limited as a float32 one, rounded to even, where all
    of them are the same."""
    attrs = step.attrs
    factors = factors_in(step)
    if factors is None:
        raise e.refuse(step, "its multipliers, shifts or biases are computed", "fold them")
    words = Words(step)
    x = summed(step, factors, words)
    front = len(words.steps)
    scaled = scaled_sum(x, factors, attrs, words)
    clip = len(words.steps)
    made = finished(scaled, attrs, words)
    for word in words.steps[:front]:
        e.emit(word)
    product = _limited_product(x, factors, attrs, e)
    done = front
    if product is not None:
        for word in words.steps[front:clip]:
            e.skip(word)
        e.skip(words.steps[clip], Held(product, "float32"))
        done = clip + 1
    for word in words.steps[done:]:
        e.emit(word)
    e.alias(step.result, made)
    forget(words.steps, step)
    return e.held(step.result)


def _limited_product(
    x: Value, factors: Factors, attrs: RequantizeAttrs, e: IntegerEmitter
) -> str | None:
    """The clip of a product by float32 nodes; None where they are not the same."""
    limits = limits_of(attrs)
    reach = e.reach([x])
    ties: Any = attrs.rounding
    short = e.held(x).dtype in _SHORT and reach < SINGLE
    if limits is None or not short or ties not in ("up", "away", "even"):
        return None
    multiplier, amount, _ = factors
    if reach * np.abs(factors.scale).max(initial=0) >= 1 << 30:
        return None  # the product may wrap
    ends = e.ends_along(x, attrs.axis % max(len(x.type.shape), 1), multiplier.size)
    flat = multiplier.reshape(-1), 31 - amount.reshape(-1)
    if not same_as_float_product(*flat, ties, *ends, limits).all():
        return None
    factor = _real(multiplier, amount, "float32", e)
    rounded = e.node("Round", [e.node("Mul", [e.apart(x, "float32"), factor])])
    return e.node("Clip", [rounded, *(e.constant(end, "float32") for end in limits)])


def _real(multiplier: Array, amount: Array, dtype: str, e: IntegerEmitter) -> str:
    """multiplier * 2^(amount - 31)."""
    return e.constant(np.ldexp(multiplier.astype(np.float64), (amount - 31).astype(int)), dtype)


def _exact_product(step: Step, multiplier: Array, amount: Array, e: IntegerEmitter) -> str | None:
    """float32 or float64, where the odd part of every multiplier leaves room for the operand, and
    the operand and the result for the half that is added."""
    odd = multiplier // np.maximum(multiplier & -multiplier, 1)
    reach = e.reach((step.args[0], step.result))
    if int(np.abs(amount).max(initial=0)) > 62:
        return None
    return e.exact_dtype(2 * reach * int(np.abs(odd).max(initial=1)))
