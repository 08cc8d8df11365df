"""take(data, indices; axis, batch_dims, mode): slices of data by index along one axis.

Without an axis the data are taken flat. Mode "clip" moves indices outside to the nearest end,
"wrap" counts around, "fast" trusts them (here: like clip).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.row_major import reshaped


@dataclass(frozen=True, eq=False)
class TakeAttrs(OpAttrs):
    """Axis (None: flat), leading axes shared with the indices, and what indices outside mean."""

    axis: int | None = None
    batch_dims: int = 0
    mode: str = "clip"


@define_op("take", arg_names=("data", "indices"), attrs_type=TakeAttrs, pattern=OpPattern.INJECTIVE)
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
    data, indices = inputs[0], b.reusable(inputs[1])
    if attrs.axis is None:
        flat = reshaped(data, (math.prod(data.shape),))
        size = flat.shape[0]
        return [
            TensorView.of(
                indices.shape, lambda at: flat.at((position(indices.at(at), size, attrs.mode),))
            )
        ]
    axis = attrs.axis % len(data.shape)
    shared, inner = attrs.batch_dims, len(indices.shape) - attrs.batch_dims

    def element(at: tuple[Scalar, ...]) -> Scalar:
        where = indices.at((*at[:shared], *at[axis : axis + inner]))
        place = position(where, data.shape[axis], attrs.mode)
        return data.at((*at[:axis], place, *at[axis + inner :]))

    return [TensorView.of(out_types[0].concrete_shape, element)]


@FBody.register("take")
def take_body(step: Step, words: Words) -> Value | None:
    """Of a named axis, right behind those that are shared."""
    data, indices = step.args
    attrs, batch = step.attrs, step.attrs.batch_dims
    rank = len(data.type.shape)
    if attrs.axis is None:
        flat = words.reshape(data, (math.prod(shape_of(data)),))
        return words.take(flat, indices, 0, 0, attrs.mode)
    axis = attrs.axis % rank
    if batch in (0, axis):
        return None if axis == attrs.axis else words.take(data, indices, axis, batch, attrs.mode)
    # The axis behind those that it shares, and back behind the others.
    between, inner = range(batch, axis), len(indices.type.shape) - batch
    data = words.transpose(data, [*range(batch), axis, *between, *range(axis + 1, rank)])
    found = words.take(data, indices, batch, batch, attrs.mode)
    first = batch + inner
    behind = [*range(first, first + len(between)), *range(batch, first)]
    rest = range(first + len(between), len(found.type.shape))
    return words.transpose(found, [*range(batch), *behind, *rest])
