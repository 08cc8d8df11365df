"""reshape(newshape): the same elements, row-major, under another shape.

Special values: 0 copies the dimension at this source position (unless allowzero), -1 is inferred,
-2 copies all remaining dimensions, -3 merges two, -4 splits one into the next two values.
squeeze(axis): drops axes of size 1; None drops all of them.
expand_dims(axis, num_newaxis): that many axes of size 1 in front of ``axis``.
nn.batch_flatten: (N, d1, …, dk) becomes (N, d1*…*dk).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from compiler.core.words import FBody, reshaped
from compiler.errors import AttrError, TypeInferenceError
from compiler.ir.op import RESHAPE, OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, Shape, TensorType, Type
from compiler.ops.arg_types import (
    Types,
    normalize_axes,
    normalize_axis,
    product_of,
    shape_text,
    static,
    tensor,
    tensor_of_rank,
)
from compiler.ops.op_attrs import Axes, Count, OpAttrs, Sizes
from compiler.ops.rules.layout import FConvertLayout, reshape_layout
from compiler.ops.rules.lower import FLower
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import moves_elements
from compiler.ops.transform.row_major import reshape_lower

_reshaping = partial(define_op, flags=(RESHAPE,))


class ReshapeAttrs(OpAttrs):
    """The new shape with Relay's special values; ``allowzero`` makes 0 a size."""

    newshape: Sizes
    allowzero: bool = False


def new_shape(source: Shape, newshape: tuple[int, ...], allowzero: bool = False) -> Shape:
    """The shape ``newshape`` asks for.

    Raises:
        TypeInferenceError: a special value has nothing to act on, or the element counts differ.
    """
    out: list[Dim] = []
    at = 0
    infer_at = -1
    position = 0
    while position < len(newshape):
        value = newshape[position]
        position += 1
        if value > 0 or (value == 0 and allowzero):
            out.append(value)
            at += 1
        elif value == 0:
            out.append(_source(source, at, newshape))
            at += 1
        elif value == -1:
            if infer_at >= 0:
                raise _error(source, newshape, "has more than one -1")
            infer_at = len(out)
            out.append(1)
            at += 1
        elif value == -2:
            out.extend(source[at:])
            at = max(at, len(source))
        elif value == -3:
            a = _source(source, at, newshape)
            b = _source(source, at + 1, newshape)
            out.append(product_of((a, b)))
            at += 2
        elif value == -4:
            out.extend(_split(source, _source(source, at, newshape), newshape, position))
            position += 2
            at += 1
        else:
            raise _error(source, newshape, f"has the value {value}")
    if infer_at >= 0:
        out[infer_at] = _inferred(source, out, newshape)
    else:
        have = product_of(source)
        wanted = product_of(out)
        if isinstance(have, int) and isinstance(wanted, int) and have != wanted:
            raise _error(source, newshape, f"holds {wanted} elements")
    return tuple(out)


def _source(source: Shape, at: int, newshape: tuple[int, ...]) -> Dim:
    if at >= len(source):
        raise _error(source, newshape, "copies a dimension that is not there")
    return source[at]


def _split(source: Shape, dim: Dim, newshape: tuple[int, ...], position: int) -> tuple[Dim, Dim]:
    if position + 2 > len(newshape):
        raise _error(source, newshape, "has -4 without two values after it")
    first = newshape[position]
    second = newshape[position + 1]
    if first == second == -1 or min(first, second) < -1 or 0 in (first, second):
        raise _error(source, newshape, "splits a dimension by other than two sizes")
    if isinstance(dim, AnyDim):
        return (first if first > 0 else AnyDim(), second if second > 0 else AnyDim())
    if first == -1:
        first = dim // second
    if second == -1:
        second = dim // first
    if first * second != dim:
        raise _error(source, newshape, f"splits {dim} into {first} and {second}")
    return first, second


def _inferred(source: Shape, out: list[Dim], newshape: tuple[int, ...]) -> Dim:
    """Return the size that -1 stands for; unknown dimensions present on both sides cancel."""
    unknown_in = sum(isinstance(d, AnyDim) for d in source)
    unknown_out = sum(isinstance(d, AnyDim) for d in out)
    if unknown_in != unknown_out:
        return AnyDim()
    total = math.prod(d for d in source if not isinstance(d, AnyDim))
    rest = math.prod(d for d in out if not isinstance(d, AnyDim))
    if rest == 0 or total % rest:
        raise _error(source, newshape, f"cannot be completed: {total} elements, groups of {rest}")
    return total // rest


