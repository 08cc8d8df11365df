"""What each operator of an integer module is in a LiteRT file; ``FToTflite`` holds a rule for each.

    nn.conv2d(x, w) + bias, clip, fixed_point_rescale, clip, cast      CONV_2D, DEPTHWISE_CONV_2D
    nn.dense(x, w)                                                     CONV_2D of 1x1
    nn.global_avg_pool2d(x * count), fixed_point_rescale               DEPTHWISE_CONV_2D with ones
    mean(x * count), fixed_point_rescale                               the same, or CONV_2D
    fixed_point_rescale(x << 20) + fixed_point_rescale(y << 20), ...   ADD, SUB
    fixed_point_rescale(x)                                             QUANTIZE
    fixed_point_rescale(x * y)                                         MUL
    lookup(x, table)                                                   CAST, ADD of 128, GATHER
    take(x, known places)                                              GATHER

A rule gives the form of the result, or None where it has none here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from compiler.export.to_tflite.emitter import TfliteEmitter
from compiler.export.to_tflite.values import (
    Form,
    Ints,
    Narrow,
    Operand,
    Padded,
    Product,
    Raw,
    Scaled,
    Sum,
)
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType
from compiler.ops.nn.avg_pool2d import window_counts
from compiler.ops.reduce.axes import axes_of
from compiler.ops.rules.fixed_point import SUM_SHIFT
from compiler.ops.tensor.fixed_point_rescale import rescaled_twice
from compiler.ops.transform.strided_slice import slices_of

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
    form, dtype = graph.form(step.args[0]), step.result.type.dtype
    if dtype in ("int32", "int64"):
        if isinstance(form, (Narrow, Padded)):
            return Raw(graph.tensor(form))
        return form
    if dtype not in ("int8", "uint8"):
        return None
    if isinstance(form, (Narrow, Padded)):
        return form if step.args[0].type.dtype == dtype else None
    form = _as_scaled(form)
    if isinstance(form, Scaled):
        return graph.narrowed(form, 128 if dtype == "uint8" else 0, step.result.type)
    return None


_NO_FACTOR: Final = np.zeros(0, np.int64)


def _as_scaled(form: Form | None) -> Form | None:
    """A tensor that was made wide only, as a value that keeps its scale."""
    if isinstance(form, Raw) and form.factor == 1:
        return Scaled(form, _NO_FACTOR, _NO_FACTOR, form.source.scale)
    return form


def _as_raw(value: Value, graph: TfliteEmitter) -> Form | None:
    """A scaled value that stayed wide although it fits 8 bits, as a tensor that was made wide."""
    form = graph.form(value)
    if not isinstance(form, Scaled):
        return form
    low, high = form.low + form.zero, form.high + form.zero
    offset = 128 if low >= 0 else 0
    if not -128 <= low - offset <= high - offset <= 127:
        return None
    narrow = graph.narrowed(form, offset, value.type)
    return None if narrow is None else Raw(narrow)


@FToTflite.register("left_shift", "multiply")
def raised(step: Step, graph: TfliteEmitter) -> Form | None:
    """A tensor as many times as fine, or times another one."""
    form, other = (_as_raw(arg, graph) for arg in step.args)
    amount = _number(step.args[1])
    if isinstance(form, Raw) and isinstance(other, Raw) and form.factor == other.factor == 1:
        for side in (form, other):
            graph.check_zero(side, step)
        return Sum("MUL", Operand(form.source, 0, 0), Operand(other.source, 0, 0))
    if not isinstance(form, Raw) or form.factor != 1 or amount is None:
        return None
    return replace(form, factor=1 << amount if step.name == "left_shift" else amount)


@FToTflite.register("add")
def add(step: Step, graph: TfliteEmitter) -> Form | None:
    """A bias, a zero point, or the sum of two tensors."""
    lhs, rhs = step.args
    if lhs.data is not None:
        lhs, rhs = rhs, lhs
    form = graph.form(lhs)
    if isinstance(form, Product) and rhs.data is not None and form.low is None:
        return _with_bias(form, rhs)
    moved = _number(rhs)
    if isinstance(form, Scaled) and moved is not None:
        return replace(form, zero=form.zero + moved)
    return _sum("ADD", step, graph)


@FToTflite.register("subtract")
def subtract(step: Step, graph: TfliteEmitter) -> Form | None:
    """A tensor without its zero point, or the difference of two."""
    form, zero = graph.form(step.args[0]), _number(step.args[1])
    if isinstance(form, Scaled) and zero is not None and zero == form.zero:
        narrow = graph.narrowed(form, 0, step.result.type)
        form = None if narrow is None else Raw(narrow)
    if isinstance(form, Raw) and form.factor == 1 and zero is not None:
        return replace(form, zero=form.zero + zero)
    return _sum("SUB", step, graph)


def _sum(name: str, step: Step, graph: TfliteEmitter) -> Form | None:
    lhs, rhs = (graph.form(arg) for arg in step.args)
    if not isinstance(lhs, Operand) or not isinstance(rhs, Operand):
        return None
    return Sum(name, lhs, rhs)


def _with_bias(form: Product, bias: Value) -> Product | None:
    assert bias.data is not None
    added = bias.data.astype(np.int64)
    if added.size != 1 and not added.shape[-1] == added.size == form.bias.size:
        return None  # not one for each channel
    return replace(form, bias=form.bias + added.reshape(-1))


@FToTflite.register("nn.relu", "clip", "maximum", "minimum")
def limited(step: Step, graph: TfliteEmitter) -> Form | None:
    """Limits of sums, one for each channel, or of a result."""
    form = graph.form(step.args[0])
    low, high = _limits(step)
    if form is None or (low is None and high is None):
        return None
    if isinstance(form, (Product, Sum)):
        return replace(
            form,
            low=_of_both(np.maximum, low, form.low),
            high=_of_both(np.minimum, high, form.high),
        )
    if isinstance(form, (Narrow, Padded)):
        own = graph.tensor(form)
        begins, ends = own.offset - 128, own.offset + 127
        inside = (low is None or (low <= begins).all()) and (high is None or (high >= ends).all())
        if inside:
            return form
        made = _limited(Scaled(Raw(own), _NO_FACTOR, _NO_FACTOR, own.scale), low, high)
        return None if made is None else graph.narrowed(made, own.offset, step.result.type)
    form = _as_scaled(form)
    return _limited(form, low, high) if isinstance(form, Scaled) else None


def _of_both(choose: Any, one: Ints | None, other: Ints | None) -> Ints | None:
    if one is None or other is None:
        return other if one is None else one
    return np.asarray(choose(one, other), np.int64)


def _limited(form: Scaled, low: Ints | None, high: Ints | None) -> Scaled | None:
    if any(limit is not None and limit.size != 1 for limit in (low, high)):
        return None
    lowest = form.low if low is None else max(form.low, int(low.ravel()[0]) - form.zero)
    highest = form.high if high is None else min(form.high, int(high.ravel()[0]) - form.zero)
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
    return (limit, None) if step.name == "maximum" else (None, limit)


@FToTflite.register("fixed_point_rescale")
def rescale(step: Step, graph: TfliteEmitter) -> Form | None:
    """The way back of a wide value, or one side of a sum on its way there."""
    form, attrs = graph.form(step.args[0]), step.attrs
    numbers = [arg.data for arg in step.args[1:]]
    if any(data is None for data in numbers):
        return None
    multiplier, shift = (np.asarray(data, np.int64) for data in numbers)
    rank = len(step.result.type.concrete_shape)
    if attrs.axis is not None and attrs.axis % rank != rank - 1:
        return None
    if isinstance(form, Raw) and form.factor == 1 << SUM_SHIFT and multiplier.size == 1:
        graph.check_zero(form, step)
        return Operand(form.source, int(multiplier[0]), int(shift[0]))
    if isinstance(form, Raw) and form.factor == 1:
        graph.check_zero(form, step)
    elif not isinstance(form, (Product, Sum)):
        return None
    made = Scaled(form, multiplier, shift, attrs.scale)
    if isinstance(form, Raw):
        return made
    bounds: list[Ints | None] = []
    for limit in (form.low, form.high):
        after = None if limit is None else np.unique(rescaled_twice(limit, multiplier, shift))
        if after is not None and after.size != 1:
            return None
        bounds.append(after)
    return _limited(made, *bounds)


# ---- products and windows ----------------------------------------------------------------------


@FToTflite.register("nn.conv2d")
def conv2d(step: Step, graph: TfliteEmitter) -> Form | None:
    """Dense, grouped or depthwise; padding in front of it is its own."""
    attrs: Any = step.attrs
    form, weight = graph.form(step.args[0]), step.args[1].data
    narrow = isinstance(form, (Narrow, Padded)) and step.args[1].type.dtype == "int8"
    layouts = {attrs.data_layout, attrs.out_layout or "NHWC"}
    if not narrow or weight is None or layouts != {"NHWC"}:
        return None
    assert isinstance(form, (Narrow, Padded))
    source, padding = graph.unpadded(form, attrs.padding)
    laid = weight.transpose([attrs.kernel_layout.index(letter) for letter in "OHWI"])
    depthwise = attrs.groups > 1 and attrs.groups == source.shape[-1]
    return Product(
        source,
        laid.transpose(3, 1, 2, 0) if depthwise else laid,
        np.zeros(laid.shape[0], np.int64),
        step.result.type.concrete_shape,
        attrs.strides,
        attrs.dilation,
        padding,
        depthwise,
    )


@FToTflite.register("nn.dense")
def dense(step: Step, graph: TfliteEmitter) -> Form | None:
    """A convolution of 1x1 over rows: LiteRT's FULLY_CONNECTED rounds otherwise than TFLM's."""
    form, weight = graph.form(step.args[0]), step.args[1].data
    if not isinstance(form, (Narrow, Padded)) or weight is None or weight.dtype != np.int8:
        return None
    source = graph.tensor(form)
    rows = math.prod(source.shape[:-1])
    laid = graph.reshaped(source, (1, rows, 1, source.shape[-1]))
    bias = np.zeros(weight.shape[0], np.int64)
    return Product(laid, weight[:, None, None, :], bias, (1, rows, 1, bias.size))


@FToTflite.register("nn.global_avg_pool2d", "nn.avg_pool2d")
def average(step: Step, graph: TfliteEmitter) -> Form | None:
    """The sum of each window, where its mean has been made exact: a convolution with ones."""
    form, attrs = graph.form(step.args[0]), step.attrs
    if not isinstance(form, Raw) or attrs.layout != "NHWC":
        return None
    graph.check_zero(form, step)
    _, height, width, channels = form.source.shape
    if step.name == "nn.global_avg_pool2d":
        size, more = (height, width), {}
        counts = np.array([height * width])
    else:
        size, counts = attrs.pool_size, window_counts(attrs, height, width)
        more = {"strides": attrs.strides, "dilation": attrs.dilation, "padding": attrs.padding}
    if (counts != form.factor).any():
        return None
    out = step.result.type.concrete_shape
    return _sums(form, form.source, (1, *size, channels), out, depthwise=True, **more)


@FToTflite.register("mean")
def mean(step: Step, graph: TfliteEmitter) -> Form | None:
    """The sum along axes that lie side by side, as ``average``: of rows, or of channels."""
    form = graph.form(step.args[0])
    if not isinstance(form, Raw):
        return None
    graph.check_zero(form, step)
    shape = form.source.shape
    axes = axes_of(step)
    count = math.prod(shape[axis] for axis in axes)
    if not axes or axes[-1] - axes[0] != len(axes) - 1 or count != form.factor:
        return None
    ahead, behind = math.prod(shape[: axes[0]]), math.prod(shape[axes[-1] + 1 :])
    if behind == 1:
        source = graph.reshaped(form.source, (1, ahead, 1, count))
        return _sums(form, source, (1, 1, 1, count), (1, ahead, 1, 1))
    source = graph.reshaped(form.source, (ahead, count, 1, behind))
    window, out = (1, count, 1, behind), (ahead, 1, 1, behind)
    return _sums(form, source, window, out, depthwise=True)


def _sums(
    form: Raw, source: Narrow, window: tuple[int, ...], out: tuple[int, ...], **how: Any
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
    form = graph.form(step.args[0])
    if not isinstance(form, (Narrow, Padded)) or attrs.layout != "NHWC" or max(attrs.dilation) > 1:
        return None
    return graph.max_pool(graph.tensor(form), attrs, step.result.type.concrete_shape)


# ---- moves -------------------------------------------------------------------------------------


@FToTflite.register("nn.pad")
def pad(step: Step, graph: TfliteEmitter) -> Form | None:
    """Kept for the convolution behind it, where it is one of an image with zeros; elements of the
    data are gathered."""
    form, value = graph.form(step.args[0]), _number(step.args[1])
    width = step.attrs.pad_width
    if not isinstance(form, (Narrow, Padded)) or value is None:
        return None
    source = graph.tensor(form)
    if step.attrs.pad_mode != "constant":
        for axis, ends in enumerate(width):
            if any(ends):
                places = np.pad(np.arange(source.shape[axis]), ends, step.attrs.pad_mode)
                source = _gathered(graph, source, places, axis, step.result.type.dtype)
        return source
    if len(width) == 4 and not any((*width[0], *width[3])) and value == source.zero:
        (top, bottom), (left, right) = width[1:3]
        return Padded(source, (top, left, bottom, right))
    return graph.padded(source, width, value - source.offset)


@FToTflite.register("reshape")
def reshape(step: Step, graph: TfliteEmitter) -> Form | None:
    """RESHAPE."""
    form = graph.form(step.args[0])
    if not isinstance(form, (Narrow, Padded)):
        return None
    return graph.reshaped(graph.tensor(form), step.result.type.concrete_shape)


@FToTflite.register("transpose")
def transpose(step: Step, graph: TfliteEmitter) -> Form | None:
    """TRANSPOSE."""
    form = graph.form(step.args[0])
    if not isinstance(form, (Narrow, Padded)):
        return None
    rank = len(step.result.type.concrete_shape)
    axes = [axis % rank for axis in step.attrs.axes or range(rank)[::-1]]
    return graph.transposed(graph.tensor(form), axes)


@FToTflite.register("strided_slice")
def strided_slice(step: Step, graph: TfliteEmitter) -> Form | None:
    """STRIDED_SLICE, forward."""
    form = graph.form(step.args[0])
    shape, out = step.args[0].type.concrete_shape, step.result.type.concrete_shape
    cuts = slices_of(shape, step.attrs)
    if not isinstance(form, (Narrow, Padded)) or any(by < 0 for _, _, by in cuts.values()):
        return None
    begins, strides = [0] * len(shape), [1] * len(shape)
    for axis, (begin, _end, by) in cuts.items():
        begins[axis], strides[axis] = begin % shape[axis], by
    ends = [begin + (n - 1) * by + 1 for begin, n, by in zip(begins, out, strides)]
    lists = [begins, ends, strides]
    source = graph.tensor(form)
    return graph.moved("STRIDED_SLICE", [source], step.result.type, lists, "StridedSliceOptions")


@FToTflite.register("nn.depth_to_space", "nn.space_to_depth")
def sub_pixels(step: Step, graph: TfliteEmitter) -> Form | None:
    """DEPTH_TO_SPACE, SPACE_TO_DEPTH, whose blocks lie outermost in the channels of NHWC."""
    form, attrs, result = graph.form(step.args[0]), step.attrs, step.result.type
    if not isinstance(form, (Narrow, Padded)) or attrs.layout not in ("NCHW", "NHWC"):
        return None
    source, shape = graph.tensor(form), result.concrete_shape
    planes, growing = attrs.layout == "NCHW", step.name == "nn.depth_to_space"
    if planes:
        source = graph.transposed(source, (0, 2, 3, 1))
        shape = tuple(shape[axis] for axis in (0, 2, 3, 1))
    wide, area = max(source.shape[3], shape[3]), attrs.block_size**2
    order = np.arange(wide).reshape(wide // area, area).T.reshape(-1)
    inner = attrs.mode == "CRD"
    if inner and growing:
        source = _gathered(graph, source, order, 3, result.dtype)
    name = step.name.removeprefix("nn.").upper()
    options = "DepthToSpaceOptions" if growing else "SpaceToDepthOptions"
    ty, block = TensorType(shape, result.dtype), attrs.block_size
    made = graph.moved(name, [source], ty, [], options, blockSize=block)
    if inner and not growing:
        made = _gathered(graph, made, np.argsort(order), 3, result.dtype)
    return graph.transposed(made, (0, 3, 1, 2)) if planes else made


@FToTflite.register("take")
def take(step: Step, graph: TfliteEmitter) -> Form | None:
    """GATHER at places that are known: nearest resizes, flips, rolls, repeats."""
    form, places, attrs = graph.form(step.args[0]), step.args[1].data, step.attrs
    if not isinstance(form, (Narrow, Padded)) or attrs.axis is None or attrs.batch_dims:
        return None
    if places is None:
        return None
    source = graph.tensor(form)
    axis = attrs.axis % len(source.shape)
    size = source.shape[axis]
    inside = places % size if attrs.mode == "wrap" else np.clip(places, 0, size - 1)
    return _gathered(graph, source, inside, axis, step.result.type.dtype)


def _gathered(graph: TfliteEmitter, source: Narrow, places: Ints, axis: int, dtype: str) -> Narrow:
    shape = (*source.shape[:axis], *places.shape, *source.shape[axis + 1 :])
    ty = TensorType(shape, dtype)
    return graph.moved("GATHER", [source], ty, [places], "GatherOptions", axis=axis)


@FToTflite.register("max")
def largest(step: Step, graph: TfliteEmitter) -> Form | None:
    """REDUCE_MAX."""
    form, kept = graph.form(step.args[0]), step.attrs.keepdims
    if not isinstance(form, (Narrow, Padded)):
        return None
    how = {"options": "ReducerOptions", "keepDims": kept}
    source, axes = graph.tensor(form), list(axes_of(step))
    return graph.moved("REDUCE_MAX", [source], step.result.type, [axes], **how)


@FToTflite.register("broadcast_to")
def broadcast_to(step: Step, graph: TfliteEmitter) -> Form | None:
    """BROADCAST_TO."""
    form, shape = graph.form(step.args[0]), step.result.type.concrete_shape
    if not isinstance(form, (Narrow, Padded)):
        return None
    source, options = graph.tensor(form), "BroadcastToOptions"
    return graph.moved("BROADCAST_TO", [source], step.result.type, [shape], options)


@FToTflite.register("lookup")
def lookup(step: Step, graph: TfliteEmitter) -> Form | None:
    """Any function of 8 bits: GATHER from its 256 entries, at the integer as a place."""
    form, table, attrs = graph.form(step.args[0]), step.args[1].data, step.attrs
    offset = {"int8": 0, "uint8": 128}.get(step.result.type.dtype)
    if not isinstance(form, (Narrow, Padded)) or offset is None or table is None or not attrs.unit:
        return None
    entries = table[np.minimum(np.arange(256), table.size - 1)].astype(np.int64) - offset
    like = Narrow(-1, (), attrs.scale, attrs.zero_point, offset)
    return graph.gathered(graph.tensor(form), entries, like)


@FToTflite.register("concatenate")
def concatenate(step: Step, graph: TfliteEmitter) -> Form | None:
    """CONCATENATION of tensors at one scale."""
    forms = [graph.form(arg) for arg in step.args]
    parts = [graph.tensor(f) for f in forms if isinstance(f, (Narrow, Padded))]
    kinds = {(part.scale, part.zero, part.offset) for part in parts}
    if len(parts) != len(forms) or len(kinds) != 1:
        return None
    axis = step.attrs.axis % len(step.result.type.concrete_shape)
    how = {"options": "ConcatenationOptions", "axis": axis}
    return graph.moved("CONCATENATION", parts, step.result.type, [], **how)


def _number(value: Value) -> int | None:
    """A constant of one element."""
    return None if value.data is None or value.data.size != 1 else int(value.data.reshape(-1)[0])
