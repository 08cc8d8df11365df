"""strided_slice(begin, end, strides, slice_mode, axes): data[begin:end:stride] on some axes.

Negative positions count from the end, positions outside are clamped, strides may be negative.
slice_mode "size" reads ``end`` as lengths (-1: to the end) and ignores strides. Without ``axes``
the values belong to the leading axes.
reverse(axis): the elements of one axis in the opposite order.
"""

from __future__ import annotations

from typing import Any

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, Shape, TensorType, Type
from compiler.lir import index
from compiler.lir.scalars import Scalar
from compiler.ops.arg_types import Types, normalize_axes, normalize_axis, tensor
from compiler.ops.evaluate import computes_by_body
from compiler.ops.op_attrs import OpAttrs, Sizes
from compiler.ops.rules.layout import FConvertLayout, Order, following
from compiler.ops.rules.lower import FLower, moved
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import moves_elements

OP = "strided_slice"


class StridedSliceAttrs(OpAttrs):
    """One value per sliced axis; a single stride serves all axes."""

    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: Sizes = (1,)
    slice_mode: str = "end"
    axes: tuple[int, ...] | None = None


def slices_of(shape: Shape, attrs: StridedSliceAttrs) -> dict[int, tuple[int, int | None, int]]:
    """Per sliced axis (begin, end, stride) in Python's slice notation.

    Raises:
        TypeInferenceError: counts differ, a stride is 0, or an axis does not exist.
    """
    count = len(attrs.begin)
    axes = tuple(range(count)) if attrs.axes is None else attrs.axes
    if len(attrs.strides) == 1:
        strides = attrs.strides * count
    else:
        strides = attrs.strides
    if attrs.slice_mode not in ("end", "size"):
        raise TypeInferenceError(
            f"{OP}: slice_mode {attrs.slice_mode!r} is unknown", fix="legal: end, size"
        )
    if not count == len(attrs.end) == len(axes) or len(strides) < count:
        raise TypeInferenceError(
            f"{OP}: begin {list(attrs.begin)}, end {list(attrs.end)}, strides "
            f"{list(attrs.strides)} and axes {list(axes)} differ in length"
        )
    found: dict[int, tuple[int, int | None, int]] = {}
    positions = normalize_axes(OP, axes, len(shape), "axes")
    for axis, begin, end, stride in zip(positions, attrs.begin, attrs.end, strides):
        if attrs.slice_mode == "size":
            stop = None if end < 0 or begin + end == 0 else begin + end
            found[axis] = (begin, stop, 1)
        elif stride == 0:
            raise TypeInferenceError(f"{OP}: the stride of axis {axis} is 0")
        else:
            found[axis] = (begin, _stop(end, stride, shape[axis]), stride)
    return found


def _stop(end: int, stride: int, size: Dim) -> int | None:
    # Walking backwards, an end in front of the first element cannot be written as a Python index.
    if stride < 0 and isinstance(size, int) and end < -size:
        return None
    return end


@define_op(OP, pattern=OpPattern.INJECTIVE)
def strided_slice(types: Types, attrs: StridedSliceAttrs) -> Type:
    """The sliced shape; an unknown sliced dimension stays unknown."""
    data = tensor(OP, types, 0, "data")
    dims = list(data.shape)
    for axis, (begin, end, stride) in slices_of(data.shape, attrs).items():
        size = dims[axis]
        if not isinstance(size, AnyDim):
            dims[axis] = len(range(*slice(begin, end, stride).indices(size)))
    return TensorType(tuple(dims), data.dtype)


@FNumpyCompute.register(strided_slice)
def strided_slice_numpy(attrs: StridedSliceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """A view."""
    data = args[0]
    index = [slice(None)] * data.ndim
    for axis, (begin, end, stride) in slices_of(data.shape, attrs).items():
        index[axis] = slice(begin, end, stride)
    return [data[tuple(index)]]


moves_elements(strided_slice)


@FLower.register(strided_slice)
@moved
def strided_slice_lower(call: Call, at: tuple[Scalar, ...]) -> list[Scalar]:
    """begin + stride * index on the sliced axes."""
    attrs = StridedSliceAttrs.of(call)
    shape = call.args[0].tensor_type.concrete_shape
    found = list(at)
    for axis, (begin, end, stride) in slices_of(shape, attrs).items():
        start = slice(begin, end, stride).indices(shape[axis])[0]
        found[axis] = index.plus(index.times(at[axis], stride), start)
    return found


@FConvertLayout.register(strided_slice)
@following
def strided_slice_layout(attrs: StridedSliceAttrs, order: Order) -> dict[str, Any]:
    """The axes follow the data."""
    named = range(len(attrs.begin)) if attrs.axes is None else attrs.axes
    return {"axes": tuple(order.index(axis % len(order)) for axis in named)}


# ---- reverse -----------------------------------------------------------------------------------


class ReverseAttrs(OpAttrs):
    """The axis that is turned around."""

    axis: int


@define_op("reverse", pattern=OpPattern.INJECTIVE)
def reverse(types: Types, attrs: ReverseAttrs) -> Type:
    """Type of the data."""
    data = tensor("reverse", types, 0, "data")
    normalize_axis("reverse", attrs.axis, len(data.shape))
    return data


@computes_by_body(reverse)
@FBody.register("reverse")
def reverse_body(step: Step, words: Words) -> Value:
    """A slice with a stride of -1."""
    (data,) = step.args
    return words.slice(data, step.attrs.axis % len(data.type.shape), -1, None, -1)
