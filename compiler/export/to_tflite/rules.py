"""LiteRT rules of the operators of an integer module; ``FToTflite`` holds a rule for each.

    qnn.requantize(nn.conv2d(x, w))                                    CONV_2D, DEPTHWISE_CONV_2D
    nn.dense(x, w)                                                     CONV_2D of 1x1
    qnn.requantize(nn.global_avg_pool2d(x * count))                    DEPTHWISE_CONV_2D with ones
    qnn.requantize(mean(x * count))                                    the same, or CONV_2D
    qnn.requantize(x << 20) + qnn.requantize(y << 20), ...             ADD, SUB
    qnn.requantize(x)                                                  QUANTIZE
    qnn.requantize(x * y)                                              MUL
    lookup(x, table)                                                   CAST, ADD of 128, GATHER
    nn.fixed_point_softmax(x)                                          SOFTMAX
    qnn.requantize(nn.batch_matmul(x, y))                              BATCH_MATMUL
    qnn.requantize(sum(int16))                                         MEAN
    take(x, known places)                                              GATHER

What is none of these and wide (int32) is a tensor of int32: ADD, SUB, MUL, MAXIMUM, MINIMUM, and
QUANTIZE for the way back. A rule gives the form of the result, or None where it has none here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from compiler.core.words import Words
from compiler.export.to_tflite.emitter import TfliteEmitter
from compiler.export.to_tflite.file import Grid
from compiler.export.to_tflite.tensors import MOST_BROADCAST
from compiler.export.to_tflite.values import (
    NARROW,
    Form,
    Ints,
    Matmul,
    Operand,
    Padded,
    Product,
    Raw,
    Scaled,
    Sum,
    Tensor,
    Total,
)
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType, integer_range
from compiler.ops.nn.avg_pool2d import window_counts
from compiler.ops.nn.softmax import exponentials
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import (
    OP,
    TFLM,
    Factors,
    factors_in,
    finished,
    requantize_body,
    rescaled,
    summed,
)
from compiler.ops.reduce.axes import axes_of

TfliteRule = Callable[[Step, TfliteEmitter], Form | None]

FToTflite: OpRule[TfliteRule] = OpRule(
    "FToTflite", asked_by="to_tflite", defined_in="compiler/export/to_tflite"
)


@FToTflite.register("annotation.stop_fusion", "annotation.cast_hint", "on_device", "copy")
def same(step: Step, graph: TfliteEmitter) -> Form | None:
    """The value itself."""
    return graph.form(step.args[0])


@FToTflite.register("cast")
def cast(step: Step, graph: TfliteEmitter) -> Form | None:
    """Narrow again, or wide from now on."""
    form = graph.form(step.args[0])
    dtype = step.result.type.dtype
    if isinstance(form, Tensor) and form.dtype == "int32":
        if dtype in ("int32", "int64"):
            return form
        if dtype in ("int8", "int16"):
            return graph.cast(form, dtype)
        return None
    if dtype in ("int32", "int64"):
        if isinstance(form, (Tensor, Padded)):
            return Raw(graph.tensor(form))
        return form
    if isinstance(form, (Tensor, Padded)):
        if step.args[0].type.dtype == dtype:
            return form
        return None
    if isinstance(form, Raw) and form.source.dtype == "int8" and dtype == "int16":
        return graph.finer(form)
    form = _as_scaled(form)
    if isinstance(form, Scaled) and dtype in ("int8", "uint8", "int16"):
        return graph.narrowed(form, dtype, step.result.type)
    return None


_NO_FACTOR: Final = np.zeros(0, np.int64)


def _unscaled(form: Raw) -> Scaled:
    """A tensor that was made wide only, as a value without limits that keeps its scale."""
    scale = form.source.scale
    return Scaled(form, _NO_FACTOR, _NO_FACTOR, np.asarray(scale), scale)


def _as_scaled(form: Form | None) -> Form | None:
    """The same, within the limits of its dtype; other forms as they are."""
    if isinstance(form, Raw) and form.factor == 1:
        own = form.source
        low, high = (end + own.offset - form.zero for end in integer_range(own.dtype))
        return replace(_unscaled(form), low=low, high=high)
    return form


def _as_raw(value: Value, graph: TfliteEmitter) -> Form | None:
    """The form of a value; one that is scaled as a tensor made wide, where it fits 8 or 16 bits."""
    form = graph.form(value)
    if not isinstance(form, Scaled):
        return form
    narrow = graph.fitting(form, value.type)
    if narrow is None:
        return None
    return Raw(narrow)


def _is_narrow(form: Raw) -> bool:
    return form.factor == 1 and form.source.dtype in NARROW


def _counts(form: Raw) -> bool:
    return _is_narrow(form) and form.zero == form.source.zero


def _arithmetic(name: str, step: Step, graph: TfliteEmitter) -> Tensor | None:
    """An operator of int32 tensors, which every wide value is that 8 bits hold no more."""
    ranks = {len(arg.type.concrete_shape) for arg in step.args if arg.data is None}
    if step.result.type.dtype != "int32" or max(ranks) > MOST_BROADCAST:
        return None
    lhs, rhs = (graph.wide(arg) for arg in step.args)
    if lhs is None or rhs is None:
        return None
    return graph.arithmetic(name, lhs, rhs)


@FToTflite.register("left_shift", "multiply")
def raised(step: Step, graph: TfliteEmitter) -> Form | None:
    """A tensor as many times as fine, or times another one."""
    form, other = (_as_raw(arg, graph) for arg in step.args)
    amount = number_of(step.args[1])
    sides = [side.source for side in (form, other) if isinstance(side, Raw) and _counts(side)]
    if len(sides) == 2 and {side.dtype for side in sides} == {"int8"}:
        return Sum("MUL", Operand(sides[0]), Operand(sides[1]))
    if isinstance(form, Raw) and form.factor == 1 and amount is not None:
        return replace(form, factor=1 << amount if step.name == "left_shift" else amount)
    if step.name == "multiply":
        return _arithmetic("MUL", step, graph)
    return None


@FToTflite.register("add")
def add(step: Step, graph: TfliteEmitter) -> Form | None:
    """A bias, a zero point, or the sum of two tensors."""
    lhs, rhs = step.args
    if lhs.data is not None:
        lhs, rhs = rhs, lhs
    form = graph.form(lhs)
    if isinstance(form, Product) and rhs.data is not None:
        return _with_bias(form, rhs.data)
    moved = number_of(rhs)
    if isinstance(form, Raw) and moved and form.zero - moved == form.source.zero:
        return replace(form, zero=form.source.zero)
    if isinstance(form, Raw) and _counts(form) and moved is not None:
        form = _as_scaled(form)
    if isinstance(form, Scaled) and moved is not None:
        return replace(form, zero=form.zero + moved)
    if isinstance(form, Raw) and rhs.data is not None and moved is None:
        own = _as_product(form, graph)
        biased = None if own is None else _with_bias(own, rhs.data)
        if biased is not None:
            return biased
    return _sum("ADD", step, graph) or _arithmetic("ADD", step, graph)


@FToTflite.register("subtract")
def subtract(step: Step, graph: TfliteEmitter) -> Form | None:
    """A tensor without its zero point, a bias below 0, or the difference of two."""
    form = graph.form(step.args[0])
    zero = number_of(step.args[1])
    if isinstance(form, Product) and zero is not None:
        return _with_bias(form, np.asarray(-zero))
    if isinstance(form, Scaled) and zero is not None and zero == form.zero:
        form = _as_raw(step.args[0], graph)
    if isinstance(form, Raw) and form.factor == 1 and zero is not None:
        return replace(form, zero=form.zero + zero)
    return _sum("SUB", step, graph) or _arithmetic("SUB", step, graph)


def _sum(name: str, step: Step, graph: TfliteEmitter) -> Form | None:
    lhs, rhs = (graph.form(arg) for arg in step.args)
    if not isinstance(lhs, Operand) or not isinstance(rhs, Operand):
        return None
    return Sum(name, lhs, rhs)


def _as_product(form: Raw, graph: TfliteEmitter) -> Product | None:
    """A tensor of int8 as a depthwise product with ones, which has a factor for each channel."""
    if not _is_narrow(form):
        return None
    channels = form.source.shape[-1]
    laid = (1, math.prod(form.source.shape[:-1]), 1, channels)
    source = graph.reshaped(form.source, laid)
    return _sums(form, source, (1, 1, 1, channels), laid, depthwise=True)


def _with_bias(form: Product, bias: Array) -> Product | None:
    added = bias.astype(np.int64)
    if added.size != 1 and not added.shape[-1] == added.size == form.bias.size:
        return None  # not one for each channel
    added = added.reshape(-1)
    low, high = (None if limit is None else limit + added for limit in (form.low, form.high))
    return replace(form, bias=form.bias + added, low=low, high=high)


@FToTflite.register("nn.relu", "clip", "maximum", "minimum")
def limited(step: Step, graph: TfliteEmitter) -> Form | None:
    """Limits of sums, one for each channel, or of a result; MAXIMUM, MINIMUM of two tensors."""
    form = graph.form(step.args[0])
    if len(step.args) == 2 and step.args[1].data is None:
        lhs, rhs = (graph.read(arg, *NARROW) for arg in step.args)
        if lhs is None or rhs is None or lhs.kind != rhs.kind:
            return None
        return graph.arithmetic(step.name.upper(), lhs, graph.worth(rhs, lhs.scale))
    low, high = _limits(step)
    if form is None or (low is None and high is None):
        return None
    if isinstance(form, (Product, Sum)):
        return replace(
            form,
            low=_of_both(np.maximum, low, form.low),
            high=_of_both(np.minimum, high, form.high),
        )
    own = form.source if isinstance(form, Padded) else form
    if isinstance(form, (Tensor, Padded)) and isinstance(own, Tensor) and own.dtype in NARROW:
        begins, ends = (own.offset + end for end in integer_range(own.dtype))
        inside = (low is None or (low <= begins).all()) and (high is None or (high >= ends).all())
        if inside:
            return form
        own = graph.tensor(form)
        made = _limited(_unscaled(Raw(own)), low, high)
        dtype = step.result.type.dtype
        if made is None:
            return None
        return graph.narrowed(made, dtype, step.result.type)
    form = _as_scaled(form)
    if isinstance(form, Scaled):
        return _limited(form, low, high)
    held = graph.wide(step.args[0])
    if held is None:
        return None
    return graph.limited(held, low, high)


def _of_both(choose: Any, one: Ints | None, other: Ints | None) -> Ints | None:
    if one is None or other is None:
        if one is None:
            return other
        return one
    return np.asarray(choose(one, other), np.int64)


def _limited(form: Scaled, low: Ints | None, high: Ints | None) -> Scaled | None:
    if any(limit is not None and limit.size != 1 for limit in (low, high)):
        return None
    if low is None:
        lowest = form.low
    else:
        lowest = max(form.low, int(low.ravel()[0]) - form.zero)
    if high is None:
        highest = form.high
    else:
        highest = min(form.high, int(high.ravel()[0]) - form.zero)
    return replace(form, low=lowest, high=highest)


def _limits(step: Step) -> tuple[Ints | None, Ints | None]:
    if step.name == "nn.relu":
        return np.zeros(1, np.int64), None
    if step.name == "clip":
        bounds = (math.ceil(step.attrs.a_min), math.floor(step.attrs.a_max))
        low, high = (np.array([bound], np.int64) for bound in bounds)
        return low, high
    data = step.args[1].data
    if data is None:
        return None, None
    limit = data.astype(np.int64).reshape(-1)
    if step.name == "maximum":
        return (limit, None)
    return (None, limit)


@FToTflite.register(OP)
def requantize(step: Step, graph: TfliteEmitter) -> Form | None:
    """Bias, relu and casts in front of the product, limits, zero point and cast behind it."""
    attrs = step.attrs
    factors = factors_in(step)
    front = Words(step)
    behind = Words(step)
    if factors is None or attrs.rounding != TFLM:
        whole = requantize_body(step, front)
        if not isinstance(whole, Value) or not written(front.steps, graph):
            return None
        return graph.form(whole)
    data = front.cast(summed(step, factors, front), attrs.compute_dtype)
    if written(front.steps, graph):
        form = _rescaled(data, factors, step, graph)
    else:
        form = None
    if form is None:
        return None
    scaled = Value(TensorType(step.result.type.shape, attrs.compute_dtype))
    graph.bind(scaled, form)
    result = finished(scaled, attrs, behind)
    if written(behind.steps, graph):
        return graph.form(result)
    return None


def written(words: Iterable[Step], graph: TfliteEmitter) -> bool:
    """Write words, but for those of constants; False where one of them has no form."""
    for word in words:
        if all(arg.data is not None for arg in word.args):
            continue
        rule = FToTflite.get(word.op)
        form = None if rule is None else rule(word, graph)
        if form is None:
            return False
        graph.bind(word.result, form)
    return True


def _rescaled(data: Value, factors: Factors, step: Step, graph: TfliteEmitter) -> Form | None:
    """The way back of a wide value, or one side of a sum on its way there."""
    form = graph.form(data)
    multiplier = factors.multiplier.reshape(-1)
    shift = factors.shift.reshape(-1)
    read = step.args[0].quant
    made = step.result.quant
    if read is not None:
        units = read.scales.reshape(-1).astype(np.float64)
    else:  # parts of a tensor carry none
        units = np.full(1, form.source.scale / form.factor if isinstance(form, Raw) else 1.0)
    scale = 0.0 if made is None else float(made.scales.max())
    rank = len(step.result.type.concrete_shape)
    if factors.multiplier.ndim and step.attrs.axis % rank != rank - 1:
        return None
    source: Product | Matmul | Total | Sum | Raw | Tensor | None
    if isinstance(form, Raw) and multiplier.size > 1:
        source = _as_product(form, graph)
    elif isinstance(form, Raw) and form.zero == form.source.zero and form.factor == 1:
        source = form
    elif isinstance(form, Raw) and form.zero == form.source.zero and form.raised:
        return Operand(form.source, int(multiplier[0]), int(shift[0]), form.factor * units.max())
    elif isinstance(form, (Product, Matmul, Total, Sum)):
        source = form
    else:
        source = graph.wide(data)
    if source is None:
        return None
    scaled = Scaled(source, multiplier, shift, units, scale)
    if not isinstance(source, (Product, Sum)):
        return scaled
    bounds: list[Ints | None] = []
    for limit in (source.low, source.high):
        if limit is None:
            after = None
        else:
            after = rescaled(limit, multiplier, shift, TFLM)
        bounds.append(after if after is None or np.ptp(after) else after[:1])
    if bounds[0] is not None and bounds[0].size > 1:
        scaled, bounds[0] = replace(scaled, floor=bounds[0]), None
    return _limited(scaled, *bounds)


# ---- products and windows ----------------------------------------------------------------------


@FToTflite.register("nn.conv2d")
def conv2d(step: Step, graph: TfliteEmitter) -> Form | None:
    """Dense, grouped or depthwise; padding in front of it is its own."""
    attrs: Any = step.attrs
    form = graph.form(step.args[0])
    weight = step.args[1].data
    if not isinstance(form, (Tensor, Padded)) or weight is None or weight.dtype != np.int8:
        return None
    if isinstance(form, Padded):
        padded = form
    else:
        padded = Padded(form, (0, 0, 0, 0))
    source = padded.source
    if source.dtype not in NARROW or {attrs.data_layout, attrs.out_layout or "NHWC"} != {"NHWC"}:
        return None
    laid = weight.transpose([attrs.kernel_layout.index(letter) for letter in "OHWI"])
    depthwise = attrs.groups > 1 and attrs.groups == source.shape[-1]
    return Product(
        source,
        laid.transpose(3, 1, 2, 0) if depthwise else laid,
        np.zeros(laid.shape[0], np.int64),
        step.result.type.concrete_shape,
        attrs.strides,
        attrs.dilation,
        tuple(a + b for a, b in zip(padded.padding, attrs.padding, strict=True)),
        depthwise,
    )


@FToTflite.register("nn.dense")
def dense(step: Step, graph: TfliteEmitter) -> Form | None:
    """A convolution of 1x1 over rows: LiteRT's FULLY_CONNECTED rounds otherwise than TFLM's."""
    source = graph.read(step.args[0], *NARROW)
    weight = step.args[1].data
    if source is None or weight is None or weight.dtype != np.int8:
        return None
    rows = math.prod(source.shape[:-1])
    laid = graph.reshaped(source, (1, rows, 1, source.shape[-1]))
    bias = np.zeros(weight.shape[0], np.int64)
    return Product(laid, weight[:, None, None, :], bias, (1, rows, 1, bias.size))


@FToTflite.register("nn.batch_matmul", "nn.matmul")
def matmul(step: Step, graph: TfliteEmitter) -> Form | None:
    """Write a product of two tensors that count from the module's 0; a constant has the dtype of
    the other."""
    read = [graph.read(arg, *NARROW) for arg in step.args]
    dtypes = {side.dtype for side in read if side is not None}
    if len(dtypes) != 1 or step.attrs.transpose_a:
        return None
    (dtype,) = dtypes
    sides: list[Tensor] = []
    for side, arg in zip(read, step.args, strict=True):
        if arg.data is not None:
            held = graph.writer.constant(arg.data, dtype, Grid((1.0,)))
            side = Tensor(held, arg.data.shape, 1.0, dtype=dtype)
        if side is None or side.zero:
            return None
        sides.append(side)
    lhs, rhs = sides
    return Matmul(lhs, rhs, step.attrs.transpose_b, step.result.type.concrete_shape)


@FToTflite.register("nn.fixed_point_softmax")
def softmax(step: Step, graph: TfliteEmitter) -> Form | None:
    """SOFTMAX of the last axis, in int16; another axis is made the last one."""
    source = graph.read(step.args[0], "int8")
    table = step.args[1].data
    if source is None or table is None:
        return None
    ours = exponentials(step.attrs.scale)
    if ours is None or not np.array_equal(ours, table):
        return None
    source = graph.worth(source, step.attrs.scale)
    rank = len(source.shape)
    axes = [axis for axis in range(rank) if axis != step.attrs.axis % rank]
    axes.append(step.attrs.axis % rank)
    made = graph.softmax(graph.transposed(source, axes))
    return Raw(graph.transposed(made, np.argsort(axes).tolist()))


@FToTflite.register("sum")
def total(step: Step, graph: TfliteEmitter) -> Form | None:
    """Write a sum of int16 in front of its mean, or of int8 as products with ones."""
    form = _as_raw(step.args[0], graph)
    if not isinstance(form, Raw) or form.factor != 1:
        return None
    if form.source.dtype == "int16":
        if form.zero:
            return None
        return Total(form.source, tuple(axes_of(step)))
    return _along(form, axes_of(step), graph)


@FToTflite.register("nn.global_avg_pool2d", "nn.avg_pool2d")
def average(step: Step, graph: TfliteEmitter) -> Form | None:
    """The sum of each window, where its mean has been made exact: a convolution with ones."""
    form = graph.form(step.args[0])
    attrs = step.attrs
    if not isinstance(form, Raw) or attrs.layout != "NHWC":
        return None
    _, height, width, channels = form.source.shape
    if step.name == "nn.global_avg_pool2d":
        size = (height, width)
        more = {}
        counts = np.array([height * width])
    else:
        size = attrs.pool_size
        counts = window_counts(attrs, height, width)
        more = {"strides": attrs.strides, "dilation": attrs.dilation, "padding": attrs.padding}
    if (counts != form.factor).any():
        return None
    out = step.result.type.concrete_shape
    return _sums(form, form.source, (1, *size, channels), out, depthwise=True, **more)


@FToTflite.register("mean")
def mean(step: Step, graph: TfliteEmitter) -> Form | None:
    """The sum, where the mean has been made exact."""
    form = graph.form(step.args[0])
    axes = axes_of(step)
    if not isinstance(form, Raw) or form.source.dtype not in NARROW:
        return None
    if math.prod(form.source.shape[axis] for axis in axes) != form.factor:
        return None
    return _along(form, axes, graph)


def _along(form: Raw, axes: Sequence[int], graph: TfliteEmitter) -> Product | None:
    """The sum along axes that lie side by side, as ``average``: of rows, or of channels."""
    shape = form.source.shape
    if not axes or axes[-1] - axes[0] != len(axes) - 1:
        return None
    count = math.prod(shape[axis] for axis in axes)
    ahead = math.prod(shape[: axes[0]])
    behind = math.prod(shape[axes[-1] + 1 :])
    if behind == 1:
        source = graph.reshaped(form.source, (1, ahead, 1, count))
        return _sums(form, source, (1, 1, 1, count), (1, ahead, 1, 1))
    source = graph.reshaped(form.source, (ahead, count, 1, behind))
    window = (1, count, 1, behind)
    out = (ahead, 1, 1, behind)
    return _sums(form, source, window, out, depthwise=True)


def _sums(
    form: Raw, source: Tensor, window: tuple[int, ...], out: tuple[int, ...], **how: Any
) -> Product:
    """Sums of windows of a tensor that counts from its zero, as products with ones."""
    channels = out[-1]
    # What is added has been centred, as the kernel does it.
    terms = math.prod(window) // (channels if how.get("depthwise") else 1)
    bias = np.full(channels, -form.zero * terms, np.int64)
    return Product(source, np.ones(window, np.int8), bias, out, **how)


@FToTflite.register("nn.max_pool2d")
def max_pool2d(step: Step, graph: TfliteEmitter) -> Form | None:
    """Padding holds the smallest value."""
    attrs: Any = step.attrs
    source = graph.read(step.args[0], *NARROW)
    if source is None or attrs.layout != "NHWC" or max(attrs.dilation) > 1:
        return None
    return graph.max_pool(source, attrs, step.result.type.concrete_shape)


def number_of(value: Value) -> int | None:
    """A constant of one element."""
    if value.data is None or value.data.size != 1:
        return None
    return int(value.data.reshape(-1)[0])
