"""tile(reps): the tensor repeated along each axis; repeat(repeats, axis): each element."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.ops.arg_types import Types, normalize_axis, tensor
from compiler.ops.op_attrs import OpAttrs, Size, Sizes
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


class TileAttrs(OpAttrs):
    """Repetitions per axis, aligned from the right."""

    reps: Sizes


class RepeatAttrs(OpAttrs):
    """How often each element stands in a row along ``axis`` (None: of the flat tensor)."""

    repeats: Size
    axis: int | None = None


def _times(size: Dim, count: int) -> Dim:
    return size if isinstance(size, AnyDim) else size * count


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
    return TensorType(tuple(_times(d, r) for d, r in zip(shape, reps)), data.dtype)


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
        total: Dim = 1
        for d in data.shape:
            total = AnyDim() if isinstance(total, AnyDim) or isinstance(d, AnyDim) else total * d
        return TensorType((_times(total, attrs.repeats),), data.dtype)
    axis = normalize_axis("repeat", attrs.axis, len(data.shape))
    dims = list(data.shape)
    dims[axis] = _times(dims[axis], attrs.repeats)
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
