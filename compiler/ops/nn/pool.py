"""Attributes, relation and window walk of 2-D pooling, and the pools that take the largest.

nn.max_pool2d: the largest value of each window; padding reads -inf or the dtype's minimum.
nn.global_max_pool2d: the largest value of each channel.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Op
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import InferResult
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Cast, Scalar
from compiler.ops.arg_types import Types, check_no_bools, tensor_of_rank
from compiler.ops.evaluate import computes_by_body
from compiler.ops.nn.window import (
    arrange,
    axes_of,
    extent,
    image_word,
    output_size,
    pad_spatial,
    restore,
    set_geometry,
    tap,
)
from compiler.ops.nn.window_loops import Image, image_loops, tap_position
from compiler.ops.number_format import Array
from compiler.ops.op_attrs import OpAttrs, Sizes
from compiler.ops.reduce.reduction_loops import lowest
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import same_scale
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import (
    annotate_max_pool,
    keeps_integers,
    partition_pass_through,
    realize_max_pool,
)
from compiler.ops.rules.realize import FQRealizeRewrite


class Pool2DAttrs(OpAttrs):
    """Sizes are (height, width) in elements; padding is kept as (top, left, bottom, right)."""

    pool_size: Sizes
    strides: Sizes = (1, 1)
    dilation: Sizes = (1, 1)
    padding: Sizes = (0, 0, 0, 0)
    layout: str = "NCHW"
    out_layout: str = ""
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        OpAttrs.__post_init__(self)
        set_geometry(self, "pool_size", "strides", "dilation")


class GlobalPool2DAttrs(OpAttrs):
    """Layout of the data."""

    layout: str = "NCHW"


def pool_windows(op: str, attrs: Pool2DAttrs, h: Any, w: Any) -> tuple[Any, Any]:
    """Output height and width.

    With ``ceil_mode`` a last window that would begin behind the data and its leading padding is
    dropped, as in ONNX and PyTorch.

    Raises:
        TypeInferenceError: a window does not fit.
    """
    top, left, bottom, right = attrs.padding
    sizes = []
    for axis, (size, before, after) in enumerate(((h, top, bottom), (w, left, right))):
        span = extent(attrs.pool_size[axis], attrs.dilation[axis])
        sizes.append(
            output_size(op, size, before, after, span, attrs.strides[axis], attrs.ceil_mode)
        )
    return sizes[0], sizes[1]


def windowed_pool(op: str, attrs_type: type[Pool2DAttrs] = Pool2DAttrs) -> Op:
    """A pool of windows."""

    def infer(types: Types, attrs: Pool2DAttrs) -> Type:
        data = tensor_of_rank(op, types, 0, "data", 4)
        check_no_bools(op, data)
        n, c, h, w = arrange(data.shape, axes_of(op, attrs.layout, "NCHW", "layout"))
        out_axes = axes_of(op, attrs.out_layout or attrs.layout, "NCHW", "out_layout")
        oh, ow = pool_windows(op, attrs, h, w)
        return TensorType(restore((n, c, oh, ow), out_axes), data.dtype)

    return _pool(op, attrs_type, infer)


def global_pool(op: str) -> Op:
    """A pool over the whole image: height and width become 1."""

    def infer(types: Types, attrs: GlobalPool2DAttrs) -> Type:
        data = tensor_of_rank(op, types, 0, "data", 4)
        check_no_bools(op, data)
        axes = axes_of(op, attrs.layout, "NCHW", "layout")
        n, c, _, _ = arrange(data.shape, axes)
        return TensorType(restore((n, c, 1, 1), axes), data.dtype)

    return _pool(op, GlobalPool2DAttrs, infer)


def _pool(op: str, attrs_type: type[OpAttrs], infer: InferResult) -> Op:
    pattern = OpPattern.OUT_ELEMWISE_FUSABLE
    return define_op(op, attrs_type=attrs_type, pattern=pattern)(infer)


def to_nchw(data: Array, layout: str) -> Array:
    """A view of ``data`` in NCHW."""
    if layout == "NCHW":
        return data
    return data.transpose([layout.index(c) for c in "NCHW"])


def from_nchw(data: Array, layout: str) -> Array:
    """A view of NCHW data in ``layout``."""
    if layout == "NCHW":
        return data
    return data.transpose(["NCHW".index(c) for c in layout])


def padding_to_cover(
    attrs: Pool2DAttrs, height: int, width: int, out: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns that ceil_mode's incomplete last windows reach beyond the padded input."""
    top, left, bottom, right = attrs.padding
    rows = (out[0] - 1) * attrs.strides[0] + extent(attrs.pool_size[0], attrs.dilation[0])
    columns = (out[1] - 1) * attrs.strides[1] + extent(attrs.pool_size[1], attrs.dilation[1])
    return max(0, rows - height - top - bottom), max(0, columns - width - left - right)


