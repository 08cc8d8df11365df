"""nn.avg_pool2d: the mean of each window.

The divisor is the number of real elements of the window (at least 1), or with count_include_pad the
number inside the padded input. Integers: the sum is exact, the division truncates toward zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, Reduction
from compiler.lir.scalars import Bin, Cast, Scalar, literal
from compiler.ops.nn.average_pool import (
    annotate_average_pool,
    average_pool_scale,
    realize_average_pool,
)
from compiler.ops.nn.pool import (
    Pool2DAttrs,
    from_nchw,
    padding_to_cover,
    pool2d_rel,
    pool_loops,
    pool_windows,
    reduce_windows,
    to_nchw,
)
from compiler.ops.nn.window import extent, pad_spatial
from compiler.ops.number_format import Array
from compiler.ops.reduce.reduction_loops import exact_sum_dtype
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.layout import FConvertLayout, image_layout
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.ops.tensor.integer_division import truncated_quotient


@dataclass(frozen=True, eq=False)
class AvgPool2DAttrs(Pool2DAttrs):
    """Pool2DAttrs, and whether padding counts in the divisor."""

    count_include_pad: bool = False


avg_pool2d = register_op(
    "nn.avg_pool2d",
    arg_names=("data",),
    attrs_type=AvgPool2DAttrs,
    rel=pool2d_rel("nn.avg_pool2d"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


def window_counts(attrs: AvgPool2DAttrs, height: int, width: int) -> Array:
    """Divisor of every output position, int64 (OH, OW), all >= 1.

    Args:
        attrs: of the pool.
        height: of the data, in elements.
        width: of the data, in elements.
    """
    out = pool_windows("nn.avg_pool2d", attrs, height, width)
    top, left, bottom, right = attrs.padding
    rows = _axis_counts(attrs, 0, height, top, bottom, out[0])
    columns = _axis_counts(attrs, 1, width, left, right, out[1])
    return np.asarray(np.maximum(rows[:, None] * columns[None, :], 1))


def _axis_counts(
    attrs: AvgPool2DAttrs, axis: int, size: int, before: int, after: int, out: int
) -> Array:
    low, high = (-before, size + after) if attrs.count_include_pad else (0, size)
    starts = np.arange(out, dtype=np.int64)[:, None] * attrs.strides[axis] - before
    taps = np.arange(attrs.pool_size[axis], dtype=np.int64)[None, :] * attrs.dilation[axis]
    positions = starts + taps
    return np.asarray(((positions >= low) & (positions < high)).sum(axis=1))


@FNumpyCompute.register(avg_pool2d)
def avg_pool2d_numpy(attrs: AvgPool2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Floats divide in float32 or wider; integers as the module says."""
    data = to_nchw(args[0], attrs.layout)
    height, width = data.shape[2:]
    out = pool_windows("nn.avg_pool2d", attrs, height, width)
    counts = window_counts(attrs, height, width)
    padding = (attrs.padding[0], attrs.padding[1], attrs.padding[2], attrs.padding[3])
    wide = widened(data)
    cover = padding_to_cover(attrs, height, width, out)
    total = reduce_windows(pad_spatial(wide, padding, 0, cover), attrs, out, np.add)
    return [from_nchw(mean_of(total, counts, data.dtype), attrs.out_layout or attrs.layout)]


def widened(data: Array) -> Array:
    """Data in a dtype whose sums are safe: int64 for integers, float32 for float16."""
    if data.dtype.kind == "f":
        return data.astype(np.float32) if data.dtype == np.float16 else data
    return data.astype(np.int64)


def mean_of(total: Array, counts: Array, dtype: np.dtype[Any]) -> Array:
    """total / counts as ``dtype``; integers truncate toward zero."""
    if total.dtype.kind == "f":
        return np.asarray(total / counts.astype(total.dtype)).astype(dtype, copy=False)
    return truncated_quotient(total, counts).astype(dtype)


