"""Scaling and rounding as depthwise convolutions, which stay in onnxruntime's blocked layout.

Between convolutions onnxruntime keeps tensors in blocks of channels (NCHWc), and every other kind
of node makes it copy them back and forth. A convolution of one tap per channel stays:

    Conv(x, a), Conv(·, 1, bias c)                          where one rounding each was proven
    Conv(x, a, bias 3 * 2^22) = rint(x * a) + 3 * 2^22      a float32 there has no fraction left
    Conv(·, 1, bias -3 * 2^22)                              exact
    Clip(·, low, high)                                      part of the same node

Measured on EfficientNet-Lite0 shapes: a third of the cost of Mul, Round, Clip between convolutions.
The Clip comes last: a factor or a sum behind it does not become part of the convolution, where it
would multiply 3 * 2^22.
Source of the rounding: the usual addition of 1.5 * 2^23.
"""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.grid_emitter import GridEmitter
from compiler.export.to_onnx.grid_rules.fixed_point import FloatForm
from compiler.ir.ty import TensorType
from compiler.ops.number_format import Array

ROUNDER = 3 << 22
LAYOUT_LIMIT = 1 << 22
"""Magnitudes below this keep x + ROUNDER between 2^23 and 2^24, where float32 are the integers."""

# Widest block of channels in onnxruntime; other numbers of channels leave the blocked layout.
_BLOCK = 16


def blocked_layout(ty: TensorType) -> bool:
    """True for the (N, C, H, W) tensors that onnxruntime keeps in blocks of channels."""
    return len(ty.shape) == 4 and ty.concrete_shape[1] % _BLOCK == 0


def rounded_in_layout(
    name: str, form: FloatForm, limits: tuple[int, int], ty: TensorType, grid: GridEmitter
) -> str:
    """The whole numbers of a form without Floor, limited to ``limits``.

    Args:
        name: float32 tensor of type ``ty``, whose scaled magnitudes are below LAYOUT_LIMIT.
        form: factors and addends, one for all channels or one per channel.
        limits: smallest and largest result.
    """
    assert not form.floor
    channels = ty.concrete_shape[1]

    def per_channel(values: Array | float, *shape: int) -> str:
        spread = np.broadcast_to(np.asarray(values, "float32").reshape(-1), channels)
        return grid.writer.constant(spread.reshape(channels, *shape).copy())

    def depthwise(source: str, weight: Array | float, bias: Array | float | None) -> str:
        inputs = [source, per_channel(weight, 1, 1, 1)]
        if bias is not None:
            inputs.append(per_channel(bias))
        return grid.node("Conv", inputs, group=channels, kernel_shape=[1, 1])

    factor: Array | float = form.factor
    if not form.fused:
        # Whether a convolution rounds its product before the bias is up to the machine; a
        # convolution without bias and one without factor round once on all of them.
        name, factor = depthwise(name, factor, None), 1.0
    if form.addend is not None:
        name = depthwise(name, 1.0, form.addend)
    rounded = depthwise(depthwise(name, factor, ROUNDER), 1.0, -ROUNDER)
    return grid.node("Clip", [rounded, *(grid.float_constant(limit) for limit in limits)])
