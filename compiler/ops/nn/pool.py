"""Attributes, relation and window walk of 2-D pooling, for max_pool2d, avg_pool2d and others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import TypeRelation, result_rel
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Cast, Scalar
from compiler.ops.arg_types import Types, tensor_of_rank
from compiler.ops.nn.window import arrange, axes_of, extent, output_size, restore, set_geometry, tap
from compiler.ops.nn.window_loops import Image, image_loops, window_reads
from compiler.ops.number_format import Array
from compiler.ops.op_attrs import OpAttrs


@dataclass(frozen=True, eq=False)
class Pool2DAttrs(OpAttrs):
    """Sizes are (height, width) in elements; padding is kept as (top, left, bottom, right)."""

    pool_size: tuple[int, ...]
    strides: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    layout: str = "NCHW"
    out_layout: str = ""
    ceil_mode: bool = False

    def __post_init__(self) -> None:
        OpAttrs.__post_init__(self)
        set_geometry(self, "pool_size", "strides", "dilation")


@dataclass(frozen=True, eq=False)
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


def pool2d_rel(op: str) -> TypeRelation:
    """The relation of a windowed pool."""

    def infer(types: Types, attrs: Pool2DAttrs) -> Type:
        data = tensor_of_rank(op, types, 0, "data", 4)
        _refuse_bool(op, data)
        n, c, h, w = arrange(data.shape, axes_of(op, attrs.layout, "NCHW", "layout"))
        out_axes = axes_of(op, attrs.out_layout or attrs.layout, "NCHW", "out_layout")
        oh, ow = pool_windows(op, attrs, h, w)
        return TensorType(restore((n, c, oh, ow), out_axes), data.dtype)

    return result_rel(infer)


def global_pool2d_rel(op: str) -> TypeRelation:
    """The relation of a pool over the whole image: height and width become 1."""

    def infer(types: Types, attrs: GlobalPool2DAttrs) -> Type:
        data = tensor_of_rank(op, types, 0, "data", 4)
        _refuse_bool(op, data)
        axes = axes_of(op, attrs.layout, "NCHW", "layout")
        n, c, _, _ = arrange(data.shape, axes)
        return TensorType(restore((n, c, 1, 1), axes), data.dtype)

    return result_rel(infer)


def _refuse_bool(op: str, data: TensorType) -> None:
    if data.dtype == "bool":
        raise TypeInferenceError(f"{op}: argument 0 (data) is {data}, numbers are needed")


def to_nchw(data: Array, layout: str) -> Array:
    """A view of ``data`` in NCHW."""
    return data if layout == "NCHW" else data.transpose([layout.index(c) for c in "NCHW"])


def from_nchw(data: Array, layout: str) -> Array:
    """A view of NCHW data in ``layout``."""
    return data if layout == "NCHW" else data.transpose(["NCHW".index(c) for c in layout])


def padding_to_cover(
    attrs: Pool2DAttrs, height: int, width: int, out: tuple[int, int]
) -> tuple[int, int]:
    """Rows and columns that ceil_mode's incomplete last windows reach beyond the padded input."""
    top, left, bottom, right = attrs.padding
    rows = (out[0] - 1) * attrs.strides[0] + extent(attrs.pool_size[0], attrs.dilation[0])
    columns = (out[1] - 1) * attrs.strides[1] + extent(attrs.pool_size[1], attrs.dilation[1])
    return max(0, rows - height - top - bottom), max(0, columns - width - left - right)


def reduce_windows(padded: Array, attrs: Pool2DAttrs, out: tuple[int, int], combine: Any) -> Array:
    """``combine`` (a binary ufunc) over every window: (N, C, H, W) padded → (N, C, OH, OW)."""
    result: Array | None = None
    for r in range(attrs.pool_size[0]):
        for s in range(attrs.pool_size[1]):
            view = tap(padded, r * attrs.dilation[0], s * attrs.dilation[1], out, attrs.strides)
            if result is None:
                result = np.array(view)
            else:
                combine(result, view, out=result)
    assert result is not None
    return result


Epilogue = Callable[[Scalar, dict[str, Scalar]], Scalar]
"""``post(acc, loops by letter)``."""


def pool_loops(
    builder: LirBuilder,
    data: TensorView,
    attrs: Pool2DAttrs,
    shape: tuple[int, ...],
    reduction: Reduction,
    fill: Scalar,
    post: Epilogue | None = None,
) -> TensorView:
    """One reduction over every window.

    Args:
        builder: of the function.
        data: image tensor.
        attrs: of the pool.
        shape: of the result, in its layout.
        reduction: how the values of a window are combined.
        fill: what padding reads, in the dtype of the data.
        post: epilogue; its result has the dtype of the data.
    """
    layout = attrs.out_layout or attrs.layout
    height, width = attrs.pool_size
    image = Image(builder.for_reduction(data, height * width), attrs.layout)
    loops = image_loops(shape, layout)
    read = window_reads(image, attrs.strides, attrs.dilation, attrs.padding, fill)
    axes = tuple(loops.values())
    by_letter: dict[str, Scalar] = dict(loops)

    def body(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        value = read(by_letter, r[0], r[1])
        return value if value.dtype == reduction.init.dtype else Cast(reduction.init.dtype, value)

    whole = replace(reduction, dtype=data.dtype)
    if post is not None:
        whole = replace(whole, post=lambda acc, at: post(acc, by_letter))
    return builder.reduce_into(
        shape,
        axes,
        axes,
        whole,
        [("i", height), ("j", width)],
        body,
    )