def reduce_windows(
    data: Array, attrs: Pool2DAttrs, out: tuple[int, int], fill: Any, combine: Any
) -> Array:
    """``combine`` (a binary ufunc) over every window: (N, C, H, W) → (N, C, OH, OW).

    Args:
        fill: what padding reads.
    """
    cover = padding_to_cover(attrs, data.shape[2], data.shape[3], out)
    padded = pad_spatial(data, attrs.padding, fill, cover)
    taps = product(range(attrs.pool_size[0]), range(attrs.pool_size[1]))
    views = (
        tap(padded, r * attrs.dilation[0], s * attrs.dilation[1], out, attrs.strides)
        for r, s in taps
    )
    result = np.array(next(views))
    for view in views:
        combine(result, view, out=result)
    return result


def pool_loops(
    builder: LirBuilder,
    data: TensorView,
    attrs: Pool2DAttrs,
    shape: tuple[int, ...],
    reduction: Reduction,
    fill: Scalar,
) -> TensorView:
    """One reduction over every window.

    Args:
        builder: of the function.
        data: image tensor.
        attrs: of the pool.
        shape: of the result, in its layout.
        reduction: how the values of a window are combined, to the dtype of the data.
        fill: what padding reads, in the dtype of the data.
    """
    height, width = attrs.pool_size
    image = Image(builder.for_reduction(data, height * width), attrs.layout)
    loops = image_loops(shape, attrs.out_layout or attrs.layout)
    axes = tuple(loops.values())

    def body(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        y, x = (tap_position(loops[letter], r[k], attrs, k) for k, letter in enumerate("HW"))
        value = image.inside(fill, y, x, N=loops["N"], C=loops["C"])
        if value.dtype == reduction.init.dtype:
            return value
        return Cast(reduction.init.dtype, value)

    whole = replace(reduction, dtype=data.dtype)
    return builder.reduce_into(shape, axes, axes, whole, [("i", height), ("j", width)], body)


# ---- max_pool2d ----------------------------------------------------------------------------------


max_pool2d = windowed_pool("nn.max_pool2d")


@FNumpyCompute.register(max_pool2d)
def max_pool2d_numpy(attrs: Pool2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """NaN in a window gives NaN."""
    data = to_nchw(args[0], attrs.layout)
    out = pool_windows("nn.max_pool2d", attrs, data.shape[2], data.shape[3])
    if data.dtype.kind == "f":
        lowest = -np.inf
    else:
        lowest = np.iinfo(data.dtype).min
    largest = reduce_windows(data, attrs, out, lowest, np.maximum)
    return [from_nchw(largest, attrs.out_layout or attrs.layout)]


FQPartitionRewrite.register(max_pool2d)(partition_pass_through)
FQAnnotateRewrite.register(max_pool2d)(annotate_max_pool)
FQRealizeRewrite.register(max_pool2d)(realize_max_pool)
keeps_integers(max_pool2d, scale=same_scale)


@FLower.register(max_pool2d)
def max_pool2d_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Padding reads the lowest value."""
    (data,) = inputs
    attrs = Pool2DAttrs.of(call)
    least = lowest(data.dtype)
    return [pool_loops(b, data, attrs, out_types[0].concrete_shape, Reduction("max", least), least)]


@FBody.register(max_pool2d)
def max_pool2d_body(step: Step, words: Words) -> Value | None:
    """The pool in NCHW; None if it has this layout."""
    how = {name: value for name, value in step.attrs.items() if not name.endswith("layout")}
    return image_word(step, words, ((step.attrs.layout, "NCHW"),), **how)


# ---- global_max_pool2d -------------------------------------------------------------------------

global_max_pool2d = global_pool("nn.global_max_pool2d")


@computes_by_body(global_max_pool2d)
@FBody.register(global_max_pool2d)
def global_max_pool2d_body(step: Step, words: Words) -> Value:
    """The largest of height and width."""
    axes = sorted(step.attrs.layout.index(letter) for letter in "HW")
    return words.reduce("max", step.args[0], axes)
