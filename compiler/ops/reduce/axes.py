"""Attributes and types of reductions over axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step
from compiler.ir.expr import Call, Op
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type, holds_float
from compiler.ops.arg_types import Types, check_floats, normalize_axes, tensor
from compiler.ops.number_format import working
from compiler.ops.op_attrs import Axes, OpAttrs
from compiler.ops.rules.layout import FConvertLayout, Order, Relaid, is_natural
from compiler.ops.rules.numpy_compute import Arrays, NumpyCompute

Dim = TypeVar("Dim")


class ReduceAttrs(OpAttrs):
    """Axes to reduce (None or empty: all), kept as size 1 or not; exclude: the others instead."""

    axis: Axes = None
    keepdims: bool = False
    exclude: bool = False


def reduced_axes(op: str, rank: int, axis: Axes, exclude: bool) -> tuple[int, ...]:
    """Positions that are reduced, ascending.

    Raises:
        TypeInferenceError: an axis is outside the rank or given twice.
    """
    named = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    axes = normalize_axes(op, named, rank)
    if exclude:
        return tuple(k for k in range(rank) if k not in axes)
    if axes:
        return tuple(sorted(axes))
    return tuple(range(rank))


def axes_of(step: Step) -> list[int]:
    """``reduced_axes`` of a call with attributes ``axis`` and perhaps ``exclude``."""
    exclude = getattr(step.attrs, "exclude", False)
    return list(reduced_axes(step.name, len(step.args[0].type.shape), step.attrs.axis, exclude))


def reduced_shape(
    shape: tuple[Dim, ...], axes: tuple[int, ...], keepdims: bool
) -> tuple[Dim | int, ...]:
    """The shape after reducing ``axes``."""
    if keepdims:
        return tuple(1 if k in axes else d for k, d in enumerate(shape))
    return tuple(d for k, d in enumerate(shape) if k not in axes)


def reduction(
    op: str, dtype: str | None = None, floats_only: bool = False, bools_too: bool = False
) -> Op:
    """The operator of a reduction of ``data``; ``dtype`` is what it accepts ("bool") or None for
    numbers, and with ``bools_too`` for anything."""

    def infer(types: Types, attrs: ReduceAttrs) -> Type:
        data = tensor(op, types, 0, "data")
        if (data.dtype == "bool") != (dtype == "bool") and not bools_too:
            need = "bool" if dtype == "bool" else "numbers"
            raise TypeInferenceError(f"{op}: argument 0 (data) is {data}, {need} is needed")
        if floats_only:
            check_floats(op, data)
        axes = reduced_axes(op, len(data.shape), attrs.axis, attrs.exclude)
        return TensorType(reduced_shape(data.shape, axes, attrs.keepdims), data.dtype)

    pattern = OpPattern.COMM_REDUCE
    return define_op(op, attrs_type=ReduceAttrs, pattern=pattern)(infer)


def of_axes(function: Callable[..., Any]) -> NumpyCompute:
    """The values of a reduction: a numpy function over the named axes, of float16 in float32."""

    def compute(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
        data = working(args[0])
        axes = reduced_axes("reduction", data.ndim, attrs.axis, attrs.exclude)
        found = np.asarray(function(data, axis=axes, keepdims=attrs.keepdims))
        return [found.astype(args[0].dtype, copy=False)]

    return compute


@FConvertLayout.register("max", "mean", "min", "sum")
def reduction_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """Sums of integers do not depend on the order of their terms; sums of floats may."""
    attrs: Any = call.attrs
    order = orders[0]
    if is_natural(order) or holds_float(call.args[0].checked_type):
        return None
    axes = reduced_axes("reduction", len(order), attrs.axis, attrs.exclude)
    if not axes:
        return None
    out = order
    if not attrs.keepdims:
        left = [axis for axis in range(len(order)) if axis not in axes]
        out = tuple(left.index(axis) for axis in order if axis not in axes)
    moved = tuple(sorted(order.index(axis) for axis in axes))
    return Relaid((order,), out, replace(attrs, axis=moved, exclude=False))
