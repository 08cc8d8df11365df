"""conv2d, dense, matmul and batch_matmul of integers as float products.

    sum_k x[k] w[k]      |partial sums| <= sum_k max|x| |w[k]|, per output channel, below 2^24

Where the bound is larger, a dense or matmul product is computed in double; a convolution, which
onnxruntime has in float only, is split by the digits of its weights and put together in int64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.errors import OnnxExportError
from compiler.export.to_onnx.carried_emitter import (
    FLOAT_LIMIT,
    Carried,
    CarriedEmitter,
    FToCarried,
    Product,
    narrowed,
)
from compiler.export.to_onnx.carried_rules.fixed_point import DOUBLE_BITS
from compiler.export.to_onnx.convert.nn import conv_node
from compiler.ir.dataflow import Step, Value
from compiler.ops.number_format import Array


def _channel_bounds(
    step: Step, x: Carried, graph: CarriedEmitter
) -> tuple[Array, NDArray[np.int64], NDArray[np.int64]]:
    """The constant weight of a step, and bounds of sum_k x[k] w[o,k] per output channel o, zero
    padding included.

    Raises:
        OnnxExportError: the weight is computed, or the sums may leave 64 bits.
    """
    weight = step.args[1].data
    if weight is None:
        raise graph.refuse(step, "its integer weight is not constant")
    flat = weight.reshape(weight.shape[0], -1)
    largest = max(-int(flat.min(initial=0)), int(flat.max(initial=0)))
    if largest * flat.shape[1] * x.magnitude >= 1 << 62:
        raise graph.refuse(step, "its sums may leave 64 bits")
    wide = flat.astype(np.int32 if largest < 1 << 31 else np.int64)
    total = wide.sum(axis=1, dtype=np.int64)
    magnitude = np.abs(wide).sum(axis=1, dtype=np.int64)
    positive, negative = (total + magnitude) // 2, (total - magnitude) // 2
    low, high = min(x.low, 0), max(x.high, 0)
    return weight, positive * low + negative * high, positive * high + negative * low


def _in_double(step: Step, bound: int, graph: CarriedEmitter) -> None:
    """See that double holds every partial sum.

    Raises:
        OnnxExportError: it does not.
    """
    if bound > 1 << DOUBLE_BITS:
        raise graph.refuse(step, f"its sums reach {bound}, double holds whole numbers up to 2^53")


@FToCarried.register("nn.conv2d")
def conv2d(step: Step, graph: CarriedEmitter) -> Carried:
    """Conv, exact in float32 below 2^24."""
    x = graph.carried(step.args[0])
    weight, low, high = _channel_bounds(step, x, graph)
    name = graph.as_float(x)

    def emit(values: Array, bias: Array | None) -> str:
        inputs = [name, graph.writer.constant(values.astype("float32"))]
        if bias is not None:
            inputs.append(graph.writer.constant(bias.astype("float32")))
        return conv_node(step, graph, inputs)

    bound = int(max(np.abs(low).max(), np.abs(high).max()))
    if bound < FLOAT_LIMIT:
        shape = (weight.shape[0], 1, 1)
        return Carried(
            emit(weight, None),
            "float32",
            int(low.min()),
            int(high.max()),
            Product(emit, weight, None, shape, bound),
            channels=(low.reshape(shape), high.reshape(shape)),
        )
    total = None
    for digit, place in _digits(weight, x):
        part = graph.writer.cast(emit(digit, None), "int64")
        part = part if place == 1 else graph.node("Mul", [part, graph.ints([place])])
        total = part if total is None else graph.node("Add", [total, part])
    assert total is not None
    return narrowed(total, "int64", int(low.min()), int(high.max()), graph)


def _digits(weight: Array, x: Carried) -> list[tuple[Array, int]]:
    """weight = sum of digit * place, with digits so small that every partial product fits.

    Raises:
        OnnxExportError: not even digits of -2 .. 1 would do.
    """
    taps = int((weight.reshape(weight.shape[0], -1) != 0).sum(axis=1).max(initial=0))
    largest = taps * x.magnitude
    base = 4
    if largest * (base // 2) >= FLOAT_LIMIT:
        raise OnnxExportError(
            f"a sum of {taps} products with values up to {x.magnitude} is too long for floats",
            fix="use narrower activations",
        )
    while largest * base < FLOAT_LIMIT:
        base *= 2
    digits: list[tuple[Array, int]] = []
    rest, place = weight.astype(np.int64), 1
    while np.any(rest):
        # Balanced digits, -base/2 .. base/2 - 1: half the magnitude of unsigned ones.
        digit = (rest + base // 2) % base - base // 2
        digits.append((digit, place))
        rest = (rest - digit) // base
        place *= base
    return digits


@FToCarried.register("nn.dense")
def dense(step: Step, graph: CarriedEmitter) -> Carried:
    """Gemm, or MatMul for more than two axes."""
    if step.args[1].data is None:
        return _matmul(step, graph, False, True)
    x = graph.carried(step.args[0])
    weight, low, high = _channel_bounds(step, x, graph)
    bound = int(max(np.abs(low).max(initial=0), np.abs(high).max(initial=0)))
    bounds = int(low.min(initial=0)), int(high.max(initial=0))
    if bound >= FLOAT_LIMIT:
        _in_double(step, bound, graph)
        turned = graph.writer.constant(weight.T.astype("float64"))
        result = graph.node("MatMul", [graph.as_double(x), turned])
        return narrowed(result, "float64", *bounds, graph)
    name = graph.as_float(x)
    two_axes = len(step.args[0].type.shape) == 2

    def emit(values: Array, bias: Array | None) -> str:
        if two_axes:
            inputs = [name, graph.writer.constant(values.astype("float32"))]
            if bias is not None:
                inputs.append(graph.writer.constant(bias.astype("float32")))
            return graph.node("Gemm", inputs, transB=1)
        result = graph.node("MatMul", [name, graph.writer.constant(values.T.astype("float32"))])
        if bias is None:
            return result
        return graph.node("Add", [result, graph.writer.constant(bias.astype("float32"))])

    product = Product(emit, weight, None, (weight.shape[0],), bound)
    return Carried(emit(weight, None), "float32", *bounds, product, channels=(low, high))


@FToCarried.register("nn.matmul", "nn.batch_matmul")
def matmul(step: Step, graph: CarriedEmitter) -> Carried:
    """MatMul of two activations."""
    return _matmul(step, graph, step.attrs.transpose_a, step.attrs.transpose_b)


def _matmul(step: Step, graph: CarriedEmitter, transpose_a: bool, transpose_b: bool) -> Carried:
    lhs, rhs = step.args
    left, right = graph.carried(lhs), graph.carried(rhs)
    shape = lhs.type.concrete_shape
    count = shape[-2] if transpose_a else shape[-1]
    corners = [a * b for a in (left.low, left.high) for b in (right.low, right.high)]
    low, high = count * min(*corners, 0), count * max(*corners, 0)
    wide = max(-low, high) >= FLOAT_LIMIT
    _in_double(step, max(-low, high), graph)
    names = [
        _turned(value, carried, turn, wide, graph)
        for value, carried, turn in ((lhs, left, transpose_a), (rhs, right, transpose_b))
    ]
    result = graph.node("MatMul", names)
    if wide:
        return narrowed(result, "float64", low, high, graph)
    return Carried(result, "float32", low, high)


def _turned(value: Value, carried: Carried, turn: bool, wide: bool, graph: CarriedEmitter) -> str:
    name = graph.as_double(carried) if wide else graph.as_float(carried)
    if not turn:
        return name
    rank = len(value.type.shape)
    return graph.node("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])
