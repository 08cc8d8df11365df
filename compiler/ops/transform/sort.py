"""topk along one axis. Equal values keep their order; NaN is the largest."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, TupleType, Type, integer_range
from compiler.lir.builder import LirBuilder
from compiler.ops.arg_types import Types, check_integer_dtype, normalize_axis, tensor
from compiler.ops.number_format import storage_dtype
from compiler.ops.op_attrs import OpAttrs, Size
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views, library_routine
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.zero_point import FQZeroPoint, taken


class TopKAttrs(OpAttrs):
    """Number of elements (below 1: all), and form of the result: "both", "values" or "indices"."""

    k: Size = 1
    axis: int = -1
    ret_type: str = "both"
    is_ascend: bool = False
    dtype: str = "int32"


@define_op("topk", pattern=OpPattern.OPAQUE)
def topk(types: Types, attrs: TopKAttrs) -> Type:
    """Values and positions, or one of them.

    Raises:
        TypeInferenceError: k exceeds the axis, or ret_type is unknown.
    """
    data = tensor("topk", types, 0, "data")
    axis = normalize_axis("topk", attrs.axis, len(data.shape))
    size = data.shape[axis]
    if isinstance(size, int) and attrs.k > size:
        raise TypeInferenceError(f"topk: k={attrs.k} exceeds the {size} elements of axis {axis}")
    count = size if attrs.k < 1 else attrs.k
    shape = (*data.shape[:axis], count, *data.shape[axis + 1 :])
    values = TensorType(shape, data.dtype)
    indices = TensorType(shape, check_integer_dtype("topk", attrs.dtype))
    if attrs.ret_type == "both":
        return TupleType((values, indices))
    if attrs.ret_type not in ("values", "indices"):
        raise TypeInferenceError(
            f"topk: ret_type {attrs.ret_type!r} is unknown", fix="both, values or indices"
        )
    if attrs.ret_type == "values":
        return values
    return indices


def ordering(data: NDArray[Any], axis: int, ascending: bool) -> NDArray[np.int64]:
    """Positions of the elements in order; equal ones by position in both directions."""
    if ascending:
        return np.argsort(data, axis=axis, kind="stable")
    # Sorted backwards and read backwards, equal elements are in front-to-back order again.
    turned = np.argsort(np.flip(data, axis=axis), axis=axis, kind="stable")
    return np.asarray(data.shape[axis] - 1 - np.flip(turned, axis=axis))


@FNumpyCompute.register(topk)
def topk_numpy(attrs: TopKAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The first k of a full stable sort."""
    data = args[0]
    order = ordering(data, attrs.axis, attrs.is_ascend)
    if attrs.k >= 1:
        order = np.take(order, np.arange(attrs.k), axis=attrs.axis)
    values = np.take_along_axis(data, order, axis=attrs.axis)
    indices = order.astype(storage_dtype(attrs.dtype))
    if attrs.ret_type == "both":
        return [values, indices]
    return [values if attrs.ret_type == "values" else indices]


MOST: Final = 64
"""Elements that an integer module puts in order: each is found by one walk over all of them."""
_WIDER: Final = {
    **dict.fromkeys(("int8", "uint8", "int16", "uint16"), "int32"),
    **dict.fromkeys(("int32", "uint32"), "int64"),
}


@FBody.register(topk)
def topk_body(step: Step, words: Words) -> Value | None:
    """The largest, and again without those that were found; places only.

    The data are held in a dtype in which something is less than all of them.
    """
    (data,), result = step.args, step.results[0]
    axis = step.attrs.axis % len(data.type.shape)
    shape = shape_of(data)
    count = shape_of(result)[axis]
    if step.attrs.ret_type != "indices" or count > MOST or data.type.dtype not in _WIDER:
        return None
    rest = words.mirrored(data) if step.attrs.is_ascend else data
    rest = words.cast(rest, _WIDER[data.type.dtype])
    places = words.places(shape, axis)
    lowest = words.constant(integer_range(rest.type.dtype)[0], rest.type.dtype)
    found = []
    for _ in range(count):
        found.append(words.reduce("argmax", rest, (axis,), dtype="int64"))
        taken = words.equal(places, words.broadcast(found[-1], shape))
        rest = words.where(taken, lowest, rest)
    return words.cast(words.concatenate(found, axis), result.type.dtype)


_ROUTINE: Final = library_routine("topk", topk_numpy)


@FLower.register(topk)
def topk_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered | None:
    """The loops of its words, or a routine of the library."""
    attrs = TopKAttrs.of(call)
    few = out_types[0].concrete_shape[attrs.axis] <= MOST
    if few and attrs.ret_type == "indices" and inputs[0].dtype in _WIDER:
        return None
    return _ROUTINE(call, inputs, out_types, b)


FQZeroPoint.register("topk")(taken)
