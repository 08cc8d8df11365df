"""nn.adaptive_avg_pool2d: the mean of output_size windows that share the data out evenly.

Window i of n covers [floor(i * H / n), ceil((i + 1) * H / n)). Integers truncate like avg_pool2d.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir import index
from compiler.lir.builder import LirBuilder, Reduction
from compiler.lir.scalars import Bin, Cast, Scalar, Select, literal
from compiler.ops.arg_types import Types, check_no_bools, tensor_of_rank
from compiler.ops.image.interpolated_integers import Weights, mixed_scale, realize_mixing
from compiler.ops.nn.avg_pool2d import (
    annotate_average_pool,
    average_pool_scale,
    counts_of,
    mean_of,
    quotient,
    realize_average_pool,
    sum_dtype,
    widened,
)
from compiler.ops.nn.pool import from_nchw, to_nchw
from compiler.ops.nn.window import arrange, axes_of, restore
from compiler.ops.nn.window_loops import Image, image_loops
from compiler.ops.op_attrs import OpAttrs, Sizes
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import annotate_accumulating
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

OP = "nn.adaptive_avg_pool2d"


class AdaptivePool2DAttrs(OpAttrs):
    """Output (height, width); one value stands for both, none keeps the size of the data."""

    output_size: Sizes = ()
    layout: str = "NCHW"


@define_op(OP, pattern=OpPattern.OUT_ELEMWISE_FUSABLE)
def adaptive_avg_pool2d(types: Types, attrs: AdaptivePool2DAttrs) -> Type:
    """The data's type with another height and width.

    Raises:
        TypeInferenceError: the data are no numbers, or a window holds no element.
    """
    data = tensor_of_rank(OP, types, 0, "data", 4)
    axes = axes_of(OP, attrs.layout, "NCHW", "layout")
    n, c, h, w = arrange(data.shape, axes)
    check_no_bools(OP, data)
    sizes = _sizes(attrs, h, w)
    if any(size == 0 and out != 0 for size, out in zip((h, w), sizes)):
        raise TypeInferenceError(f"{OP}: argument 0 (data) is {data}: a mean of no elements")
    return TensorType(restore((n, c, *sizes), axes), data.dtype)


def _sizes(attrs: AdaptivePool2DAttrs, h: Dim, w: Dim) -> tuple[Dim, Dim]:
    size = attrs.output_size
    if len(size) > 2 or any(s < 1 for s in size):
        raise TypeInferenceError(f"{OP}: output_size {list(size)} is not one or two sizes")
    return (h, w) if not size else (size[0], size[-1])


@FNumpyCompute.register(adaptive_avg_pool2d)
def adaptive_avg_pool2d_numpy(
    attrs: AdaptivePool2DAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """Window by window."""
    data = to_nchw(args[0], attrs.layout)
    h, w = data.shape[2:]
    sizes = attrs.output_size
    oh, ow = (sizes[0], sizes[-1]) if sizes else (h, w)
    wide = widened(data)
    total = np.empty((*data.shape[:2], oh, ow), wide.dtype)
    counts = np.empty((oh, ow), np.int64)
    spans = _spans(h, oh), _spans(w, ow)
    for y, x in np.ndindex(oh, ow):
        rows, columns = slice(*spans[0][y]), slice(*spans[1][x])
        total[:, :, y, x] = wide[:, :, rows, columns].sum(axis=(2, 3))
        counts[y, x] = (rows.stop - rows.start) * (columns.stop - columns.start)
    return [from_nchw(mean_of(total, counts, data.dtype), attrs.layout)]


def _spans(size: int, out: int) -> list[tuple[int, int]]:
    """(begin, end) of every window along one axis."""
    return [(k * size // out, -(-(k + 1) * size // out)) for k in range(out)]


def _even_windows(call: Call) -> Call | None:
    """The nn.avg_pool2d of the same windows, where they are all of one size; else None."""
    attrs = AdaptivePool2DAttrs.of(call)
    shape, out = call.args[0].tensor_type.concrete_shape, call.tensor_type.concrete_shape
    axes = [attrs.layout.index(letter) for letter in "HW"]
    if any(out[axis] == 0 or shape[axis] % out[axis] for axis in axes):
        return None
    window = tuple(shape[axis] // out[axis] for axis in axes)
    return op_call(
        "nn.avg_pool2d",
        *call.args,
        pool_size=window,
        strides=window,
        layout=attrs.layout,
        span=call.span,
    )


def _weights(call: Call) -> tuple[Weights, ...]:
    """The mean over every window of one axis after the other."""
    attrs = AdaptivePool2DAttrs.of(call)
    shape, out = call.args[0].tensor_type.concrete_shape, call.tensor_type.concrete_shape
    found: list[Weights] = []
    for axis in (attrs.layout.index(letter) for letter in "HW"):
        matrix = np.zeros((out[axis], shape[axis]))
        for row, (begin, end) in enumerate(_spans(shape[axis], out[axis])):
            matrix[row, begin:end] = 1 / (end - begin)
        found.append((axis, matrix))
    return tuple(found)


@FQAnnotateRewrite.register(adaptive_avg_pool2d, needs_tables=True)
def adaptive_avg_pool2d_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """As nn.avg_pool2d; windows of several sizes mix narrow integers."""
    if _even_windows(ref_call) is None:
        return annotate_accumulating(ref_call, args, ctx)
    return annotate_average_pool(ref_call, args, ctx)


@FQRealizeRewrite.register(adaptive_avg_pool2d, needs_tables=True)
def adaptive_avg_pool2d_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """nn.avg_pool2d, or the mean over rows and then over columns."""
    pool = _even_windows(ref_call)
    if pool is None:
        return realize_mixing(ref_call, args, _weights(ref_call), ctx)
    return realize_average_pool(counts_of)(pool, args, ctx)


@FQDomScale.register(adaptive_avg_pool2d)
def adaptive_avg_pool2d_scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
    """That of the form it takes."""
    pool = _even_windows(call)
    if pool is None:
        return mixed_scale(scales[0], _weights(call))
    return average_pool_scale(counts_of)(pool, scales, qconfig)


def _window(out: Scalar, size: int, count: int) -> tuple[Scalar, Scalar]:
    """Start and end of window ``out`` of ``count`` over ``size`` elements."""
    count = max(count, 1)
    start = index.floordiv(index.times(out, size), count)
    end = index.plus(index.times(index.plus(out, 1), size), count - 1)
    return start, index.floordiv(end, count)


def _longest(size: int, count: int) -> int:
    spans = _spans(size, count)
    return max((end - begin for begin, end in spans), default=0)


@FLower.register(adaptive_avg_pool2d)
def adaptive_avg_pool2d_lower(
    call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder
) -> Lowered:
    """Loops over the longest window, guarded by the end of each."""
    (data,) = inputs
    attrs = AdaptivePool2DAttrs.of(call)
    image, shape = Image(data, attrs.layout), out_types[0].concrete_shape
    loops = image_loops(shape, attrs.layout)
    sizes = image.sizes["H"], image.sizes["W"]
    rows = _longest(sizes[0], loops["H"].extent)
    columns = _longest(sizes[1], loops["W"].extent)
    acc = sum_dtype(data.dtype, rows * columns)
    top, bottom = _window(loops["H"], sizes[0], loops["H"].extent)
    left, right = _window(loops["W"], sizes[1], loops["W"].extent)

    def body(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        y, x = index.plus(top, r[0]), index.plus(left, r[1])
        inside = Bin("and", Bin("<", y, bottom), Bin("<", x, right))
        zero = literal(0, data.dtype)
        value = Select(inside, image.inside(zero, y, x, N=loops["N"], C=loops["C"]), zero)
        return value if value.dtype == acc else Cast(acc, value)

    def post(total: Scalar, at: tuple[Scalar, ...]) -> Scalar:
        count = Bin("*", Bin("-", bottom, top), Bin("-", right, left))
        return quotient(total, count, data.dtype)

    axes = tuple(loops.values())
    raxes = [("i", rows), ("j", columns)]
    zero = literal(0, acc)
    pooled = b.reduce_into(
        shape, axes, axes, Reduction("sum", zero, post=post, dtype=data.dtype), raxes, body
    )
    return [pooled]
