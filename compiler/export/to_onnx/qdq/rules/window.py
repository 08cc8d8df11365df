"""Pools: averages of dequantized tensors, maxima of them.

onnxruntime's kernel for averages of 8 bits takes longer than the convolution of a block. There an
average is a grouped convolution with equal weights, where the border counts or there is none.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.export.to_onnx.qdq.emitter import Floats, FToQdq, QdqEmitter, Real, of_operand
from compiler.export.to_onnx.windows import window_attributes
from compiler.ir.dataflow import Step
from compiler.ops.reduce.axes import axes_of


@FToQdq.register("nn.max_pool2d")
def max_pool2d(step: Step, graph: QdqEmitter) -> Real | None:
    """MaxPool."""
    attrs = step.attrs
    window = window_attributes(attrs, attrs.pool_size)
    return _pooled(step, graph, "MaxPool", ceil_mode=int(attrs.ceil_mode), **window)


@FToQdq.register("nn.avg_pool2d")
def avg_pool2d(step: Step, graph: QdqEmitter) -> Real | None:
    """AveragePool; without dilation, which opset 17 does not have."""
    attrs = step.attrs
    if any(step != 1 for step in attrs.dilation) or attrs.ceil_mode:
        return None
    window = window_attributes(attrs, attrs.pool_size)
    del window["dilations"]
    real = graph.real(step.args[0])
    border = any(attrs.padding) and not attrs.count_include_pad
    if border or real is None or real.tensor is None:
        padded = int(attrs.count_include_pad)
        return _pooled(step, graph, "AveragePool", count_include_pad=padded, **window)
    if real.clip is not None or attrs.layout != "NCHW":
        return None
    shape = (step.args[0].type.concrete_shape[1], 1, 1)
    rows, columns = map(int, attrs.pool_size)

    def write(factors: Floats) -> str:
        units = np.broadcast_to(factors, shape) / (rows * columns)
        return graph.window_sums(real.emit(graph, np.ones(())), units, (rows, columns), **window)

    return of_operand(write, graph, real.depth, channels=True)


@FToQdq.register("nn.global_avg_pool2d", "nn.global_max_pool2d")
def global_pool2d(step: Step, graph: QdqEmitter) -> Real | None:
    """GlobalAveragePool or GlobalMaxPool."""
    if "avg" in step.name:
        kind = "GlobalAveragePool"
    else:
        kind = "GlobalMaxPool"
    return _pooled(step, graph, kind)


@FToQdq.register("mean")
def mean(step: Step, graph: QdqEmitter) -> Real | None:
    """ReduceMean."""
    axes = axes_of(step)
    return _pooled(step, graph, "ReduceMean", axes=axes, keepdims=int(step.attrs.keepdims))


def _pooled(step: Step, graph: QdqEmitter, op_type: str, **attrs: object) -> Real | None:
    layout = getattr(step.attrs, "layout", "NCHW")
    real = graph.real(step.args[0])
    if real is None or real.clip is not None or layout != "NCHW":
        return None

    def write(factor: Floats) -> str:
        return graph.node(op_type, [real.emit(graph, factor)], **attrs)

    # A largest value is one of the elements; a mean has a scale of its own.
    if "Max" in op_type:
        like = graph.quantized(step.args[0])
    else:
        like = None
    return replace(of_operand(write, graph, real.depth), like=like)
