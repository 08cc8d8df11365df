"""reshape_like(data, like) and slice_like(data, like; axes): shapes taken from another tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, normalize_axes, static, tensor
from compiler.ops.op_attrs import Axes, OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute, of_arrays


@dataclass(frozen=True, eq=False)
class SliceLikeAttrs(OpAttrs):
    """Axes that are cut; none named means all."""

    axes: Axes = None


@define_op("reshape_like", arg_names=("data", "like"), pattern=OpPattern.INJECTIVE)
def reshape_like(types: Types, attrs: Any) -> Type:
    """Shape of argument 1, dtype of argument 0.

    Raises:
        TypeInferenceError: the element counts differ.
    """
    data = tensor("reshape_like", types, 0, "data")
    like = tensor("reshape_like", types, 1, "like")
    if static(data.shape) and static(like.shape):
        have = math.prod(d for d in data.shape if isinstance(d, int))
        want = math.prod(d for d in like.shape if isinstance(d, int))
        if have != want:
            raise TypeInferenceError(f"reshape_like: {data} and {like} differ in element count")
    return TensorType(like.shape, data.dtype)


def _cut_axes(rank: int, axes: Axes) -> tuple[int, ...]:
    named = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
    return normalize_axes("slice_like", named, rank, "axes") or tuple(range(rank))


@define_op(
    "slice_like", arg_names=("data", "like"), attrs_type=SliceLikeAttrs, pattern=OpPattern.INJECTIVE
)
def slice_like(types: Types, attrs: SliceLikeAttrs) -> Type:
    """The leading elements of each cut axis, as many as the other tensor has.

    Raises:
        TypeInferenceError: an axis is missing, or shorter in the data.
    """
    data = tensor("slice_like", types, 0, "data")
    like = tensor("slice_like", types, 1, "like")
    dims = list(data.shape)
    for axis in _cut_axes(len(dims), attrs.axes):
        if axis >= len(like.shape):
            raise TypeInferenceError(f"slice_like: {like} has no axis {axis}")
        size, wanted = dims[axis], like.shape[axis]
        if isinstance(size, int) and isinstance(wanted, int) and wanted > size:
            raise TypeInferenceError(f"slice_like: axis {axis} of {data} is shorter than {wanted}")
        dims[axis] = wanted
    return TensorType(tuple(dims), data.dtype)


FNumpyCompute.register(reshape_like)(of_arrays(lambda data, like: data.reshape(like.shape)))


@FNumpyCompute.register(slice_like)
def slice_like_numpy(attrs: SliceLikeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    data, like = args
    index = [slice(None)] * data.ndim
    for axis in _cut_axes(data.ndim, attrs.axes):
        index[axis] = slice(like.shape[axis])
    return [data[tuple(index)]]


@FBody.register("slice_like")
def slice_like_body(step: Step, words: Words) -> Value:
    """The leading elements of each axis."""
    found = step.args[0]
    for axis, size in enumerate(shape_of(step.results[0])):
        found = words.slice(found, axis, 0, size)
    return found
