"""Pools."""

from __future__ import annotations

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.float.rules.nn import require_layout
from compiler.export.to_onnx.windows import window_attributes
from compiler.ir.dataflow import Step


def _window(step: Step, e: Emitter) -> dict[str, list[int]]:
    attrs = step.attrs
    require_layout(step, e, attrs.layout)
    require_layout(step, e, attrs.out_layout or attrs.layout)
    return window_attributes(attrs, attrs.pool_size)


@FToOnnx.register("nn.max_pool2d")
def max_pool2d(step: Step, e: Emitter) -> str:
    """MaxPool."""
    window = _window(step, e)
    return e.node("MaxPool", e.args(step), ceil_mode=int(step.attrs.ceil_mode), **window)


@FToOnnx.register("nn.avg_pool2d")
def avg_pool2d(step: Step, e: Emitter) -> str:
    """AveragePool."""
    attrs = step.attrs
    window = _window(step, e)
    if set(window.pop("dilations")) != {1}:
        raise e.refuse(step, f"dilation {attrs.dilation}")
    return e.node(
        "AveragePool",
        e.args(step),
        ceil_mode=int(attrs.ceil_mode),
        count_include_pad=int(attrs.count_include_pad),
        **window,
    )


@FToOnnx.register("nn.global_avg_pool2d", "nn.global_max_pool2d")
def global_pool2d(step: Step, e: Emitter) -> str:
    """GlobalAveragePool or GlobalMaxPool."""
    require_layout(step, e, step.attrs.layout)
    return e.node("GlobalAveragePool" if "avg" in step.name else "GlobalMaxPool", e.args(step))


@FToOnnx.register("nn.adaptive_avg_pool2d")
def adaptive_avg_pool2d(step: Step, e: Emitter) -> str:
    """AveragePool where the output size divides the input size."""
    require_layout(step, e, step.attrs.layout)
    height, width = step.args[0].type.concrete_shape[2:]
    out_h, out_w = step.result.type.concrete_shape[2:]
    if height % out_h or width % out_w:
        raise e.refuse(step, f"{out_h}x{out_w} windows of a {height}x{width} input differ in size")
    window = [height // out_h, width // out_w]
    return e.node("AveragePool", e.args(step), kernel_shape=window, strides=window)
