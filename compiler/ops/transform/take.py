"""take(data, indices; axis, batch_dims, mode): slices of data by index along one axis.

Without an axis the data are taken flat. Mode "clip" moves indices outside to the nearest end,
"wrap" counts around, "fast" trusts them (here: like clip).
gather(data, indices; axis): element-wise selection along one axis (ONNX's GatherElements).
gather_nd(data, indices; batch_dims, index_rank): slices of data at index tuples.

As in Relay the tuples run along axis 0 of the indices: indices (M, …) with M components each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.lir import index
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Bin, Cast, Scalar, literal
from compiler.ops.arg_types import Types, index_tensor, merge_dim, normalize_axis, tensor
from compiler.ops.evaluate import computes_by_body
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.row_major import reshaped


class TakeAttrs(OpAttrs):
    """Axis (None: flat), leading axes shared with the indices, and what indices outside mean."""

    axis: int | None = None
    batch_dims: int = 0
    mode: str = "clip"


@define_op("take", arg_names=("data", "indices"), pattern=OpPattern.INJECTIVE)
def take(types: Types, attrs: TakeAttrs) -> Type:
    """data[:axis] + indices[batch_dims:] + data[axis+1:].

    Raises:
        TypeInferenceError: indices are no integers, or batch axes do not agree.
    """
    data = tensor("take", types, 0, "data")
    indices = index_tensor("take", types, 1, "indices")
    if attrs.mode not in ("clip", "wrap", "fast"):
        raise TypeInferenceError(f"take: mode {attrs.mode!r} is unknown", fix="clip, wrap or fast")
    if attrs.axis is None:
        return TensorType(indices.shape, data.dtype)
    axis = normalize_axis("take", attrs.axis, len(data.shape))
    batch = attrs.batch_dims
    if not 0 <= batch <= min(axis, len(indices.shape)):
        raise TypeInferenceError(
            f"take: batch_dims {batch} is not between 0 and axis {axis} and the rank of {indices}"
        )
    for k in range(batch):
        merge_dim("take", data.shape[k], indices.shape[k], f"size of batch axis {k}")
    shape = (*data.shape[:axis], *indices.shape[batch:], *data.shape[axis + 1 :])
    return TensorType(shape, data.dtype)


def kept_inside(indices: NDArray[Any], size: int, mode: str) -> NDArray[Any]:
    """Indices as positions in [0, size)."""
    wide = indices.astype(np.int64)
    return np.asarray(wide % size if mode == "wrap" else np.clip(wide, 0, size - 1))


@FNumpyCompute.register(take)
def take_numpy(attrs: TakeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy."""
    data, indices = args
    if attrs.axis is None:
        return [data.reshape(-1)[kept_inside(indices, data.size, attrs.mode)]]
    axis = attrs.axis % data.ndim
    inside = kept_inside(indices, data.shape[axis], attrs.mode)
    if attrs.batch_dims == 0:
        return [np.take(data, inside, axis=axis)]
    batch = data.shape[: attrs.batch_dims]
    out = np.empty(
        (*data.shape[:axis], *inside.shape[attrs.batch_dims :], *data.shape[axis + 1 :]), data.dtype
    )
    for at in np.ndindex(*batch):
        out[at] = np.take(data[at], inside[at], axis=axis - attrs.batch_dims)
    return [out]


def position(value: Scalar, size: int, mode: str) -> Scalar:
    """An index value as one of [0, size)."""
    if mode != "wrap":
        return index.clamped(value, size)
    wide = value if value.dtype == "int64" else Cast("int64", value)
    return Cast("int32", Bin("floormod", wide, literal(size, "int64")))


