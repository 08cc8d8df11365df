"""nn.avg_pool2d: the mean of each window.

The divisor is the number of real elements of the window (at least 1), or with count_include_pad the
number inside the padded input. Integers: the sum is exact, the division truncates toward zero.
Rules of average pooling: nn.avg_pool2d and nn.global_avg_pool2d.

Integer pooling truncates its quotient toward zero. With ``avg_pool_round`` nothing is lost there:

    before               after, L = least common multiple of the window counts
    avg_pool(d), s       avg_pool(d * L), s / L

Every window's sum is then a multiple of its count, and the requantization that follows makes the
only rounding. Relay divides integers and truncates, which loses up to one step towards zero. Sums
that do not fit in 32 bits are computed in int64.
nn.global_avg_pool2d: the mean of each channel; integers truncate the exact sum's quotient.
nn.adaptive_avg_pool2d: the mean of output_size windows that share the data out evenly.

Window i of n covers [floor(i * H / n), ceil((i + 1) * H / n)). Integers truncate like avg_pool2d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir import index
from compiler.lir.builder import LirBuilder, Reduction
from compiler.lir.scalars import Bin, Cast, Scalar, Select, literal
from compiler.ops.arg_types import Types, check_no_bools, tensor_of_rank
from compiler.ops.evaluate import computes_by_body
from compiler.ops.image.interpolated_integers import Weights, mixed_scale, realize_mixing
from compiler.ops.nn.pool import (
    GlobalPool2DAttrs,
    Pool2DAttrs,
    from_nchw,
    global_pool,
    padding_to_cover,
    pool_loops,
    pool_windows,
    reduce_windows,
    to_nchw,
    windowed_pool,
)
from compiler.ops.nn.window import arrange, axes_of, restore
from compiler.ops.nn.window_loops import Image, image_loops
from compiler.ops.number_format import Array, working
from compiler.ops.op_attrs import OpAttrs, Sizes
from compiler.ops.op_call import op_call
from compiler.ops.reduce.reduction_loops import exact_sum_dtype, total_dtype
from compiler.ops.rules.annotate import FQAnnotateRewrite, kind_of, unannotated, with_args
from compiler.ops.rules.dom_scale import DomScale, FQDomScale, Scales, chosen_scale
from compiler.ops.rules.integer_calls import border, cast, multiply, scalar
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite, inner
from compiler.ops.rules.pass_through import annotate_accumulating, annotate_pass_through
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    integer_limits,
    integers,
    of_integers,
    require_fits,
)
from compiler.ops.rules.with_tables import Rule
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.ops.tensor.integer_division import truncated_quotient
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig

# ---- quantization ------------------------------------------------------------------------------

Counts = Callable[[Call], np.ndarray[Any, np.dtype[np.int64]]]
"""``counts(call)``: the divisors of the output positions of a typed pooling call."""


def annotate_average_pool(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Passes the kind on; with avg_pool_round it sums narrow integers into an accumulator."""
    if not ctx.qconfig.avg_pool_round:
        return annotate_pass_through(ref_call, args, ctx)
    return annotate_accumulating(ref_call, args, ctx)


def realize_average_pool(counts: Counts) -> Rule:
    """The rule of one pooling operator."""

    @of_integers
    def realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
        acc = ctx.qconfig.dtype_activation
        windows = counts(ref_call)
        factor = exact_factor(windows, data.bound, ctx.qconfig)
        # The mean fits wherever the data do; only the sum it is made of may need more room.
        largest = data.bound * factor * int(windows.max())
        work = acc if largest <= integer_limits(acc)[1] else "int64"
        require_fits(largest, work, ref_call)
        wide = data.in_dtype(work)
        if factor > 1:
            wide = multiply(wide, scalar(factor, work))
        mean: Expr = with_args(ref_call, (wide,))
        if work != acc:
            mean = cast(mean, acc)
        scale = _mean_scale(data.scale, factor, ctx.qconfig)
        return integers(mean, scale, acc, ctx.bounds_of)

    return realize


