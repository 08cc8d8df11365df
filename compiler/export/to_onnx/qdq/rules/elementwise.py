"""Sums, limits, casts and requantizations: the float arithmetic between two 8 bit tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from compiler.core.legalize import forget, words_of
from compiler.core.words import MOVES
from compiler.export.to_onnx.emitter import Emitter, emit_step
from compiler.export.to_onnx.qdq.emitter import (
    Floats,
    FToQdq,
    QdqEmitter,
    Real,
    of_operand,
    scaled,
)
from compiler.export.to_onnx.qdq.limits import factor_of, is_same, limits_in
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import integer_range, is_integer
from compiler.ops.image.interpolated_integers import MIX, coordinates_of, matrix_of
from compiler.ops.qnn.requantize import (
    OP,
    RESCALING,
    TFLM,
    RequantizeAttrs,
    factors_in,
    limits_of,
)


@FToQdq.register("cast")
def cast(step: Step, graph: QdqEmitter) -> Real | None:
    """The value itself where the dtype holds it."""
    source = step.args[0]
    if not is_integer(source.type.dtype):
        return _quantized_input(step, graph)
    (least, most), (low, high) = graph.words.ends(source), integer_range(step.result.type.dtype)
    if low <= least and most <= high:
        return graph.real(source)
    return None


def _quantized_input(step: Step, graph: QdqEmitter) -> Real | None:
    """cast(clip(round(multiply(x, r))) + z): x, which QuantizeLinear scales and 8 bits limit;
    z is part of the zero point."""
    value = step.args[0]
    factor = 1.0
    zero = 0.0
    producer = value.producer
    if producer is not None and producer.name == "add" and producer.args[1].data is not None:
        if producer.args[1].data.size != 1:
            return None
        value = producer.args[0]
        zero = float(producer.args[1].data.reshape(()))
    limits = None
    for name in ("clip", "round"):
        if value.producer is None or value.producer.name != name:
            return None
        limits = limits or value.producer.attrs
        value = value.producer.args[0]
    assert limits is not None
    producer = value.producer
    if producer is not None and producer.name == "multiply" and _number(producer.args[1]):
        value = producer.args[0]
        factor = _number(producer.args[1])
    if value.type.dtype != "float32":
        return None
    name = graph.words.name(value)
    real = Real.of(lambda scale, addend: scaled(name, scale, addend, graph)).times(factor)
    real = real.plus(zero) if zero else real
    return replace(real, source=name, clip=(limits.a_min + zero, limits.a_max + zero))


def _number(value: Value) -> float:
    """A positive constant of one element; 0 for others."""
    if value.data is None or value.data.size != 1:
        return 0.0
    return max(float(value.data.reshape(())), 0.0)


@FToQdq.register("add", "subtract")
def add(step: Step, graph: QdqEmitter) -> Real | None:
    """A constant becomes part of the bias; two tensors are added."""
    lhs, rhs = step.args
    if step.name != "subtract" and lhs.data is not None:
        lhs, rhs = rhs, lhs
    sign = -1 if step.name == "subtract" else 1
    waiting = graph.real(lhs)
    if waiting is not None and rhs.data is not None and rhs.data.size == 1:
        return graph.plus(waiting, sign * float(rhs.data.reshape(())))
    if (bent := _leaky(step, graph)) is not None:
        return bent
    a = _free(lhs, graph)
    if a is None:
        return None
    if rhs.data is not None:
        return a.plus(_short(sign * rhs.data.astype(np.float64), lhs))
    b = _free(rhs, graph)
    if b is None:
        return None
    operator = "Add" if sign > 0 else "Sub"

    def write(scale: Floats, addend: Floats | None) -> str:
        name = graph.node(operator, [a.emit(graph, scale), b.emit(graph, scale)])
        return scaled(name, np.ones(()), None if addend is None else addend * scale, graph)

    return Real.of(write, 1 + max(a.depth, b.depth))


def _leaky(step: Step, graph: QdqEmitter) -> Real | None:
    """max(x, 0) + slopes * min(x, 0): PRelu."""
    for above, value in (step.args, step.args[::-1]):
        slopes: Floats = np.ones(())
        while (below := value.producer) is not None:
            factor = factor_of(below) if limits_in(below) is None else None
            if factor is None and not is_same(below):
                break
            slopes = slopes if factor is None else slopes * factor
            value = below.args[0]
        source = _half(above.producer, "maximum")
        real = None if source is None else _free(source, graph)
        if real is None or source is not _half(below, "minimum"):
            continue

        def write(factors: Floats, data: Real = real, slope: Floats = slopes) -> str:
            inputs = [data.emit(graph, factors), graph.float_constant(slope)]
            return graph.node("PRelu", inputs)

        return of_operand(write, graph, real.depth, channels=True)
    return None


def _half(step: Step | None, name: str) -> Value | None:
    """Return the value that a maximum or minimum compares with 0; None for other steps."""
    if step is None or step.name != name or step.args[1].data is None:
        return None
    if step.args[1].data.any():
        return None
    return step.args[0]


def _short(constant: Floats, value: Value) -> Floats:
    """Without leading axes of one element, which a vector of channels has not."""
    while constant.ndim and constant.shape[0] == 1 and constant.ndim >= len(value.type.shape):
        constant = constant.reshape(constant.shape[1:])
    return constant


def _free(value: Value, graph: QdqEmitter, real: Real | None = None) -> Real | None:
    """The real of a value, or another in its place, without a limit that waits."""
    real = real or graph.real(value)
    if real is None or real.clip is None:
        return real
    one = np.ones(())
    return Real.of(lambda s, c: scaled(real.emit(graph, one), s, c, graph), real.depth)


@FToQdq.register("multiply")
def multiply(step: Step, graph: QdqEmitter) -> Real | None:
    """Multiply by constants, or two 8 bit tensors."""
    lhs, rhs = step.args
    if lhs.data is None and rhs.data is None:
        return _of_two(lhs, rhs, graph)
    if lhs.data is not None:
        lhs, rhs = rhs, lhs
    real = _free(lhs, graph)
    if real is None or rhs.data is None or rhs.data.size == 0:
        return None
    factor = _short(rhs.data.astype(np.float64), lhs)
    if factor.min() > 0:
        return real.times(factor)
    one = np.ones(())

    def write(scale: Floats, addend: Floats | None) -> str:
        name = scaled(real.emit(graph, one), scale * factor, None, graph)
        return scaled(name, one, None if addend is None else addend * scale, graph)

    return Real.of(write, real.depth)


def _of_two(lhs: Value, rhs: Value, graph: QdqEmitter) -> Real | None:
    a = _free(lhs, graph)
    b = _free(rhs, graph)
    if a is None or b is None or a.tensor is None or b.tensor is None:
        return None

    def write(factor: Floats) -> str:
        return graph.node("Mul", [a.emit(graph, factor), b.emit(graph, np.ones(()))])

    return of_operand(write, graph)


@FToQdq.register("nn.relu")
def relu(step: Step, graph: QdqEmitter) -> Real | None:
    """Relu, which kernels take up."""
    real = _free(step.args[0], graph)
    if real is None:
        return None
    return _rectified(real, graph)


def _rectified(real: Real, graph: QdqEmitter) -> Real:
    def write(factors: Floats) -> str:
        return graph.node("Relu", [real.emit(graph, factors)])

    return of_operand(write, graph, real.depth, channels=True)


@FToQdq.register("clip")
def clip(step: Step, graph: QdqEmitter) -> Real | None:
    """Limits, which 8 bits have by themselves."""
    real = _free(step.args[0], graph)
    limits = limits_in(step)
    if real is None or limits is None:
        return None
    return real.limited(*limits)


@FToQdq.register(*RESCALING)
def requantize(step: Step, graph: QdqEmitter) -> Real | None:
    """Part of a bias, a Relu, one factor for the tensor or one per channel, and limits; what rounds
    down is half a level lower."""
    value = step.args[0]
    factors = factors_in(step)
    rounding = getattr(step.attrs, "rounding", "")
    real = graph.real(value)
    if factors is None or real is None or rounding == TFLM or factors.scale.min() <= 0:
        return None
    if factors.bias.size == 1 and factors.bias.any():
        real = graph.plus(real, float(factors.bias.reshape(())))
    real = _free(value, graph, real)
    assert real is not None
    if factors.bias.size > 1:
        real = real.plus(_short(factors.bias.astype(np.float64), value))
    attrs = step.attrs if step.name == OP else RequantizeAttrs()
    real = _rectified(real, graph) if attrs.relu else real
    real = real.times(_short(factors.scale, value))
    if rounding == "floor":
        real = real.plus(-_short(np.where(factors.shift < 1, 0.5, 0.0), value))
    limits = limits_of(attrs)
    real = real if limits is None else real.limited(*limits)
    if attrs.zero_point:
        return graph.plus(real, attrs.zero_point)
    return real


@FToQdq.register("left_shift", "right_shift")
def shift(step: Step, graph: QdqEmitter) -> Real | None:
    """Multiply by powers of two: shifts by constants; one to the right rounds down, half a level
    lower."""
    value, amount = step.args
    real = _free(value, graph)
    if real is None or amount.data is None or amount.data.size == 0:
        return None
    bits = _short(amount.data, value).astype(np.int32)
    if step.name == "left_shift":
        return real.times(np.ldexp(1.0, bits))
    return real.times(np.ldexp(1.0, -bits)).plus(-np.where(bits > 0, 0.5, 0.0))


@FToQdq.register(MIX)
def mix(step: Step, graph: QdqEmitter) -> Real | None:
    """Resize where it is linear, for which runtimes have kernels; else a product with each matrix,
    along the last two axes, or sums of picked rows."""
    source = _free(step.args[0], graph)
    known = [arg.data for arg in step.args[1:]]
    taps = [held for held in known if held is not None]
    if source is None or len(taps) < len(known):
        return None
    shape = step.result.type.concrete_shape
    before = step.args[0].type.concrete_shape
    matrices = {
        axis - len(shape): matrix_of(before[axis], places, weights)
        for axis, places, weights in zip(step.attrs.axes, taps[::2], taps[1::2])
    }
    how = coordinates_of(matrices.values())
    if how is None and min(matrices) < -2:
        words, (made,) = words_of(step)
        for word in words:
            real = (FToQdq.get(word.op) or move)(word, graph)
            assert real is not None
            graph.set_real(word.result, real)
        return graph.real(made)
    total = math.prod(int(held[0].sum()) for held in matrices.values())

    def resize(factor: Floats) -> str:
        sizes = graph.writer.constant(np.asarray(shape, "int64"))
        attrs: dict[str, Any] = {"coordinate_transformation_mode": how, "mode": "linear"}
        return graph.node("Resize", [source.emit(graph, factor * total), "", "", sizes], **attrs)

    def products(factor: Floats) -> str:
        name = source.emit(graph, factor)
        if -2 in matrices:
            name = graph.node("MatMul", [graph.float_constant(matrices[-2]), name])
        if -1 in matrices:
            name = graph.node("MatMul", [name, graph.float_constant(matrices[-1].T)])
        return name

    return of_operand(products if how is None else resize, graph, source.depth)


@FToQdq.register("nn.pad")
def pad(step: Step, graph: QdqEmitter) -> Real | None:
    """Pad of integers, whose constant is one of the levels."""
    data = step.args[0]
    number = step.args[-1].data
    tensor = graph.quantized(data)
    if step.attrs.pad_mode != "constant":
        return _stored(step, [data], graph)
    if tensor is None or tensor.scale != 1 or number is None or number.size != 1:
        return None
    level, (least, most) = int(number.reshape(())) + tensor.zero_point, integer_range(tensor.dtype)
    constant = graph.writer.constant(np.asarray(level, tensor.dtype))
    if least <= level <= most:
        return _stored(step, [data], graph, constant)
    return None


def _stored(
    step: Step, moved: Sequence[Value], graph: QdqEmitter, constant: str = ""
) -> Real | None:
    """Integers of one grid in other places, as they are, where a runtime moves them so.

    Args:
        constant: the last argument, where it is none of ``moved``.
    """
    tensors = [graph.quantized(value) for value in moved]
    held = [one for one in tensors if one is not None]
    grids = {(one.scale, one.zero_point, one.dtype) for one in held}
    if len(held) < len(tensors) or len(grids) != 1:
        return None
    inner = Emitter(graph.writer)
    for value, tensor in zip(moved, held, strict=True):
        inner.bind(value, tensor.name)
    if constant:
        inner.bind(step.args[-1], constant)
    emit_step(step, inner)
    return graph.of_tensor(replace(held[0], name=inner.name(step.result)))


@FToQdq.register("split")
def split(step: Step, graph: QdqEmitter) -> None:
    """Parts of a float tensor, each multiplied behind."""
    real = _free(step.args[0], graph)
    parts = list[str]()
    if real is None:
        return

    def write(place: int, scale: Floats, addend: Floats | None) -> str:
        if not parts:
            inner = Emitter(graph.writer)
            inner.bind(step.args[0], real.emit(graph, np.ones(())))
            emit_step(step, inner)
            parts.extend(map(inner.name, step.results))
        return scaled(parts[place], scale, addend, graph)

    for place, value in enumerate(step.results):
        graph.set_real(value, Real.of(partial(write, place)))


def _picks(word: Step) -> bool:
    """Tell whether a word takes elements at places that are known."""
    return word.name == "take" and word.args[1].data is not None


def move(step: Step, graph: QdqEmitter) -> Real | None:
    """Elements change their places in float, between two 8 bit tensors of one scale; None for what
    computes others, or holds the elements as they are."""
    words, made = words_of(step)
    read = {arg for word in words for arg in word.args[: 1 if _picks(word) else None]}
    if len(made) > 1 or any(word.name not in MOVES and not _picks(word) for word in words):
        return None
    if not words:
        return graph.real(made[0])
    forget(words, step)
    moved = [arg for arg in step.args if arg in read]
    if (stored := _stored(step, moved, graph)) is not None:
        return stored
    reals = [_free(value, graph) for value in moved]
    found = [real for real in reals if real is not None]
    if len(found) < len(reals):
        return None

    def write(factor: Floats) -> str:
        inner = Emitter(graph.writer)
        for value, real in zip(moved, found, strict=True):
            inner.bind(value, real.emit(graph, factor))
        emit_step(step, inner)
        return inner.name(step.result)

    depth = 1 + max(real.depth for real in found)
    tensors = {graph.quantized(value) for value in moved}
    like = tensors.pop() if len(tensors) == 1 else None
    return replace(of_operand(write, graph, depth), like=like)
