"""broadcast_to(shape): axes of size 1 are repeated; reshape_like(data, like).
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
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir.builder import LirBuilder, TensorView
from compiler.ops.arg_types import (
    Types,
    normalize_axis,
    product_of,
    shape_text,
    tensor,
)
from compiler.ops.evaluate import computes_by_body
from compiler.ops.op_attrs import OpAttrs, Size, Sizes
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute, of_arrays
from compiler.ops.tensor.broadcast import broadcast_shape


class BroadcastToAttrs(OpAttrs):
    """The shape of the result."""

    shape: Sizes


@define_op("broadcast_to", pattern=OpPattern.BROADCAST)
def broadcast_to(types: Types, attrs: BroadcastToAttrs) -> Type:
    """The named shape.

    Raises:
        TypeInferenceError: the data do not broadcast to it.
    """
    if any(d < 0 for d in attrs.shape):
        raise TypeInferenceError(f"broadcast_to: shape {list(attrs.shape)} has a negative size")
    data = tensor("broadcast_to", types, 0, "data")
    if broadcast_shape("broadcast_to", data.shape, attrs.shape) != attrs.shape:
        sizes = shape_text(data.shape)
        raise TypeInferenceError(
            f"broadcast_to: {sizes} does not broadcast to {shape_text(attrs.shape)}"
        )
    return TensorType(attrs.shape, data.dtype)


@FNumpyCompute.register(broadcast_to)
def broadcast_to_numpy(attrs: BroadcastToAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A copy, so that every element has memory of its own."""
    return [np.array(np.broadcast_to(args[0], attrs.shape))]


@FLower.register(broadcast_to)
def broadcast_to_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Index 0 on axes of size 1."""
    data = inputs[0]
    return [TensorView.of(out_types[0].concrete_shape, data.broadcast_at)]


# ---- like --------------------------------------------------------------------------------------


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


FNumpyCompute.register(reshape_like)(of_arrays(lambda data, like: data.reshape(like.shape)))


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


@computes_by_body(tile)
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


@computes_by_body(repeat)
@FBody.register("repeat")
def repeat_body(step: Step, words: Words) -> Value:
    """Every element of an axis is taken several times."""
    (data,) = step.args
    attrs = step.attrs
    if attrs.axis is None:
        data = words.reshape(data, (math.prod(shape_of(data)),))
    if attrs.axis is None:
        axis = 0
    else:
        axis = attrs.axis % len(data.type.shape)
    return words.take(data, np.repeat(np.arange(shape_of(data)[axis]), attrs.repeats), axis)
