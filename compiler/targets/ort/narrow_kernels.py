"""Whether onnxruntime's 8 bit convolutions add up exactly on this processor.

Without VNNI some kernels add pairs of products in 16 bits, which saturates: 255 * 127 * 2 is more
than 2^15. So one convolution of each kind is run on the largest inputs and compared with numpy.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto

from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.ir.ty import TensorType
from compiler.targets.ort.session import OrtExecutor

# (channels in, channels out, window, groups): pointwise, with a window, depthwise in two sizes.
_KINDS = ((64, 48, 1, 1), (16, 32, 3, 1), (3, 16, 3, 1), (32, 32, 3, 32), (48, 48, 5, 48))
_SIDE = 12
_SCALE = np.float32(2.0**-12)
_ZERO = 128


@cache
def are_exact() -> bool:
    """True where they do; found out once in a process."""
    rng = np.random.default_rng(0)
    for taken, given, window, groups in _KINDS:
        x = rng.choice(np.asarray([0, 255], np.uint8), (1, taken, _SIDE, _SIDE))
        weight = rng.choice(
            np.asarray([-128, 127], np.int8), (given, taken // groups, window, window)
        )
        weight[::2] = 127
        x[..., _SIDE // 2 :] = 255
        (result,) = OrtExecutor(_convolution(x, weight, groups)).run({"x": x})
        if not np.array_equal(result, _expected(x, weight, groups)):
            return False
    return True


def _convolution(x: NDArray[np.uint8], weight: NDArray[np.int8], groups: int) -> ModelProto:
    writer = GraphWriter("main")
    channels, _, window, _ = weight.shape
    name = writer.input("x", TensorType(x.shape, "uint8"))
    one = writer.constant(np.float32(1))
    inputs = [
        *(name, one, writer.constant(np.uint8(0)), writer.constant(weight)),
        *(writer.constant(np.full(channels, _SCALE)), writer.constant(np.zeros(channels, "int8"))),
        *(one, writer.constant(np.uint8(_ZERO))),
    ]
    result = writer.node("QLinearConv", inputs, group=groups, kernel_shape=[window, window])
    side = _SIDE - window + 1
    writer.output("y", result, TensorType((1, channels, side, side), "uint8"))
    return writer.finish()


def _expected(x: NDArray[np.uint8], weight: NDArray[np.int8], groups: int) -> NDArray[np.uint8]:
    window, channels = weight.shape[2], weight.shape[0]
    patches = np.lib.stride_tricks.sliding_window_view(
        x[0].astype(np.int64), (window, window), (1, 2)
    )
    split = patches.reshape(groups, -1, *patches.shape[1:])
    kernels = weight.astype(np.int64).reshape(groups, channels // groups, *weight.shape[1:])
    total = np.einsum("gihwab,goiab->gohw", split, kernels).reshape(
        1, channels, *patches.shape[1:3]
    )
    scaled = np.rint(total.astype(np.float32) * _SCALE) + _ZERO
    return np.asarray(np.clip(scaled, 0, 255), np.uint8)
