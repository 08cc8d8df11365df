"""squeeze(axis): drops axes of size 1; None drops all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.errors import TypeInferenceError
from compiler.ir.op import RESHAPE, OpPattern, define_op
from compiler.ir.ty import Shape, TensorType, Type
from compiler.ops.arg_types import Types, normalize_axes, tensor
from compiler.ops.op_attrs import Axes, OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class SqueezeAttrs(OpAttrs):
    """The axes to drop, each of size 1; None means every axis of size 1."""

    axis: Axes = None


def squeezed_axes(shape: Shape, axis: Axes) -> tuple[int, ...]:
    """Positions that are dropped.

    Raises:
        TypeInferenceError: a named axis is not of size 1.
    """
    if axis is None:
        return tuple(k for k, d in enumerate(shape) if d == 1 and isinstance(d, int))
    named = axis if isinstance(axis, tuple) else (axis,)
    axes = normalize_axes("squeeze", named, len(shape))
    for k in axes:
        if isinstance(shape[k], int) and shape[k] != 1:
            raise TypeInferenceError(f"squeeze: axis {k} has size {shape[k]}, not 1")
    return axes


@define_op(
    "squeeze",
    arg_names=("data",),
    attrs_type=SqueezeAttrs,
    pattern=OpPattern.INJECTIVE,
    flags=(RESHAPE,),
)
def squeeze(types: Types, attrs: SqueezeAttrs) -> Type:
    """The shape without the dropped axes."""
    data = tensor("squeeze", types, 0, "data")
    dropped = squeezed_axes(data.shape, attrs.axis)
    return TensorType(tuple(d for k, d in enumerate(data.shape) if k not in dropped), data.dtype)


@FNumpyCompute.register(squeeze)
def squeeze_numpy(attrs: SqueezeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    return [args[0].squeeze(squeezed_axes(args[0].shape, attrs.axis))]