def _error(source: Shape, newshape: tuple[int, ...], problem: str) -> TypeInferenceError:
    count = product_of(source) if static(source) else "?"
    return TypeInferenceError(
        f"reshape: {shape_text(source)} with {count} elements "
        f"does not fit newshape {shape_text(newshape)}, which {problem}"
    )


@_reshaping("reshape", pattern=OpPattern.INJECTIVE)
def reshape(types: Types, attrs: ReshapeAttrs) -> Type:
    """The type of the result, with 0, -1, -2, -3 and -4 of ``newshape`` resolved."""
    data = tensor("reshape", types, 0, "data")
    return TensorType(new_shape(data.shape, attrs.newshape, attrs.allowzero), data.dtype)


@FNumpyCompute.register(reshape)
def reshape_numpy(attrs: ReshapeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view where possible."""
    data = args[0]
    return [data.reshape(new_shape(data.shape, attrs.newshape, attrs.allowzero))]


moves_elements(reshape)


FLower.register(reshape)(reshape_lower)
FConvertLayout.register(reshape, "squeeze", "expand_dims", "nn.batch_flatten")(reshape_layout)
FBody.register("squeeze", "expand_dims", "nn.batch_flatten", "reshape_like")(reshaped)


# ---- squeeze -----------------------------------------------------------------------------------


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


@_reshaping("squeeze", pattern=OpPattern.INJECTIVE)
def squeeze(types: Types, attrs: SqueezeAttrs) -> Type:
    """The shape without the dropped axes."""
    data = tensor("squeeze", types, 0, "data")
    dropped = squeezed_axes(data.shape, attrs.axis)
    return TensorType(tuple(d for k, d in enumerate(data.shape) if k not in dropped), data.dtype)


@FNumpyCompute.register(squeeze)
def squeeze_numpy(attrs: SqueezeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    return [args[0].squeeze(squeezed_axes(args[0].shape, attrs.axis))]


# ---- expand_dims -------------------------------------------------------------------------------


class ExpandDimsAttrs(OpAttrs):
    """Place and number of the new axes; a negative axis counts from behind the last axis of the
    data."""

    axis: int
    num_newaxis: Count = 1

    def __post_init__(self) -> None:
        OpAttrs.__post_init__(self)
        if self.num_newaxis < 0:
            raise AttrError(f"{self.type_key}: num_newaxis {self.num_newaxis} is negative")


def _expanded(shape: tuple[Any, ...], attrs: ExpandDimsAttrs) -> tuple[Any, ...]:
    at = normalize_axis("expand_dims", attrs.axis, len(shape) + 1)
    return (*shape[:at], *(1 for _ in range(attrs.num_newaxis)), *shape[at:])


@_reshaping("expand_dims", pattern=OpPattern.BROADCAST)
def expand_dims(types: Types, attrs: ExpandDimsAttrs) -> Type:
    """The shape with ones inserted."""
    data = tensor("expand_dims", types, 0, "data")
    return TensorType(_expanded(data.shape, attrs), data.dtype)


@FNumpyCompute.register(expand_dims)
def expand_dims_numpy(attrs: ExpandDimsAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    return [args[0].reshape(_expanded(args[0].shape, attrs))]


# ---- batch_flatten -----------------------------------------------------------------------------


@_reshaping("nn.batch_flatten", pattern=OpPattern.INJECTIVE)
def batch_flatten(types: Types, attrs: Any) -> Type:
    """Rank 2; an unknown inner size makes the product unknown."""
    data = tensor_of_rank("nn.batch_flatten", types, 0, "data", 1, at_least=True)
    return TensorType((data.shape[0], product_of(data.shape[1:])), data.dtype)


@FNumpyCompute.register(batch_flatten)
def batch_flatten_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Row-major order."""
    data = args[0]
    return [data.reshape(data.shape[0], math.prod(data.shape[1:]))]


moves_elements(batch_flatten)
