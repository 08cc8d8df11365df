"""nn.integer_softmax(data, table): softmax of narrow integers by a table of exponentials.

    d = max(data) - data                                  along ``axis``, >= 0
    e = table[min(d, len(table) - 1)]                     table[d] = round(exp(-d * scale) * 2^q)
    out = floor((e * 2^(out_bits + 1) + S) / (2 * S))     S = sum of e along ``axis``

The quotient is exact and rounded half up; out / 2^out_bits is the probability. With entries of at
most 2^30 / N for N summands, S fits in 31 bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, check_dtype, normalize_axis, tensor_of_rank
from compiler.ops.number_format import Array
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.lookup import INDEX_DTYPES

OP = "nn.integer_softmax"
MAX_OUT_BITS = 20


class IntegerSoftmaxAttrs(OpAttrs):
    """The axis whose values sum to 2^out_bits, up to rounding."""

    axis: int = -1
    out_bits: int = 15


@define_op(OP, arg_names=("data", "table"), pattern=OpPattern.OPAQUE)
def integer_softmax(types: Types, attrs: IntegerSoftmaxAttrs) -> Type:
    """The shape of the data, int32.

    Raises:
        TypeInferenceError: dtypes are not narrow integers and an int32 table, or out_bits is not
            within 1 .. 20.
    """
    data = tensor_of_rank(OP, types, 0, "data", 1, at_least=True)
    check_dtype(OP, data, INDEX_DTYPES)
    normalize_axis(OP, attrs.axis, len(data.shape))
    check_table(OP, types)
    if not 1 <= attrs.out_bits <= MAX_OUT_BITS:
        raise TypeInferenceError(
            f"{OP}: out_bits {attrs.out_bits} is not between 1 and {MAX_OUT_BITS}"
        )
    return TensorType(data.shape, "int32")


def check_table(op: str, types: Types) -> None:
    """The exponentials, argument 1.

    Raises:
        TypeInferenceError: they are no int32, or none.
    """
    table = tensor_of_rank(op, types, 1, "table", 1)
    if table.dtype != "int32" or table.shape[0] == 0:
        raise TypeInferenceError(
            f"{op}: argument 1 (table) is {table}, int32 with at least one entry is needed"
        )


@FNumpyCompute.register(integer_softmax)
def integer_softmax_numpy(attrs: IntegerSoftmaxAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """In int64; entries below 0 count as 0, and a sum of 0 as 1."""
    data, table = args
    if data.size == 0:
        return [data.astype(np.int32)]
    e = exponentials_of(data, table, attrs.axis)
    total = np.maximum(e.sum(axis=attrs.axis, keepdims=True), 1)
    quotient = ((e << (attrs.out_bits + 1)) + total) // (2 * total)
    return [quotient.astype(np.int32)]


def exponentials_of(data: Array, table: Array, axis: int) -> Array:
    """The entry of every difference from the largest along an axis, int64; below 0 it is 0."""
    wide = data.astype(np.int64)
    place = wide.max(axis=axis, keepdims=True) - wide
    return np.asarray(np.maximum(table.astype(np.int64), 0)[np.minimum(place, table.size - 1)])


@FBody.register(integer_softmax)
def integer_softmax_body(step: Step, words: Words) -> Value:
    """As the module says; the last limit is met anyway, and tells the bounds."""
    data, table = step.args
    attrs = step.attrs
    axes = (attrs.axis % len(data.type.shape),)
    wide = words.cast(data, "int32")
    place = words.subtract(words.reduce("max", wide, axes), wide)
    e = words.maximum(words.take(table, place, 0), 0)
    total = words.cast(words.maximum(words.reduce("sum", e, axes), 1), "int64")
    e = words.cast(e, "int64")
    scaled = words.add(words.multiply(e, 1 << (attrs.out_bits + 1)), total)
    quotient = words.binary("floor_divide", scaled, words.multiply(total, 2))
    return words.cast(words.minimum(quotient, 1 << attrs.out_bits), "int32")