@FLower.register(take)
def take_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One load at a computed index."""
    attrs = TakeAttrs.of(call)
    data = inputs[0]
    indices = b.reusable(inputs[1])
    if attrs.axis is None:
        flat = reshaped(data, (math.prod(data.shape),))
        size = flat.shape[0]
        return [
            TensorView.of(
                indices.shape, lambda at: flat.at((position(indices.at(at), size, attrs.mode),))
            )
        ]
    axis = attrs.axis % len(data.shape)
    shared = attrs.batch_dims
    inner = len(indices.shape) - attrs.batch_dims

    def element(at: tuple[Scalar, ...]) -> Scalar:
        where = indices.at((*at[:shared], *at[axis : axis + inner]))
        place = position(where, data.shape[axis], attrs.mode)
        return data.at((*at[:axis], place, *at[axis + inner :]))

    return [TensorView.of(out_types[0].concrete_shape, element)]


@FBody.register("take")
def take_body(step: Step, words: Words) -> Value | None:
    """Take along a named axis, right behind those that are shared."""
    data, indices = step.args
    attrs = step.attrs
    batch = step.attrs.batch_dims
    rank = len(data.type.shape)
    if attrs.axis is None:
        flat = words.reshape(data, (math.prod(shape_of(data)),))
        return words.take(flat, indices, 0, 0, attrs.mode)
    axis = attrs.axis % rank
    if batch in (0, axis):
        if axis == attrs.axis:
            return None
        return words.take(data, indices, axis, batch, attrs.mode)
    # The axis behind those that it shares, and back behind the others.
    between = range(batch, axis)
    inner = len(indices.type.shape) - batch
    data = words.transpose(data, [*range(batch), axis, *between, *range(axis + 1, rank)])
    found = words.take(data, indices, batch, batch, attrs.mode)
    first = batch + inner
    behind = [*range(first, first + len(between)), *range(batch, first)]
    rest = range(first + len(between), len(found.type.shape))
    return words.transpose(found, [*range(batch), *behind, *rest])


# ---- gather ------------------------------------------------------------------------------------


class GatherAttrs(OpAttrs):
    """The axis the indices count along."""

    axis: int


@define_op("gather", arg_names=("data", "indices"), pattern=OpPattern.INJECTIVE)
def gather(types: Types, attrs: GatherAttrs) -> Type:
    """Shape of the indices; on the other axes it may not exceed the data.

    Raises:
        TypeInferenceError: ranks differ or the indices reach beyond the data.
    """
    data = tensor("gather", types, 0, "data")
    indices = index_tensor("gather", types, 1, "indices")
    axis = normalize_axis("gather", attrs.axis, len(data.shape))
    if len(indices.shape) != len(data.shape):
        raise TypeInferenceError(f"gather: data {data} and indices {indices} differ in rank")
    for k, (d, i) in enumerate(zip(data.shape, indices.shape)):
        if k != axis and isinstance(d, int) and isinstance(i, int) and i > d:
            raise TypeInferenceError(f"gather: indices {indices} reach beyond data {data}")
    return TensorType(indices.shape, data.dtype)


@computes_by_body(gather)
@FBody.register("gather")
def gather_body(step: Step, words: Words) -> Value:
    """The axis last, and all others its batch."""
    data, indices = step.args
    rank = len(data.type.shape)
    axis = step.attrs.axis % rank
    for other, size in enumerate(shape_of(indices)):
        if other != axis:
            data = words.slice(data, other, 0, size)
    order = [*(k for k in range(rank) if k != axis), axis]
    back = [order.index(k) for k in range(rank)]
    found = words.take(
        words.transpose(data, order), words.transpose(indices, order), rank - 1, rank - 1
    )
    return words.transpose(found, back)


# ---- gather_nd ---------------------------------------------------------------------------------


class GatherNDAttrs(OpAttrs):
    """Leading axes shared by data and indices, and the length of a tuple when it is not static."""

    batch_dims: int = 0
    index_rank: int | None = None


@define_op("gather_nd", arg_names=("data", "indices"), pattern=OpPattern.INJECTIVE)
def gather_nd(types: Types, attrs: GatherNDAttrs) -> Type:
    """indices[1:] + data[batch_dims + M:].

    Raises:
        TypeInferenceError: tuples are longer than the rank of the data, or of unknown length.
    """
    data = tensor("gather_nd", types, 0, "data")
    indices = index_tensor("gather_nd", types, 1, "indices")
    if not indices.shape:
        raise TypeInferenceError("gather_nd: indices are a scalar, rank 1 or more is needed")
    length = indices.shape[0] if isinstance(indices.shape[0], int) else attrs.index_rank
    batch = attrs.batch_dims
    if not length or batch < 0 or batch + length > len(data.shape):
        raise TypeInferenceError(
            f"gather_nd: tuples of {length} after {batch} batch axes do not index {data}"
        )
    if len(indices.shape) - 1 < batch:
        raise TypeInferenceError(f"gather_nd: indices {indices} lack the {batch} batch axes")
    for k in range(batch):
        merge_dim("gather_nd", data.shape[k], indices.shape[k + 1], f"size of batch axis {k}")
    return TensorType((*indices.shape[1:], *data.shape[batch + length :]), data.dtype)


@computes_by_body(gather_nd)
@FBody.register("gather_nd")
def gather_nd_body(step: Step, words: Words) -> Value:
    """The places of tuples, row-major over the axes that they name."""
    data, indices = step.args
    batch = step.attrs.batch_dims
    shape = shape_of(data)
    named = shape[batch : batch + shape_of(indices)[0]]
    flat = words.reshape(data, (*shape[:batch], math.prod(named), *shape[batch + len(named) :]))
    return words.take(flat, flat_places(words, indices, named), batch, batch)


def flat_places(words: Words, indices: Value, named: tuple[int, ...]) -> Value:
    """Row-major numbers of the tuples along axis 0 in a tensor of sizes ``named``, in int64."""
    if indices.data is not None:
        known = [kept_inside(part, n, "clip") for part, n in zip(indices.data, named)]
        return words.constant(np.ravel_multi_index(known, named), "int64")
    rest = shape_of(indices)[1:]
    place = words.constant(0, "int64")
    for number, size in enumerate(named):
        part = words.reshape(words.slice(indices, 0, number, number + 1), rest)
        inside = words.clip(words.cast(part, "int64"), 0, size - 1)
        if number:
            place = words.add(words.multiply(place, size), inside)
        else:
            place = inside
    return place
