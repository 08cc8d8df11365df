"""fixed_point_rescale(x, multiplier, shift): x times a real factor, rounded twice as TFLM does it.

    y   = floor(x * 2^max(shift, 0) * multiplier * 2^-31 + 1/2)       halves upward
    out = round(y * 2^min(shift, 0))                                  halves away from zero

Everything is int32: what ``x * 2^shift`` or a sum with half a step does not hold, wraps. The factor
is one for all elements, or one per index of ``axis``. With ``once`` the multiplier has 15 digits,
and the product is rounded once: out = floor(x * multiplier * 2^(shift - 31) + 1/2).
Source: TensorFlow Lite, MultiplyByQuantizedMultiplier (kernels/internal/common.h) of int32, with
its double rounding, and of int64: what TFLM's kernels and LiteRT's reference kernels compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType
from compiler.ir.type_relation import Reporter, is_known
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Bin, IntImm, Intrin, Scalar
from compiler.ops.arg_types import Types, integer_tensor, normalize_axis
from compiler.ops.number_format import Array, aligned_vector
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.layout import FConvertLayout, Order, Relaid, axis_layout, data_layout
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

OP = "fixed_point_rescale"


@dataclass(frozen=True, eq=False)
class FixedPointRescaleAttrs(OpAttrs):
    """How the factor lies, and how the product is rounded.

    Attributes:
        axis: of the data, along which the factors vary; None for one factor.
        once: whether it is rounded once, as products of int16 are.
    """

    axis: int | None = None
    once: bool = False


def fixed_point_rescale_rel(
    types: Types, num_inputs: int, attrs: FixedPointRescaleAttrs, reporter: Reporter
) -> bool:
    """Result = type of the data, int32; multiplier and shift are int32 vectors."""
    if not is_known(types[0]):
        return False
    data = integer_tensor(OP, types, 0, "data")
    size = 1 if attrs.axis is None else data.shape[normalize_axis(OP, attrs.axis, len(data.shape))]
    for place in (1, 2):
        reporter.assign(types[place], TensorType((size,), "int32"))
    reporter.assign(types[0], TensorType(data.shape, "int32"))
    reporter.assign(types[3], TensorType(data.shape, "int32"))
    return True


fixed_point_rescale = register_op(
    OP,
    arg_names=("data", "multiplier", "shift"),
    attrs_type=FixedPointRescaleAttrs,
    rel=fixed_point_rescale_rel,
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(fixed_point_rescale)
def fixed_point_rescale_numpy(
    attrs: FixedPointRescaleAttrs, args: Arrays, out_type: Any
) -> list[Any]:
    """In int64, wrapped where int32 would be."""
    data, *factors = args
    if attrs.axis is None:
        multiplier, shift = (each.reshape(()) for each in factors)
    else:
        multiplier, shift = (aligned_vector(each, attrs.axis, data.ndim) for each in factors)
    return [rescaled(data, multiplier, shift, attrs.once).astype(np.int32)]


def rescaled(data: Array, multiplier: Array, shift: Array, once: bool = False) -> Array:
    """What the operator computes, int64; the three are broadcast."""
    multiplier, shift = multiplier.astype(np.int64), shift.astype(np.int64)
    if once:
        half = np.left_shift(np.int64(1), 30 - shift)
        return np.asarray(np.right_shift(data.astype(np.int64) * multiplier + half, 31 - shift))
    left, right = np.maximum(shift, 0), np.maximum(-shift, 0)
    raised = np.left_shift(data.astype(np.int64), left).astype(np.int32).astype(np.int64)
    product = np.right_shift(raised * multiplier + (1 << 30), 31)
    half = np.where(right > 0, np.left_shift(np.int64(1), np.maximum(right, 1) - 1), 0)
    below = (product < 0) & (right > 0)
    moved = (product + half - below).astype(np.int32)
    return np.asarray(np.right_shift(moved, right), np.int64)


@FBody.register(fixed_point_rescale)
def fixed_point_rescale_body(step: Step, words: Words) -> Value | None:
    """A product of 31 bits, half a step, one less below 0, and a shift."""
    data, multiplier, shift = step.args
    if multiplier.data is None or shift.data is None:
        return None
    amounts = shift.data.astype(np.int64)
    left, right = np.maximum(amounts, 0), np.maximum(-amounts, 0)
    rank, axis = len(shape_of(data)), step.attrs.axis
    trailing = 0 if axis is None else rank - 1 - axis % rank
    lying = () if axis is None else (-1, *(1,) * trailing)

    def along(values: Array) -> Value:
        return words.constant(values.reshape(lying), "int32")

    if left.any() and not step.attrs.once:
        data = words.binary("left_shift", data, along(left))
    dtype, shape = "int32", shape_of(data)
    behind = amounts if step.attrs.once else np.zeros_like(amounts)
    if axis is None:
        factor = {"multiplier": int(multiplier.data[0]), "shift": int(behind[0])}
        product = words.word("fixed_point_multiply", [data], shape, dtype, **factor)
    else:
        vectors = [data, multiplier, words.constant(behind, "int32")]
        name = "fixed_point_multiply_per_axis"
        product = words.word(name, vectors, shape, dtype, axis=axis % rank)
    if step.attrs.once or not right.any():
        return product
    half = np.where(right > 0, np.left_shift(np.int64(1), np.maximum(right, 1) - 1), 0)
    below = words.binary("right_shift", product, 31)
    if not right.all():
        below = words.binary("bitwise_and", below, along(np.where(right > 0, -1, 0)))
    moved = words.add(words.add(product, along(half)), below)
    return words.binary("right_shift", moved, along(right))


@FLower.register(fixed_point_rescale)
def fixed_point_rescale_lower(
    call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder
) -> Lowered:
    """The sums of the body; factors are read along the axis."""
    data, multiplier, shift = inputs
    attrs = FixedPointRescaleAttrs.of(call)
    axis = attrs.axis

    def number(value: int) -> Scalar:
        return IntImm(value, "int32")

    def at(indices: tuple[Scalar, ...]) -> Scalar:
        place = (IntImm(0) if axis is None else indices[axis % len(data.shape)],)
        amount = shift.at(place)
        if attrs.once:
            factors = (data.at(indices), multiplier.at(place), amount)
            return Intrin("fixed_point_multiply", factors)
        right = Bin("max", Bin("-", number(0), amount), number(0))
        raised = Bin("<<", data.at(indices), Bin("max", amount, number(0)))
        product = Intrin("fixed_point_multiply", (raised, multiplier.at(place), number(0)))
        one = Bin("min", right, number(1))
        rounds = Bin("-", number(0), one)
        half = Bin("&", Bin("<<", number(1), Bin("-", right, one)), rounds)
        below = Bin("&", Bin(">>", product, number(31)), rounds)
        return Bin(">>", Bin("+", Bin("+", product, half), below), right)

    return [TensorView.of(data.shape, at)]


@FConvertLayout.register(fixed_point_rescale)
def fixed_point_rescale_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """The axis follows that of the data."""
    along = FixedPointRescaleAttrs.of(call).axis is not None
    return (axis_layout if along else data_layout)(call, orders)
