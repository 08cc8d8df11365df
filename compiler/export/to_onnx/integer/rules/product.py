"""Products as Conv and MatMul where every sum stays below 2^23, else in integers.

ConvInteger and MatMulInteger take 8-bit operands and add into int32. Wider operands are cut into
digits of 8 bits:

    x * w = sum over digits of (x_i * w_j) * 2^(8 (i + j))      modulo 2^32

Operands are given as uint8 with zero point 128: kernels for uint8 and int8 mixed add pairs in 16
bits, with saturation, on processors without VNNI.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from compiler.export.to_onnx.integer.emitter import FToInteger, Held, IntegerEmitter
from compiler.export.to_onnx.windows import window_attributes
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import bits
from compiler.ops.number_format import Array

Digit = tuple[str, int, int]
"""uint8 tensor, its zero point, and the place (power of 256) it counts at."""

_SIGN = 128


def digits(value: Value, e: IntegerEmitter) -> list[Digit]:
    """A tensor of at most 32 bits as digits of 8; all but the last are in [0, 255]."""
    dtype = value.type.dtype
    zero_point = 0 if dtype.startswith("u") else _SIGN
    places = bits(dtype) // 8
    if value.data is not None:
        return _constant_digits(value.data, places, zero_point, e)
    found: list[Digit] = []
    rest = e.widened(value, "int64")
    base = e.constant(256, "int64")
    for place in range(places - 1):
        digit = e.node("Mod", [rest, base], fmod=0)
        found.append((e.writer.cast(digit, "uint8"), 0, place))
        # The remainder is taken off first: Div truncates, and the quotient must be a floor.
        rest = e.node("Div", [e.node("Sub", [rest, digit]), base])
    moved = e.node("Add", [rest, e.constant(zero_point, "int64")])
    return [*found, (e.writer.cast(moved, "uint8"), zero_point, places - 1)]


def _constant_digits(data: Array, places: int, zero_point: int, e: IntegerEmitter) -> list[Digit]:
    rest = data.astype(np.int64)
    found: list[Digit] = []
    for place in range(places):
        if place and not rest.any():
            break
        last = place == places - 1 or (rest.min(initial=0) >= -128 and rest.max(initial=0) < 128)
        if last:
            found.append((e.constant(rest + zero_point, "uint8"), zero_point, place))
            break
        found.append((e.constant(rest % 256, "uint8"), 0, place))
        rest = rest >> 8
    return found


def product(
    step: Step,
    e: IntegerEmitter,
    terms: int,
    plain: Callable[[str, str], str],
    emit: Callable[[Digit, Digit], str],
) -> Held:
    """The product in float32; else the sum over pairs of digits, in the dtype of the result.

    Args:
        terms: products per sum.
        plain: writes the float product of two tensors.
        emit: writes the int32 product of two digits.
    Raises:
        OnnxExportError: operands or a result of a dtype that has no exact form.
    """
    work = e.exact_dtype(e.accumulated())
    if work == "float32" or (work is not None and step.name != "nn.conv2d"):
        # A float32 holds every factor of an operand that its sums leave room for.
        lhs, rhs = (_factor(value, work, e) for value in step.args)
        return Held(plain(lhs, rhs), work)
    dtype = step.result.type.dtype
    wide = bits(dtype) > 32
    if any(bits(value.type.dtype) > 32 for value in step.args[:2]):
        raise e.refuse(step, "an operand has more than 32 bits")
    if wide and terms * 255 * 255 >= 1 << 31:
        raise e.refuse(step, f"sums of {terms} products leave int32 before they are widened")
    work = "int64" if wide else "int32"
    total: str | None = None
    for left in digits(step.args[0], e):
        for right in digits(step.args[1], e):
            place = 8 * (left[2] + right[2])
            if place >= bits(dtype):
                continue
            part = e.cast(emit(left, right), "int32", work)
            if place:
                factor = np.asarray(1 << place, "int64").astype(work)
                part = e.node("Mul", [part, e.writer.constant(factor)])
            total = part if total is None else e.node("Add", [total, part])
    assert total is not None, "the digits of place 0 always count"
    return e.result(step, total, work)


def _factor(value: Value, work: str, e: IntegerEmitter) -> str:
    """An operand of a float product; transposed behind its Cast: onnxruntime (1.31 and 1.32) ends
    with a signal where it moves the Transpose of a batch there itself."""
    held = e.held(value)
    if value.data is None and held.dtype != work and held.name in e.transposed:
        data, axes = e.transposed[held.name]
        return e.node("Transpose", [e.cast(*data, work)], perm=axes)
    return e.apart(value, work, work == "float64")


def _zero(digit: Digit, e: IntegerEmitter) -> str:
    return e.constant(digit[1], "uint8")


@FToInteger.register("nn.conv2d")
def conv2d(step: Step, e: IntegerEmitter) -> Held:
    """Conv or ConvInteger; padding reads the zero point, which stands for 0."""
    attrs, (_, inputs, *kernel) = step.attrs, step.args[1].type.concrete_shape
    window = {"group": attrs.groups, **window_attributes(attrs, kernel)}

    def plain(data: str, weight: str) -> str:
        return e.node("Conv", [data, weight], **window)

    def emit(data: Digit, weight: Digit) -> str:
        names = [data[0], weight[0], _zero(data, e), _zero(weight, e)]
        return e.node("ConvInteger", names, **window)

    return product(step, e, inputs * math.prod(kernel), plain, emit)


@FToInteger.register("nn.matmul", "nn.batch_matmul")
def matmul(step: Step, e: IntegerEmitter) -> Held:
    """MatMul or MatMulInteger."""

    def plain(lhs: str, rhs: str) -> str:
        return e.node("MatMul", [lhs, rhs])

    def emit(lhs: Digit, rhs: Digit) -> str:
        return e.node("MatMulInteger", [lhs[0], rhs[0], _zero(lhs, e), _zero(rhs, e)])

    return product(step, e, step.args[0].type.concrete_shape[-1], plain, emit)
