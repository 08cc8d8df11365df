"""LiteRT rules of operators that move, pick and look up elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from compiler.core.legalize import words_of
from compiler.export.to_tflite.emitter import TfliteEmitter
from compiler.export.to_tflite.rules import FToTflite, number_of, written
from compiler.export.to_tflite.values import (
    ANY,
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
)
from compiler.ir.dataflow import Step
from compiler.ops.reduce.axes import axes_of
from compiler.ops.transform.strided_slice import slices_of


@FToTflite.register("nn.pad")
def pad(step: Step, graph: TfliteEmitter) -> Form | None:
    """Kept for the convolution behind it, where it is one of an image with zeros; elements of the
    data are gathered."""
    source = graph.read(step.args[0], *NARROW)
    value = number_of(step.args[1])
    width = step.attrs.pad_width
    if source is None or value is None:
        return None
    if step.attrs.pad_mode != "constant":
        for axis, ends in enumerate(width):
            if any(ends):
                places = np.pad(np.arange(source.shape[axis]), ends, step.attrs.pad_mode)
                source = _gathered(graph, source, places, axis)
        return source
    if len(width) == 4 and not any((*width[0], *width[3])) and value == source.zero:
        (top, bottom), (left, right) = width[1:3]
        return Padded(source, (top, left, bottom, right))
    return graph.padded(source, width, value - source.offset)


def _moved(
    step: Step, graph: TfliteEmitter, move: Callable[[Tensor], Tensor | None]
) -> Form | None:
    """A move of a value: of the tensor that it is, or of those that it is made of."""
    form = graph.form(step.args[0])
    if isinstance(form, (Raw, Operand)):
        source = move(form.source)
        if source is None:
            return None
        return replace(form, source=source)
    if isinstance(form, Scaled) and isinstance(form.source, Raw) and form.multiplier.size < 2:
        source = move(form.source.source)
        if source is None:
            return None
        return replace(form, source=replace(form.source, source=source))
    if isinstance(form, Sum) and form.lhs.source.shape == form.rhs.source.shape:
        lhs, rhs = (move(side.source) for side in (form.lhs, form.rhs))
        if lhs is None or rhs is None:
            return None
        return replace(form, lhs=replace(form.lhs, source=lhs), rhs=replace(form.rhs, source=rhs))
    held = graph.read(step.args[0], *ANY) or graph.wide(step.args[0])
    if held is None:
        return None
    return move(held)


@FToTflite.register("reshape")
def reshape(step: Step, graph: TfliteEmitter) -> Form | None:
    """RESHAPE; products of matrices, and others whose channels stay, get their shape at last."""
    form = graph.form(step.args[0])
    shape = step.result.type.concrete_shape
    kept = shape[-1:] == step.args[0].type.concrete_shape[-1:]
    if isinstance(form, Matmul) or (isinstance(form, Product) and kept):
        return form
    return _moved(step, graph, lambda source: graph.reshaped(source, shape))


@FToTflite.register("transpose")
def transpose(step: Step, graph: TfliteEmitter) -> Form | None:
    """TRANSPOSE."""
    rank = len(step.result.type.concrete_shape)
    axes = [axis % rank for axis in step.attrs.axes or range(rank)[::-1]]

    def move(source: Tensor) -> Tensor | None:
        if source.dtype == "int32":
            return None
        return graph.transposed(source, axes)

    return _moved(step, graph, move)


@FToTflite.register("strided_slice")
def strided_slice(step: Step, graph: TfliteEmitter) -> Form | None:
    """STRIDED_SLICE of at most four axes, forward; backward GATHER."""
    return _moved(step, graph, lambda source: _sliced(source, step, graph))


def _sliced(source: Tensor, step: Step, graph: TfliteEmitter) -> Tensor | None:
    shape = source.shape
    out = step.result.type.concrete_shape
    cuts = slices_of(shape, step.attrs)
    begins = [0] * len(shape)
    strides = [1] * len(shape)
    for axis, (begin, _end, by) in cuts.items():
        begin %= shape[axis]
        if by < 0 and source.dtype in NARROW:
            places = begin + by * np.arange(out[axis])
            source = _gathered(graph, source, places, axis)
        elif by < 0:
            return None
        else:
            begins[axis], strides[axis] = begin, by
    return graph.sliced(source, begins, out, strides)


@FToTflite.register("nn.depth_to_space", "nn.space_to_depth")
def sub_pixels(step: Step, graph: TfliteEmitter) -> Form | None:
    """DEPTH_TO_SPACE, SPACE_TO_DEPTH, whose blocks lie outermost in the channels of NHWC; of int16
    TRANSPOSE."""
    source = graph.read(step.args[0], *NARROW)
    attrs = step.attrs
    if source is None or attrs.layout not in ("NCHW", "NHWC"):
        return None
    if source.dtype == "int16":
        words, (whole,) = words_of(step)
        if written(words, graph):
            return graph.form(whole)
        return None
    shape = step.result.type.concrete_shape
    planes = attrs.layout == "NCHW"
    growing = step.name == "nn.depth_to_space"
    if planes:
        source = graph.transposed(source, (0, 2, 3, 1))
        shape = tuple(shape[axis] for axis in (0, 2, 3, 1))
    block = attrs.block_size
    inner = attrs.mode == "CRD"
    wide = max(source.shape[3], shape[3])
    area = block**2
    order = np.arange(wide).reshape(wide // area, area).T.reshape(-1)
    if inner and growing:
        source = _gathered(graph, source, order, 3)
    name = step.name.removeprefix("nn.").upper()
    made = graph.moved(name, [source], shape, blockSize=block)
    if inner and not growing:
        made = _gathered(graph, made, np.argsort(order), 3)
    if planes:
        return graph.transposed(made, (0, 3, 1, 2))
    return made


@FToTflite.register("take")
def take(step: Step, graph: TfliteEmitter) -> Form | None:
    """GATHER at places that are known (nearest resizes, flips, rolls, repeats), or from a table."""
    places = step.args[1].data
    attrs = step.attrs
    table = step.args[0].data
    computed = None if table is None else graph.wide(step.args[1])
    if table is not None and computed is not None and attrs.axis == 0:
        scale = _EMBEDDED if table.dtype == np.int8 else 0.0
        like = Tensor(-1, (), scale, dtype=table.dtype.name)
        held = graph.within(computed, table.shape[0], attrs.mode == "wrap")
        return graph.entries(table.astype(np.int64), held, like)
    if places is None or attrs.axis is None or attrs.batch_dims:
        return None
    shape = step.args[0].type.concrete_shape
    axis = attrs.axis % len(shape)
    wraps = attrs.mode == "wrap"
    last = shape[axis] - 1
    if wraps:
        inside = places % shape[axis]
    else:
        inside = np.clip(places, 0, last)

    def move(source: Tensor) -> Tensor | None:
        if source.dtype == "int32":
            return None
        return _gathered(graph, source, inside, axis)

    return _moved(step, graph, move)


_EMBEDDED: Final = 2.0**-6
"""Step of rows of a table, until their reader gives the true one."""


def _gathered(graph: TfliteEmitter, source: Tensor, places: Ints, axis: int) -> Tensor:
    """GATHER; TFLM gathers no int16: slices of them are put together."""
    shape = (*source.shape[:axis], *places.shape, *source.shape[axis + 1 :])
    if source.dtype == "int16":
        order = places.reshape(-1)
        runs = np.split(order, 1 + np.flatnonzero(np.diff(order) != 1))
        parts = [graph.run(source, axis, int(run[0]), len(run)) for run in runs]
        return graph.reshaped(graph.joined(parts, axis), shape)
    return graph.moved("GATHER", [source], shape, [places], axis=axis)


@FToTflite.register("max", "min")
def extremum(step: Step, graph: TfliteEmitter) -> Form | None:
    """REDUCE_MAX, REDUCE_MIN; of int16, which they do not take, MAXIMUM or MINIMUM of halves."""
    source = graph.read(step.args[0], *NARROW)
    axes = list(axes_of(step))
    shape = step.result.type.concrete_shape
    if source is None:
        return None
    if source.dtype == "int8":
        name = f"REDUCE_{step.name.upper()}"
        kept = step.attrs.keepdims
        return graph.moved(name, [source], shape, [axes], keepDims=kept)
    for axis in axes:
        while (size := source.shape[axis]) > 1:
            half = (size + 1) // 2
            first, last = (graph.run(source, axis, at, half) for at in (0, size - half))
            source = graph.arithmetic(f"{step.name.upper()}IMUM", first, last)
    return graph.reshaped(source, shape)


@FToTflite.register("argmax")
def position(step: Step, graph: TfliteEmitter) -> Form | None:
    """ARG_MAX: the first of equal ones along one axis."""
    source = graph.read(step.args[0], "int8")
    axes = axes_of(step)
    if source is None or len(axes) != 1 or step.attrs.select_last_index:
        return None
    shape = [size for axis, size in enumerate(source.shape) if axis not in axes]
    return graph.reshaped(graph.arg_max(source, axes[0], shape), step.result.type.concrete_shape)


@FToTflite.register("broadcast_to")
def broadcast_to(step: Step, graph: TfliteEmitter) -> Form | None:
    """BROADCAST_TO."""
    source = graph.read(step.args[0], *ANY)
    shape = step.result.type.concrete_shape
    if source is None:
        return None
    return graph.moved("BROADCAST_TO", [source], shape, [shape])


@FToTflite.register("lookup")
def lookup(step: Step, graph: TfliteEmitter) -> Form | None:
    """Any function of 8 bits: GATHER from its 256 entries, at the integer as a place."""
    source = graph.read(step.args[0], "int8")
    table = step.args[1].data
    quant = step.result.quant
    dtype, (scale, zero_point) = step.result.type.dtype, (quant and quant.of_tensor) or (0.0, 0)
    dtype, offset = ("int8", 128) if dtype == "uint8" else (dtype, 0)
    if source is None or table is None or (dtype == "int8" and not scale):
        return None
    entries = table[np.minimum(np.arange(256), table.size - 1)].astype(np.int64) - offset
    like = Tensor(-1, (), scale, zero_point, offset, dtype)
    return graph.entries(entries, graph.moved_by(source, 128), like)


@FToTflite.register("concatenate")
def concatenate(step: Step, graph: TfliteEmitter) -> Form | None:
    """CONCATENATION of tensors at one scale."""
    found = [graph.read(arg, *ANY) for arg in step.args]
    parts = [part for part in found if part is not None]
    if len(parts) != len(found) or len({part.kind for part in parts}) != 1:
        return None
    axis = step.attrs.axis % len(step.result.type.concrete_shape)
    return graph.joined(parts, axis)
