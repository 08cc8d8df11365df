"""gather_nd(data, indices; batch_dims, index_rank): slices of data at index tuples.

As in Relay the tuples run along axis 0 of the indices: indices (M, …) with M components each.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, index_tensor, merge_dim, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.take import kept_inside


@dataclass(frozen=True, eq=False)
class GatherNDAttrs(OpAttrs):
    """Leading axes shared by data and indices, and the length of a tuple when it is not static."""

    batch_dims: int = 0
    index_rank: int | None = None


@define_op(
    "gather_nd",
    arg_names=("data", "indices"),
    attrs_type=GatherNDAttrs,
    pattern=OpPattern.INJECTIVE,
)
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


@FNumpyCompute.register(gather_nd)
def gather_nd_numpy(attrs: GatherNDAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Indices outside are clipped."""
    data, indices = args
    batch = attrs.batch_dims
    index: list[Any] = []
    for k in range(batch):
        shape = [1] * (indices.ndim - 1)
        shape[k] = data.shape[k]
        index.append(np.arange(data.shape[k]).reshape(shape))
    for k in range(indices.shape[0]):
        index.append(kept_inside(indices[k], data.shape[batch + k], "clip"))
    return [data[tuple(index)]]


@FBody.register("gather_nd")
def gather_nd_body(step: Step, words: Words) -> Value:
    """The places of tuples, row-major over the axes that they name."""
    data, indices = step.args
    batch, shape = step.attrs.batch_dims, shape_of(data)
    named = shape[batch : batch + shape_of(indices)[0]]
    flat = words.reshape(data, (*shape[:batch], math.prod(named), *shape[batch + len(named) :]))
    if indices.data is not None:
        known = [kept_inside(part, n, "clip") for part, n in zip(indices.data, named)]
        return words.take(flat, np.ravel_multi_index(known, named), batch, batch)
    rest = shape_of(indices)[1:]
    place = words.constant(0, "int64")
    for number, size in enumerate(named):
        part = words.reshape(words.slice(indices, 0, number, number + 1), rest)
        inside = words.clip(words.cast(part, "int64"), 0, size - 1)
        place = words.add(words.multiply(place, size), inside)
    return words.take(flat, place, batch, batch)
