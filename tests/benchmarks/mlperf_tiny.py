"""The four networks of MLPerf Tiny by their shapes, with seeded weights.

Source: Banbury et al., "MLPerf Tiny Benchmark", 2021, section 3: a depthwise separable CNN for
keywords, MobileNetV1 0.25 for 96 x 96 images, ResNet-8 for 32 x 32 ones, an autoencoder of dense
layers for sounds of machines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import onnx

from tests.benchmarks.unseen_networks import Network


def keywords(g: Network) -> str:
    """Four depthwise separable layers of 64 channels on 49 x 10 features; 12 classes."""
    x = g.conv(g.input(1, 1, 49, 10), (64, 1, 10, 4), strides=[2, 2], pads=[4, 1, 5, 1])
    for _ in range(4):
        x = g.conv(g.conv(x, (64, 1, 3, 3), group=64), (64, 64, 1, 1))
    return g.head(x, 64, 12)


def person(g: Network) -> str:
    """MobileNetV1 with a quarter of its channels; 2 classes."""
    x, channels = g.conv(g.input(1, 3, 96, 96), (8, 3, 3, 3), strides=[2, 2]), 8
    for out, stride in (
        *((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2)),
        *((128, 1), (128, 1), (128, 1), (128, 1), (128, 1), (256, 2), (256, 1)),
    ):
        x = g.conv(x, (channels, 1, 3, 3), group=channels, strides=[stride] * 2)
        x, channels = g.conv(x, (out, channels, 1, 1)), out
    return g.head(x, channels, 2)


def images(g: Network) -> str:
    """Three residual blocks of 16, 32 and 64 channels; 10 classes."""
    x, channels = g.conv(g.input(1, 3, 32, 32), (16, 3, 3, 3)), 16
    for out, stride in ((16, 1), (32, 2), (64, 2)):
        y = g.conv(x, (out, channels, 3, 3), strides=[stride] * 2)
        y = g.conv(y, (out, out, 3, 3), "")
        if out != channels:
            x = g.conv(x, (out, channels, 1, 1), "", strides=[stride] * 2)
        x, channels = g("Relu", g("Add", x, y)), out
    return g.head(x, channels, 10)


def sounds(g: Network) -> str:
    """640 values through 128, 128, 128, 128, 8 and back."""
    x, width = g.input(1, 640), 640
    for out in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x, width = g.dense(x, width, out, "Relu"), out
    return g.dense(x, width, 640)


def _model(seed: int, build: Callable[[Network], str]) -> onnx.ModelProto:
    graph = Network(seed)
    return graph.model(build(graph))


MODELS: Final[dict[str, Callable[[], onnx.ModelProto]]] = {
    build.__name__: lambda seed=seed, build=build: _model(seed, build)  # type: ignore[misc]
    for seed, build in enumerate((keywords, person, images, sounds))
}
"""Makers by name."""