def _counts_of(call: Call) -> Array:
    attrs = AvgPool2DAttrs.of(call)
    shape = call.args[0].tensor_type.concrete_shape
    return window_counts(attrs, shape[attrs.layout.index("H")], shape[attrs.layout.index("W")])


FQAnnotateRewrite.register(avg_pool2d)(annotate_average_pool)
FQRealizeRewrite.register(avg_pool2d)(realize_average_pool(_counts_of))
FQDomScale.register(avg_pool2d)(average_pool_scale(_counts_of))
FQZeroPoint.register(avg_pool2d)(always(ZeroPoint.CENTRES))


def sum_dtype(dtype: str, terms: int) -> str:
    """Where so many values of ``dtype`` are added without rounding or wrapping."""
    if dtype.startswith("float"):
        return "float32" if dtype == "float16" else dtype
    return exact_sum_dtype(dtype, terms)


def quotient(total: Scalar, count: Scalar, dtype: str) -> Scalar:
    """total / count as ``dtype``; integers truncate toward zero."""
    same = count if count.dtype == total.dtype else Cast(total.dtype, count)
    found = Bin("/" if total.dtype.startswith("float") else "truncdiv", total, same)
    return found if found.dtype == dtype else Cast(dtype, found)


@FLower.register(avg_pool2d)
def avg_pool2d_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """A sum, divided by the count of its window in the epilogue."""
    (data,) = inputs
    attrs = AvgPool2DAttrs.of(call)
    counts = _counts_of(call)
    terms = attrs.pool_size[0] * attrs.pool_size[1]
    acc = sum_dtype(data.dtype, terms)
    table = None
    if counts.size and counts.min() != counts.max():
        table = b.constant(counts.astype(np.int32))
    one = literal(int(counts.flat[0]) if counts.size else 1, acc)

    def post(total: Scalar, at: dict[str, Scalar]) -> Scalar:
        count = one if table is None else table.at((at["H"], at["W"]))
        return quotient(total, count, data.dtype)

    total = Reduction("sum", literal(0, acc))
    fill = literal(0, data.dtype)
    return [pool_loops(b, data, attrs, out_types[0].concrete_shape, total, fill, post)]


FNeverNegative.register(avg_pool2d)(all_positive)
FConvertLayout.register(avg_pool2d)(image_layout)


@FBody.register(avg_pool2d)
def avg_pool2d_body(step: Step, words: Words) -> Value | None:
    """A convolution of each channel with ones, divided toward zero by the counts of the windows."""
    attrs, dtype = step.attrs, step.args[0].type.dtype
    data = words.transpose(step.args[0], [attrs.layout.index(c) for c in "NCHW"])
    n, channels, height, width = shape_of(data)
    rows, columns = pool_windows(step.name, attrs, height, width)
    work = exact_sum_dtype(dtype, math.prod(attrs.pool_size))
    if dtype == "uint64" or not channels:
        return None
    # Behind the data as far as the last window reaches, which may be less than the padding.
    reach = (
        (count - 1) * stride + extent(size, dilation) - before - length
        for count, stride, size, dilation, before, length in zip(
            (rows, columns),
            attrs.strides,
            attrs.pool_size,
            attrs.dilation,
            attrs.padding,
            (height, width),
        )
    )
    behind = [max(0, more) for more in reach]
    total = words.word(
        "nn.conv2d",
        [data, words.constant(np.ones((channels, 1, *attrs.pool_size)), "int8")],
        (n, channels, rows, columns),
        work,
        strides=attrs.strides,
        dilation=attrs.dilation,
        padding=(*attrs.padding[:2], *behind),
        groups=channels,
        out_dtype=work,
    )
    counts = words.constant(window_counts(attrs, height, width), work)
    found = words.cast(words.truncated(total, counts), dtype)
    return words.transpose(found, ["NCHW".index(c) for c in attrs.out_layout or attrs.layout])
