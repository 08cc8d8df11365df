"""Convolutions and products of 8 bit tensors, with the scales of their requantization.

    fixed_point_multiply_per_axis(nn.conv2d(q, W) + b, r)      Conv(DQ(q), DQ(W, r), DQ(b, r))

The weights stay the module's integers; products of wider ones are carried, in float. Data of
16 bits are floats here, for which runtimes have kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from compiler.export.to_onnx.float.rules.nn import conv_node
from compiler.export.to_onnx.qdq.emitter import Floats, FToQdq, QdqEmitter, Quantized, Real, scaled
from compiler.ir.dataflow import Step
from compiler.ops.number_format import Array
from compiler.ops.rules.realize import WIDE_INPUT

_SEVEN_BITS = 64
_INT32 = 2**31 - 1


@FToQdq.register("nn.conv2d")
def conv2d(step: Step, graph: QdqEmitter) -> Real | None:
    """Conv of dequantized tensors; a border of one number in front of it is that of the kernel."""
    weight = step.args[1].data
    shape = () if weight is None else (weight.shape[0], 1, 1)
    border = None if weight is None else _border(step, graph)
    if weight is None or border is None:
        return _product(step, graph, weight, shape, partial(conv_node, step, graph.words))
    tensor, level, pads = border
    node = partial(conv_node, step, graph.words, pads=pads)
    made = _product(step, graph, weight, shape, node, tensor=tensor)
    sums = weight.astype(np.int64).reshape(len(weight), -1).sum(axis=1)
    if made is None:
        return None
    return made.plus(level * sums.reshape(shape))


def _border(step: Step, graph: QdqEmitter) -> tuple[Quantized, int, list[int]] | None:
    """Return the parts of a convolution behind a constant border: the 8 bit tensor inside, whose
    integers are less by the border's, that integer, and the border's width as of ``pads``."""
    pad = step.args[0].producer
    if pad is None or pad.name != "nn.pad" or pad.attrs.pad_mode != "constant":
        return None
    inner = graph.quantized(pad.args[0])
    number = pad.args[1].data
    outer = pad.attrs.pad_width[:2]
    sides = pad.attrs.pad_width[2:]
    flat = [width for side in sides for width in side]
    if inner is None or number is None or any(map(any, outer)) or min(flat, default=-1) < 0:
        return None
    if any(step.attrs.padding) or step.attrs.data_layout != "NCHW":
        return None
    level = int(number.reshape(()))
    moved = inner.moved(np.asarray(-level))
    pads = [side[end] for end in (0, 1) for side in sides]
    if moved is None:
        return None
    return (moved, level, pads)


@FToQdq.register("nn.dense")
def dense(step: Step, graph: QdqEmitter) -> Real | None:
    """Gemm for two axes; MatMul for more."""
    weight = step.args[1].data
    if weight is None:
        return _of_activations(step, graph, False, True)
    if len(step.args[0].type.shape) == 2:
        return _product(
            step, graph, weight, weight.shape[:1], lambda ins: graph.node("Gemm", ins, transB=1)
        )

    def matmul(inputs: list[str]) -> str:
        result = graph.node("MatMul", inputs[:2])
        if len(inputs) == 2:
            return result
        return graph.node("Add", [result, inputs[2]])

    return _product(step, graph, weight, weight.shape[:1], matmul, turned=True)


@FToQdq.register("nn.matmul", "nn.batch_matmul")
def matmul(step: Step, graph: QdqEmitter) -> Real | None:
    """MatMul of two 8 bit tensors."""
    return _of_activations(step, graph, step.attrs.transpose_a, step.attrs.transpose_b)


def _product(
    step: Step,
    graph: QdqEmitter,
    weight: Array | None,
    shape: tuple[int, ...],
    node: Callable[[list[str]], str],
    turned: bool = False,
    tensor: Quantized | None = None,
) -> Real | None:
    """A product with a constant weight.

    Args:
        shape: in which a vector of the channels broadcasts against the result.
        node: writes it, given the tensor, the weight and, where there is one, the bias.
        turned: the weight is written with its two axes exchanged, and the bias as a float.
        tensor: the data; None for what stands for them.
    """
    tensor = tensor or graph.quantized(step.args[0])
    if step.args[0].type.dtype == WIDE_INPUT:
        wide = graph.real(step.args[0])
    else:
        wide = None
    if wide is not None and wide.tensor is not None and np.all(wide.scale == 1):
        tensor = wide.tensor
    data: Callable[[], str]
    if tensor is not None:
        data = partial(graph.dequantized, tensor, 1.0)
    elif wide is not None:
        data = partial(wide.emit, graph, np.ones(()))
    else:
        return None
    if weight is None or weight.min(initial=0) < -128 or weight.max(initial=0) > 127:
        return None
    levels = weight
    channels = weight.shape[0]

    def of_floats(scale: Floats, addend: Floats | None) -> str:
        # With a scale per channel onnxruntime rounds the data to 8 bits (MatMulNBits); it does
        # nothing about one per row.
        rows = np.ascontiguousarray(levels.astype("int8").T)
        made = graph.node("MatMul", [data(), graph.of_constants(rows, np.ones(len(rows)), 0)])
        return scaled(made, scale, addend, graph)

    if tensor is None and turned:
        return Real.of(of_floats)

    def write(scale: Floats, addend: Floats | None) -> str:
        if not _per_channel(scale, shape):
            return scaled(write(np.ones(()), None), scale, addend, graph)
        factors = np.broadcast_to(scale, shape).reshape(channels)
        held, units = _weights(levels, factors, graph)
        held = np.ascontiguousarray(held.T) if turned else held
        inputs = [data(), graph.of_constants(held, units, int(turned))]
        joined = addend is not None and _per_channel(addend, shape)
        if addend is not None and joined:
            bias = np.broadcast_to(addend, shape).reshape(channels)
            held_step = 1.0 if tensor is None else tensor.scale
            plain = tensor is None or turned
            inputs.append(_bias(bias * factors, units * held_step, graph, plain))
        name = node(inputs)
        if tensor is not None:
            graph.products[name] = step
        if addend is None or joined:
            return name
        return scaled(name, np.ones(()), addend * scale, graph)

    return Real.of(write)


def _per_channel(values: Floats, shape: tuple[int, ...]) -> bool:
    """Return whether they are one number, or one per channel."""
    try:
        return np.broadcast_shapes(values.shape, shape) == shape
    except ValueError:
        return False


def _weights(weight: Array, factors: Floats, graph: QdqEmitter) -> tuple[Array, Floats]:
    """int8 levels and their scale per channel; 7 bits where the range is to be reduced."""
    if not graph.reduce_range:
        return weight.astype("int8"), factors
    rows = np.abs(weight.astype(np.int64)).reshape(len(weight), -1).max(axis=1, initial=0)
    wide = np.where(rows > _SEVEN_BITS, rows / _SEVEN_BITS, 1.0)
    column = wide.reshape(-1, *([1] * (weight.ndim - 1)))
    return np.rint(weight / column).astype("int8"), factors * wide


def _bias(bias: Floats, units: Floats, graph: QdqEmitter, plain: bool) -> str:
    """A float bias, or int32 in the units of the sums, which kernels take for granted."""
    whole = np.rint(bias / units)
    if plain or np.abs(whole).max(initial=0) > _INT32:
        return graph.float_constant(bias)
    return graph.of_constants(whole.astype("int32"), units, 0)


def _of_activations(
    step: Step, graph: QdqEmitter, transpose_a: bool, transpose_b: bool
) -> Real | None:
    lhs, rhs = (graph.quantized(value) for value in step.args)
    if lhs is None or rhs is None:
        return None

    def turned(tensor: Quantized, factor: float, turn: bool) -> str:
        if not turn:
            return graph.dequantized(tensor, factor)
        # The runtime takes a product whose operands are dequantized by the node in front of it.
        rank = len(step.args[0].type.shape)
        name = graph.dequantized(tensor, 1.0)
        moved = graph.node("Transpose", [name], perm=[*range(rank - 2), rank - 1, rank - 2])
        return graph.dequantized(graph.quantize(moved, tensor), factor)

    def write(scale: Floats, addend: Floats | None) -> str:
        factor = float(scale.reshape(())) if scale.size == 1 else 1.0
        sides = [turned(lhs, factor, transpose_a), turned(rhs, 1.0, transpose_b)]
        name = graph.node("MatMul", sides)
        graph.products[name] = step
        return scaled(name, scale / factor, None if addend is None else addend * factor, graph)

    return Real.of(write)
