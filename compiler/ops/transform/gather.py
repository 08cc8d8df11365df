"""gather(data, indices; axis): element-wise selection along one axis (ONNX's GatherElements)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, index_tensor, normalize_axis, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.take import kept_inside


@dataclass(frozen=True, eq=False)
class GatherAttrs(OpAttrs):
    """The axis the indices count along."""

    axis: int


@define_op(
    "gather", arg_names=("data", "indices"), attrs_type=GatherAttrs, pattern=OpPattern.INJECTIVE
)
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


@FNumpyCompute.register(gather)
def gather_numpy(attrs: GatherAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Indices outside are clipped."""
    data, indices = args
    axis = attrs.axis % data.ndim
    inside = kept_inside(indices, data.shape[axis], "clip")
    crop = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(inside.shape))
    return [np.take_along_axis(data[crop], inside, axis=axis)]


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
