"""broadcast_to(shape) and broadcast_to_like(data, like): axes of size 1 are repeated.
reshape_like(data, like) and slice_like(data, like; axes): shapes taken from another tensor.
tile(reps): the tensor repeated along each axis; repeat(repeats, axis): each element.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Dim, Shape, TensorType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.ops.arg_types import (
    Types,
    normalize_axes,
    normalize_axis,
    product_of,
    shape_text,
    tensor,
)
from compiler.ops.op_attrs import Axes, OpAttrs, Size, Sizes
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute, of_arrays
from compiler.ops.tensor.broadcast import broadcast_shape


class BroadcastToAttrs(OpAttrs):
    """The shape of the result."""

    shape: Sizes


def _repeated(op: str, data: TensorType, shape: Shape) -> Type:
    if broadcast_shape(op, data.shape, shape) != shape:
        raise TypeInferenceError(
            f"{op}: {shape_text(data.shape)} does not broadcast to {shape_text(shape)}"
        )
    return TensorType(shape, data.dtype)


@define_op("broadcast_to", pattern=OpPattern.BROADCAST)
def broadcast_to(types: Types, attrs: BroadcastToAttrs) -> Type:
    """The named shape.

    Raises:
        TypeInferenceError: the data do not broadcast to it.
    """
    if any(d < 0 for d in attrs.shape):
        raise TypeInferenceError(f"broadcast_to: shape {list(attrs.shape)} has a negative size")
    return _repeated("broadcast_to", tensor("broadcast_to", types, 0, "data"), attrs.shape)


@define_op("broadcast_to_like", arg_names=("data", "like"), pattern=OpPattern.BROADCAST)
def broadcast_to_like(types: Types, attrs: Any) -> Type:
    """The shape of argument 1."""
    data = tensor("broadcast_to_like", types, 0, "data")
    like = tensor("broadcast_to_like", types, 1, "like")
    return _repeated("broadcast_to_like", data, like.shape)


@FNumpyCompute.register(broadcast_to)
def broadcast_to_numpy(attrs: BroadcastToAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy, so that every element has memory of its own."""
    return [np.array(np.broadcast_to(args[0], attrs.shape))]


@FNumpyCompute.register(broadcast_to_like)
def broadcast_to_like_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Broadcast as broadcast_to."""
    return [np.array(np.broadcast_to(args[0], args[1].shape))]


@FLower.register(broadcast_to, broadcast_to_like)
def broadcast_to_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Index 0 on axes of size 1."""
    data = inputs[0]
    return [TensorView.of(out_types[0].concrete_shape, data.broadcast_at)]


@FBody.register("broadcast_to_like")
def broadcast_to_like_body(step: Step, words: Words) -> Value:
    """broadcast_to with the shape of the other."""
    return words.broadcast(step.args[0], shape_of(step.results[0]))


# ---- like --------------------------------------------------------------------------------------


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
    counts = product_of(data.shape), product_of(like.shape)
    if isinstance(counts[0], int) and isinstance(counts[1], int) and counts[0] != counts[1]:
        raise TypeInferenceError(f"reshape_like: {data} and {like} differ in element count")
    return TensorType(like.shape, data.dtype)


def _cut_axes(rank: int, axes: Axes) -> tuple[int, ...]:
    named = axes if isinstance(axes, tuple) else () if axes is None else (axes,)
    return normalize_axes("slice_like", named, rank, "axes") or tuple(range(rank))


@define_op("slice_like", arg_names=("data", "like"), pattern=OpPattern.INJECTIVE)
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
        size = dims[axis]
        wanted = like.shape[axis]
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


# ---- tile ----------------------------------------------------------------------------------------


class TileAttrs(OpAttrs):
    """Repetitions per axis, aligned from the right."""

    reps: Sizes


class RepeatAttrs(OpAttrs):
    """Number of repetitions of each element along ``axis`` (None: of the flat tensor)."""

    repeats: Size
    axis: int | None = None


@define_op("tile", pattern=OpPattern.BROADCAST)
def tile(types: Types, attrs: TileAttrs) -> Type:
    """Missing axes and repetitions count as 1.

    Raises:
        TypeInferenceError: a repetition is negative.
    """
    data = tensor("tile", types, 0, "data")
    if any(r < 0 for r in attrs.reps):
        raise TypeInferenceError(f"tile: reps {list(attrs.reps)} has a negative value")
    rank = max(len(data.shape), len(attrs.reps))
    shape: tuple[Dim, ...] = (*(1 for _ in range(rank - len(data.shape))), *data.shape)
    reps = [1] * (rank - len(attrs.reps)) + list(attrs.reps)
    return TensorType(tuple(map(product_of, zip(shape, reps))), data.dtype)


@define_op("repeat", pattern=OpPattern.BROADCAST)
def repeat(types: Types, attrs: RepeatAttrs) -> Type:
    """The axis grows by the factor.

    Raises:
        TypeInferenceError: the factor is negative.
    """
    data = tensor("repeat", types, 0, "data")
    if attrs.repeats < 0:
        raise TypeInferenceError(f"repeat: repeats {attrs.repeats} is negative")
    if attrs.axis is None:
        return TensorType((product_of((*data.shape, attrs.repeats)),), data.dtype)
    axis = normalize_axis("repeat", attrs.axis, len(data.shape))
    dims = list(data.shape)
    dims[axis] = product_of((dims[axis], attrs.repeats))
    return TensorType(tuple(dims), data.dtype)


@FNumpyCompute.register(tile)
def tile_numpy(attrs: TileAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy."""
    return [np.tile(args[0], attrs.reps)]


@FNumpyCompute.register(repeat)
def repeat_numpy(attrs: RepeatAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy."""
    return [np.repeat(args[0], attrs.repeats, axis=attrs.axis)]


@FBody.register("tile")
def tile_body(step: Step, words: Words) -> Value:
    """Each axis is taken again and again."""
    (data,) = step.args
    shape = shape_of(step.results[0])
    found = words.reshape(data, (1,) * (len(shape) - len(data.type.shape)) + shape_of(data))
    for axis, size in enumerate(shape):
        own = shape_of(found)[axis]
        if own != size:
            found = words.take(found, np.arange(size) % max(own, 1), axis)
    return found


@FBody.register("repeat")
def repeat_body(step: Step, words: Words) -> Value:
    """Every element of an axis is taken several times."""
    (data,) = step.args
    attrs = step.attrs
    if attrs.axis is None:
        data = words.reshape(data, (math.prod(shape_of(data)),))
    axis = 0 if attrs.axis is None else attrs.axis % len(data.type.shape)
    return words.take(data, np.repeat(np.arange(shape_of(data)[axis]), attrs.repeats), axis)