def exact_factor(windows: np.ndarray[Any, Any], bound: int, qconfig: QConfig) -> int:
    """Return the factor L of the data in front of the pool.

    With ``requantization`` "power_of_two" the largest power of two that the sum has room for. Else,
    where the mean of the multiplied data would leave the accumulator, the largest power of two that
    does not: the quotient is then truncated that far below the data's step.
    """
    if not qconfig.avg_pool_round:
        return 1
    if qconfig.requantization == "power_of_two":
        room = integer_limits(qconfig.dtype_activation)[1] // max(bound * int(windows.max()), 1)
        return 1 << (max(room, 1).bit_length() - 1)
    factor = math.lcm(*(int(count) for count in np.unique(windows)))
    room = max(integer_limits(qconfig.dtype_activation)[1] // max(bound, 1), 1)
    if factor <= room:
        return factor
    return 1 << (room.bit_length() - 1)


def average_pool_scale(counts: Counts) -> Callable[..., DomScale | None]:
    """The FQDomScale rule of one pooling operator over a narrow operand."""

    def scale(call: Call, scales: Scales, qconfig: QConfig) -> DomScale | None:
        if scales[0] is None:
            return None
        narrow = (1 << (qconfig.nbit_input - 1)) - 1
        return _mean_scale(scales[0], exact_factor(counts(call), narrow, qconfig), qconfig)

    return scale


def _mean_scale(scale: DomScale, factor: int, qconfig: QConfig) -> DomScale:
    """The scale of a mean of ``factor`` times the data; with ``requantization`` "tflite" that of a
    depthwise convolution with ones, whose weights have a scale of their own."""
    if not qconfig.form.int32_kernels:
        return scale.over(factor)
    return scale * DomScale(chosen_scale(1 / factor, qconfig))


# ---- the operators -------------------------------------------------------------------------


class AvgPool2DAttrs(Pool2DAttrs):
    """Pool2DAttrs, and whether padding counts in the divisor."""

    count_include_pad: bool = False


avg_pool2d = windowed_pool("nn.avg_pool2d", AvgPool2DAttrs)


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
    total = reduce_windows(widened(data), attrs, out, 0, np.add)
    return [from_nchw(mean_of(total, counts, data.dtype), attrs.out_layout or attrs.layout)]


def widened(data: Array) -> Array:
    """Data in a dtype whose sums are safe: int64 for integers, float32 for float16."""
    if data.dtype.kind == "f":
        return working(data)
    return data.astype(np.int64)


def mean_of(total: Array, counts: Array, dtype: np.dtype[Any]) -> Array:
    """total / counts as ``dtype``; integers truncate toward zero."""
    if total.dtype.kind == "f":
        return np.asarray(total / counts.astype(total.dtype)).astype(dtype, copy=False)
    return truncated_quotient(total, counts).astype(dtype)


def counts_of(call: Call) -> Array:
    """``window_counts`` of a call."""
    attrs = AvgPool2DAttrs.of(call)
    shape = call.args[0].tensor_type.concrete_shape
    return window_counts(attrs, shape[attrs.layout.index("H")], shape[attrs.layout.index("W")])


FQAnnotateRewrite.register(avg_pool2d)(annotate_average_pool)
FQRealizeRewrite.register(avg_pool2d)(realize_average_pool(counts_of))
FQDomScale.register(avg_pool2d)(average_pool_scale(counts_of))
FQZeroPoint.register(avg_pool2d)(centred)
FNeverNegative.register(avg_pool2d)(all_positive)


def sum_dtype(dtype: str, terms: int) -> str:
    """Return the dtype in which so many values of ``dtype`` are added without rounding or
    wrapping."""
    if dtype.startswith("float"):
        return total_dtype(dtype)
    return exact_sum_dtype(dtype, terms)


def quotient(total: Scalar, count: Scalar, dtype: str) -> Scalar:
    """total / count as ``dtype``; integers truncate toward zero."""
    if count.dtype == total.dtype:
        same = count
    else:
        same = Cast(total.dtype, count)
    found = Bin("/" if total.dtype.startswith("float") else "truncdiv", total, same)
    if found.dtype == dtype:
        return found
    return Cast(dtype, found)


@FLower.register(avg_pool2d)
def avg_pool2d_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """A sum, divided by the count of its window in the epilogue."""
    (data,) = inputs
    attrs = AvgPool2DAttrs.of(call)
    counts = counts_of(call)
    terms = attrs.pool_size[0] * attrs.pool_size[1]
    acc = sum_dtype(data.dtype, terms)
    table = None
    if counts.size and counts.min() != counts.max():
        table = b.constant(counts.astype(np.int32))
    one = literal(int(counts.flat[0]) if counts.size else 1, acc)

    places = [(attrs.out_layout or attrs.layout).index(letter) for letter in "HW"]

    def post(total: Scalar, at: tuple[Scalar, ...]) -> Scalar:
        if table is None:
            count = one
        else:
            count = table.at([at[place] for place in places])
        return quotient(total, count, data.dtype)

    total = Reduction("sum", literal(0, acc), post=post)
    return [pool_loops(b, data, attrs, out_types[0].concrete_shape, total, literal(0, data.dtype))]


@FBody.register(avg_pool2d)
def avg_pool2d_body(step: Step, words: Words) -> Value | None:
    """A convolution of each channel with ones, divided toward zero by the counts of the windows."""
    attrs = step.attrs
    dtype = step.args[0].type.dtype
    data = words.transpose(step.args[0], [attrs.layout.index(c) for c in "NCHW"])
    n, channels, height, width = shape_of(data)
    rows, columns = pool_windows(step.name, attrs, height, width)
    work = exact_sum_dtype(dtype, math.prod(attrs.pool_size))
    if dtype == "uint64" or not channels:
        return None
    # Behind the data as far as the last window reaches, which may be less than the padding.
    before = attrs.padding[:2]
    without = attrs.with_values(padding=(*before, 0, 0))
    behind = padding_to_cover(without, height, width, (rows, columns))
    total = words.word(
        "nn.conv2d",
        [data, words.constant(np.ones((channels, 1, *attrs.pool_size)), "int8")],
        (n, channels, rows, columns),
        work,
        strides=attrs.strides,
        dilation=attrs.dilation,
        padding=(*before, *behind),
        groups=channels,
        out_dtype=work,
    )
    counts = words.constant(window_counts(attrs, height, width), work)
    found = words.cast(words.truncated(total, counts), dtype)
    return words.transpose(found, ["NCHW".index(c) for c in attrs.out_layout or attrs.layout])


# ---- global_avg_pool2d -------------------------------------------------------------------------

global_avg_pool2d = global_pool("nn.global_avg_pool2d")


@FQPartitionRewrite.register(global_avg_pool2d)
def global_avg_pool2d_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr:
    """A border in front, always; the result is outside of any region."""
    return with_args(ref_call, (border(inner(args[0]), ctx.qconfig.dtype_input),))


@FQAnnotateRewrite.register(global_avg_pool2d)
def global_avg_pool2d_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Ends quantization for all nodes visited later, or pools like nn.avg_pool2d.

    ``stop_after_global_pool`` decides; True is Relay's behaviour.
    """
    if not ctx.qconfig.stop_after_global_pool:
        return annotate_average_pool(ref_call, args, ctx)
    if ctx.check_to_skip(ref_call) or kind_of(args[0]) is None:
        return None
    ctx.stop()
    return with_args(ref_call, (unannotated(args[0]),))


def _image_size(call: Call) -> NDArray[Any]:
    layout = GlobalPool2DAttrs.of(call).layout
    shape = call.args[0].tensor_type.concrete_shape
    return np.array([shape[layout.index("H")] * shape[layout.index("W")]])


FQRealizeRewrite.register(global_avg_pool2d)(realize_average_pool(_image_size))
FQDomScale.register(global_avg_pool2d)(average_pool_scale(_image_size))
FQZeroPoint.register(global_avg_pool2d)(centred)
FNeverNegative.register(global_avg_pool2d)(all_positive)


@computes_by_body(global_avg_pool2d)
@FBody.register(global_avg_pool2d)
def global_avg_pool2d_body(step: Step, words: Words) -> Value:
    """The mean of height and width, 0 of no elements."""
    axes = tuple(sorted(step.attrs.layout.index(letter) for letter in "HW"))
    shape = shape_of(step.results[0])
    dtype = step.results[0].type.dtype
    if all(shape_of(step.args[0])[axis] for axis in axes):
        what = "mean"
    else:
        what = "sum"
    return words.word(what, step.args, shape, dtype, axis=axes, keepdims=True)


# ---- adaptive_avg_pool2d -------------------------------------------------------------------------


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
    if not size:
        return (h, w)
    return (size[0], size[-1])


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
    shape = call.args[0].tensor_type.concrete_shape
    out = call.tensor_type.concrete_shape
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
    shape = call.args[0].tensor_type.concrete_shape
    out = call.tensor_type.concrete_shape
    found: list[Weights] = []
    for axis in (attrs.layout.index(letter) for letter in "HW"):
        matrix = np.zeros((out[axis], shape[axis]))
        for row, (begin, end) in enumerate(_spans(shape[axis], out[axis])):
            matrix[row, begin:end] = 1 / (end - begin)
        found.append((axis, matrix))
    return tuple(found)


@FQAnnotateRewrite.register(adaptive_avg_pool2d, needs_tables=True)
def adaptive_avg_pool2d_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Annotate as nn.avg_pool2d; windows of several sizes mix narrow integers."""
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
    """Return the scale of the form that the pool takes."""
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
    image = Image(data, attrs.layout)
    shape = out_types[0].concrete_shape
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
        if value.dtype == acc:
            return value
        return Cast(acc, value)

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
