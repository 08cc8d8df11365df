"""lookup(data, table): out = table[min(data - smallest value of its dtype, len(table) - 1)].

Any function of 8-bit integers is a table of 256 entries: entry 0 is for -128 of an int8, for 0 of
a uint8. A shorter table repeats its last entry.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type, integer_range
from compiler.lir import index
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Cast, Scalar
from compiler.ops.arg_types import Types, check_dtype, tensor, tensor_of_rank
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute

OP = "lookup"
INDEX_DTYPES = ("int8", "uint8", "int16", "uint16")


@define_op(OP, arg_names=("data", "table"), pattern=OpPattern.ELEMWISE)
def lookup(types: Types, attrs: Any) -> Type:
    """The shape of the data, the dtype of the table.

    Raises:
        TypeInferenceError: the data are wider than 16 bits or no integers, or the table is empty.
    """
    data = tensor(OP, types, 0, "data")
    check_dtype(OP, data, INDEX_DTYPES)
    table = tensor_of_rank(OP, types, 1, "table", 1)
    if table.shape[0] == 0:
        raise TypeInferenceError(f"{OP}: argument 1 (table) is {table}, it needs an entry")
    return TensorType(data.shape, table.dtype)


@FNumpyCompute.register(lookup)
def lookup_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """A copy."""
    data, table = args
    place = data.astype(np.int64) - integer_range(str(data.dtype))[0]
    return [table[np.minimum(place, table.size - 1)]]


@FLower.register(lookup)
def lookup_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One load; the data are moved to start at 0."""
    data = inputs[0]
    table = b.reusable(inputs[1])
    lowest = integer_range(data.dtype)[0]
    last = table.shape[0] - 1

    def at(indices: tuple[Scalar, ...]) -> Scalar:
        place = index.plus(Cast("int32", data.at(indices)), -lowest)
        return table.at((index.binary("min", place, index.imm(last)),))

    return [TensorView.of(data.shape, at)]
