"""ONNX networks of common kinds with random weights, beside the models of ../shared/data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

NETWORKS: Final[dict[str, Callable[[], onnx.ModelProto]]] = {}
"""Makers by name."""


def network(build: Callable[[Network], str]) -> Callable[[Network], str]:
    """Register a function that adds nodes and returns the name of the output."""

    def make() -> onnx.ModelProto:
        graph = Network(len(NETWORKS))
        return graph.model(build(graph))

    NETWORKS[build.__name__] = make
    return build


class Network:
    """Nodes in the order in which they are added; weights keep the variance of activations."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._shape: tuple[int, ...] = ()
        self._dtype = TensorProto.FLOAT

    def input(self, *shape: int, dtype: int = TensorProto.FLOAT) -> str:
        """The input ``x``."""
        self._shape, self._dtype = shape, dtype
        return "x"

    def weight(self, array: Any, dtype: Any = np.float32) -> str:
        """A constant."""
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        """A node; the name of its output, or a list of names."""
        names = [f"{op}{len(self._nodes)}_{i}" for i in range(outputs)]
        self._nodes.append(helper.make_node(op, list(inputs), names, name=names[0], **attrs))
        return names[0] if outputs == 1 else names

    def random(self, *shape: int, fan: int) -> str:
        """Weights of a product that adds ``fan`` terms."""
        return self.weight(self._rng.normal(0, np.sqrt(2 / fan), shape))

    def conv(self, x: str, shape: tuple[int, ...], act: str = "Relu", **attrs: Any) -> str:
        """A convolution with weights of this shape and a bias, padded to keep the size."""
        size = shape[2:]
        dilations = attrs.get("dilations", [1] * len(size))
        pads = [(k - 1) * d // 2 for k, d in zip(size, dilations)] * 2
        attrs.setdefault("pads", pads)
        fan = int(np.prod(shape[1:]))
        weights = self.random(*shape, fan=fan), self.weight(self._rng.normal(0, 0.1, shape[0]))
        return self.act(self("Conv", x, *weights, **attrs), act)

    def up(self, x: str, inner: int, outer: int, kernel: int, stride: int = 2) -> str:
        """A transposed convolution that multiplies the size by ``stride``, and a relu."""
        weight = self.random(inner, outer, kernel, kernel, fan=inner * kernel**2 // stride**2)
        pads = [(kernel - stride) // 2] * 4
        bias = self.weight(self._rng.normal(0, 0.1, outer))
        made = self("ConvTranspose", x, weight, bias, strides=[stride] * 2, pads=pads)
        return self.act(made, "Relu")

    def act(self, x: str, name: str) -> str:
        """An activation by name; "" for none."""
        if name == "Silu":
            return str(self("Mul", x, self("Sigmoid", x)))
        if name == "Gelu":
            half = self("Mul", x, self.weight(0.5))
            erf = self("Erf", self("Div", x, self.weight(np.sqrt(2))))
            return str(self("Mul", half, self("Add", erf, self.weight(1.0))))
        return str(self(name, x)) if name else x

    def norm(self, x: str, channels: int) -> str:
        """A batch normalization."""
        scale, mean = self._rng.uniform(0.6, 1.4, channels), self._rng.normal(0, 0.2, channels)
        shift, variance = self._rng.normal(0, 0.2, channels), self._rng.uniform(0.6, 1.4, channels)
        weights = map(self.weight, (scale, shift, mean, variance))
        return str(self("BatchNormalization", x, *weights))

    def layer_norm(self, x: str, width: int) -> str:
        """A normalization over the last axis."""
        scale, shift = self._rng.uniform(0.6, 1.4, width), self._rng.normal(0, 0.2, width)
        return str(self("LayerNormalization", x, self.weight(scale), self.weight(shift), axis=-1))

    def dense(self, x: str, inner: int, outer: int, act: str = "") -> str:
        """A product with constant weights over the last axis, and a bias."""
        made = self("MatMul", x, self.random(inner, outer, fan=2 * inner))
        return self.act(self("Add", made, self.weight(self._rng.normal(0, 0.1, outer))), act)

    def squeeze(self, x: str, channels: int, inner: int, gate: str) -> str:
        """Squeeze and excite."""
        pooled = self("GlobalAveragePool", x)
        small = self.conv(pooled, (inner, channels, 1, 1))
        return str(self("Mul", x, self.conv(small, (channels, inner, 1, 1), gate)))

    def shaped(self, x: str, *shape: int) -> str:
        """A reshape."""
        return str(self("Reshape", x, self.weight(shape, np.int64)))

    def head(self, x: str, channels: int, classes: int = 100) -> str:
        """Mean of an image or a sequence, and a dense layer."""
        return self.dense(self("Flatten", self("GlobalAveragePool", x)), channels, classes)

    def model(self, output: str) -> onnx.ModelProto:
        """The model."""
        inputs = [helper.make_tensor_value_info("x", self._dtype, self._shape)]
        outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self._nodes, "network", inputs, outputs, self._weights)
        opset = [helper.make_opsetid("", 17)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=8)
        return onnx.shape_inference.infer_shapes(made)


@network
def densenet(g: Network) -> str:
    """Every layer reads the concatenation of those before it, behind a batch normalization."""
    x, channels = g.conv(g.input(1, 3, 96, 96), (48, 3, 7, 7), strides=[2, 2]), 48
    x = g("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for layers in (4, 5):
        for _ in range(layers):
            y = g.conv(g("Relu", g.norm(x, channels)), (64, channels, 1, 1))
            x, channels = g("Concat", x, g.conv(y, (24, 64, 3, 3), ""), axis=1), channels + 24
        x = g.conv(g("Relu", g.norm(x, channels)), (channels // 2, channels, 1, 1), "")
        x, channels = g("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2]), channels // 2
    return g.head(g("Relu", g.norm(x, channels)), channels)


@network
def mobilenet_v3(g: Network) -> str:
    """Inverted residuals with squeeze and excite, hard swish, 5 x 5 depthwise convolutions."""
    x, channels = g.conv(g.input(1, 3, 128, 128), (16, 3, 3, 3), "HardSwish", strides=[2, 2]), 16
    for kernel, wide, out, stride, gate, act in (
        (3, 16, 16, 2, "HardSigmoid", "Relu"),
        (3, 72, 24, 2, "", "Relu"),
        (3, 88, 24, 1, "", "Relu"),
        (5, 96, 40, 2, "HardSigmoid", "HardSwish"),
        (5, 240, 40, 1, "HardSigmoid", "HardSwish"),
        (5, 120, 48, 1, "HardSigmoid", "HardSwish"),
        (5, 288, 96, 2, "HardSigmoid", "HardSwish"),
        (5, 576, 96, 1, "HardSigmoid", "HardSwish"),
    ):
        y = g.conv(x, (wide, channels, 1, 1), act) if wide != channels else x
        y = g.conv(y, (wide, 1, kernel, kernel), act, group=wide, strides=[stride] * 2)
        y = g.squeeze(y, wide, max(wide // 4, 8), gate) if gate else y
        y = g.conv(y, (out, wide, 1, 1), "")
        x, channels = (g("Add", x, y) if stride == 1 and out == channels else y), out
    return g.head(g.conv(x, (576, channels, 1, 1), "HardSwish"), 576, 1000)


@network
def efficientnet(g: Network) -> str:
    """Swish and sigmoid gates."""
    x, channels = g.conv(g.input(1, 3, 96, 96), (32, 3, 3, 3), "Silu", strides=[2, 2]), 32
    for kernel, out, stride in (
        (3, 16, 1),
        (3, 24, 2),
        (3, 24, 1),
        (5, 40, 2),
        (5, 80, 2),
        (5, 80, 1),
    ):
        wide = channels * 4
        y = g.conv(x, (wide, channels, 1, 1), "Silu")
        y = g.conv(y, (wide, 1, kernel, kernel), "Silu", group=wide, strides=[stride] * 2)
        y = g.conv(g.squeeze(y, wide, max(channels // 4, 4), "Sigmoid"), (out, wide, 1, 1), "")
        x, channels = (g("Add", x, y) if stride == 1 and out == channels else y), out
    return g.head(g.conv(x, (320, channels, 1, 1), "Silu"), 320)


@network
def shufflenet(g: Network) -> str:
    """Grouped 1 x 1 convolutions and shuffles of channels, then halves that are exchanged."""

    def shuffle(x: str, groups: int, channels: int, size: int) -> str:
        apart = g.shaped(x, 1, groups, channels // groups, size, size)
        return g.shaped(g("Transpose", apart, perm=[0, 2, 1, 3, 4]), 1, channels, size, size)

    x = g.conv(g.input(1, 3, 112, 112), (60, 3, 3, 3), strides=[2, 2])
    x = g("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for _ in range(2):
        y = shuffle(g.conv(x, (60, 20, 1, 1), group=3), 3, 60, 28)
        y = g.conv(y, (60, 1, 3, 3), "", group=60)
        x = g("Relu", g("Add", x, g.conv(y, (60, 20, 1, 1), "", group=3)))
    x = g.conv(x, (116, 60, 3, 3), strides=[2, 2])
    for _ in range(3):
        kept, y = g("Split", x, g.weight([58, 58], np.int64), outputs=2, axis=1)
        y = g.conv(g.conv(y, (58, 58, 1, 1)), (58, 1, 3, 3), "", group=58)
        x = shuffle(g("Concat", kept, g.conv(y, (58, 58, 1, 1)), axis=1), 2, 116, 14)
    x = g.conv(x, (232, 29, 3, 3), group=4, strides=[2, 2])
    return g.head(g.conv(x, (464, 232, 1, 1)), 464)


@network
def unet(g: Network) -> str:
    """Down and up again, with skips; transposed convolutions of stride 2."""
    x, channels, skips = g.input(1, 3, 96, 96), 3, []
    for width in (16, 32, 64, 128):
        x = g.conv(g.conv(x, (width, channels, 3, 3)), (width, width, 3, 3))
        skips.append((x, width))
        x, channels = g("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2]), width
    x = g.conv(x, (128, 128, 3, 3))
    for (skip, width), kernel in zip(reversed(skips), (2, 4, 2, 4)):
        x = g("Concat", g.up(x, channels, width, kernel), skip, axis=1)
        x, channels = g.conv(x, (width, 2 * width, 3, 3)), width
    return g.conv(x, (4, channels, 1, 1), "Sigmoid")


@network
def upsampler(g: Network) -> str:
    """A pyramid: dilated convolutions side by side, nearest neighbours, depth to space."""
    x = g.conv(g.input(1, 3, 128, 128), (32, 3, 5, 5), strides=[2, 2])
    low = g.conv(x, (96, 32, 3, 3), strides=[2, 2])
    parts = [g.conv(low, (48, 96, 3, 3), dilations=[d, d]) for d in (1, 3, 6)]
    wide = g("Resize", g("GlobalAveragePool", low), "", g.weight([1, 1, 32, 32]), mode="nearest")
    y = g.conv(g("Concat", *parts, wide, axis=1), (64, 240, 1, 1), "LeakyRelu")
    y = g("Resize", y, "", g.weight([1, 1, 2, 2]), mode="nearest")
    y = g.conv(g("Concat", y, x, axis=1), (32, 96, 3, 3))
    return g("DepthToSpace", g.conv(y, (12, 32, 3, 3), ""), blocksize=2)


@network
def sequence(g: Network) -> str:
    """One-dimensional convolutions, dilated, with gates, over 1,024 steps."""
    x, channels = g.conv(g.input(1, 12, 1024), (64, 12, 7), strides=[1]), 64
    for dilation in (1, 2, 4, 8):
        y = g.conv(x, (64, 64, 3), "Tanh", dilations=[dilation])
        gate = g.conv(x, (64, 64, 3), "Sigmoid", dilations=[dilation])
        x = g("Add", x, g.conv(g("Mul", y, gate), (64, 64, 1), ""))
    x = g.conv(g("Relu", x), (128, channels, 5), strides=[2])
    x = g.conv(g("MaxPool", x, kernel_shape=[2], strides=[2]), (128, 1, 5), group=128)
    return g.head(g.conv(x, (192, 128, 1), "Gelu"), 192)


@network
def vit(g: Network) -> str:
    """197 tokens of width 192, three heads; the first token is classified."""
    tokens, width, heads = 197, 192, 3
    x = g("Conv", g.input(1, 3, 224, 224), g.random(width, 3, 16, 16, fan=768), strides=[16, 16])
    x = g("Transpose", g.shaped(x, 1, width, 196), perm=[0, 2, 1])
    x = g("Concat", g.random(1, 1, width, fan=2), x, axis=1)
    x = g("Add", x, g.random(1, tokens, width, fan=50))
    for _ in range(2):
        y = g.dense(g.layer_norm(x, width), width, 3 * width)
        y = g("Transpose", g.shaped(y, 1, tokens, 3, heads, 64), perm=[2, 0, 3, 1, 4])
        parts = g("Split", y, outputs=3, axis=0)
        q, k, v = (g("Squeeze", p, g.weight([0], np.int64)) for p in parts)
        scores = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
        soft = g("Softmax", g("Mul", scores, g.weight(0.125)), axis=-1)
        y = g("Transpose", g("MatMul", soft, v), perm=[0, 2, 1, 3])
        x = g("Add", x, g.dense(g.shaped(y, 1, tokens, width), width, width))
        y = g.dense(g.layer_norm(x, width), width, 4 * width, "Gelu")
        x = g("Add", x, g.dense(y, 4 * width, width))
    first = g("Gather", g.layer_norm(x, width), g.weight(0, np.int64), axis=1)
    return g.dense(first, width, 100)


@network
def convnext(g: Network) -> str:
    """7 x 7 depthwise convolutions, normalization over channels, dense layers on pixels."""
    x = g("Conv", g.input(1, 3, 128, 128), g.random(96, 3, 4, 4, fan=48), strides=[4, 4])
    for _ in range(3):
        y = g("Transpose", g.conv(x, (96, 1, 7, 7), "", group=96), perm=[0, 2, 3, 1])
        y = g.dense(g.dense(g.layer_norm(y, 96), 96, 384, "Gelu"), 384, 96)
        x = g("Add", x, g("Transpose", y, perm=[0, 3, 1, 2]))
    return g.head(x, 96)


@network
def vgg(g: Network) -> str:
    """Bottlenecks, a 5 x 5 convolution of stride 2, and large dense layers."""
    x = g.conv(g.input(1, 3, 64, 64), (32, 3, 5, 5), strides=[2, 2])
    x = g.conv(g.conv(x, (64, 32, 3, 3)), (64, 64, 3, 3), strides=[2, 2])
    for _ in range(2):
        y = g.conv(g.conv(x, (32, 64, 1, 1)), (32, 32, 3, 3))
        x = g("Relu", g("Add", x, g.conv(y, (64, 32, 1, 1), "")))
    x = g("MaxPool", g.conv(x, (128, 64, 3, 3)), kernel_shape=[2, 2], strides=[2, 2])
    x = g.dense(g("Flatten", x), 128 * 64, 512, "Relu")
    return g.dense(g.dense(x, 512, 1024, "Relu"), 1024, 100)


@network
def detector(g: Network) -> str:
    """Swish, split stages, pools of stride 1, two scales, a head with a softmax over bins."""

    def stage(x: str, inner: int, width: int, repeats: int) -> str:
        half = width // 2
        x = g.conv(x, (width, inner, 1, 1), "Silu")
        parts = g("Split", x, g.weight([half, half], np.int64), outputs=2, axis=1)
        for _ in range(repeats):
            y = g.conv(g.conv(parts[-1], (half, half, 3, 3), "Silu"), (half, half, 3, 3), "Silu")
            parts.append(g("Add", parts[-1], y))
        wide = half * len(parts)
        return g.conv(g("Concat", *parts, axis=1), (width, wide, 1, 1), "Silu")

    x = g.conv(g.input(1, 3, 160, 160), (16, 3, 3, 3), "Silu", strides=[2, 2])
    x = stage(g.conv(x, (32, 16, 3, 3), "Silu", strides=[2, 2]), 32, 32, 1)
    high = stage(g.conv(x, (64, 32, 3, 3), "Silu", strides=[2, 2]), 64, 64, 2)
    x = stage(g.conv(high, (128, 64, 3, 3), "Silu", strides=[2, 2]), 128, 128, 1)
    pools = [g.conv(x, (64, 128, 1, 1), "Silu")]
    for _ in range(3):
        pools.append(g("MaxPool", pools[-1], kernel_shape=[5, 5], pads=[2] * 4))
    low = g.conv(g("Concat", *pools, axis=1), (128, 256, 1, 1), "Silu")
    up = g("Resize", low, "", g.weight([1, 1, 2, 2]), mode="nearest")
    high = stage(g("Concat", up, high, axis=1), 192, 64, 1)
    heads = []
    for y, width, cells in ((high, 64, 400), (low, 128, 100)):
        boxes = g.conv(g.conv(y, (64, width, 3, 3), "Silu"), (64, 64, 1, 1), "")
        classes = g.conv(g.conv(y, (64, width, 3, 3), "Silu"), (20, 64, 1, 1), "")
        heads.append(g.shaped(g("Concat", boxes, classes, axis=1), 1, 84, cells))
    every = g("Concat", *heads, axis=2)
    boxes, classes = g("Split", every, g.weight([64, 20], np.int64), outputs=2, axis=1)
    bins = g("Transpose", g.shaped(boxes, 1, 4, 16, 500), perm=[0, 2, 1, 3])
    sides = g("Conv", g("Softmax", bins, axis=1), g.weight(np.arange(16).reshape(1, 16, 1, 1)))
    return g("Concat", g.shaped(sides, 1, 4, 500), g("Sigmoid", classes), axis=1)


@network
def encoder(g: Network) -> str:
    """A text encoder behind its embedding: root mean squares, gated dense layers, a mask."""
    tokens, width, heads = 128, 256, 4
    x = g.input(1, tokens, width)
    mask = g.weight(np.triu(np.full((tokens, tokens), -60.0), 1)[None, None])

    def norm(x: str) -> str:
        mean = g("ReduceMean", g("Mul", x, x), axes=[-1], keepdims=1)
        root = g("Sqrt", g("Add", mean, g.weight(1e-5)))
        return g("Mul", g("Div", x, root), g.weight(np.linspace(0.7, 1.3, width)))

    for _ in range(2):
        y = norm(x)
        q, k, v = (g.shaped(g.dense(y, width, width), 1, tokens, heads, 64) for _ in range(3))
        q, v = (g("Transpose", p, perm=[0, 2, 1, 3]) for p in (q, v))
        scores = g("MatMul", q, g("Transpose", k, perm=[0, 2, 3, 1]))
        scores = g("Add", g("Mul", scores, g.weight(0.125)), mask)
        y = g("MatMul", g("Softmax", scores, axis=-1), v)
        y = g.shaped(g("Transpose", y, perm=[0, 2, 1, 3]), 1, tokens, width)
        x = g("Add", x, g.dense(y, width, width))
        y = norm(x)
        gated = g("Mul", g.dense(y, width, 512, "Silu"), g.dense(y, width, 512))
        x = g("Add", x, g.dense(gated, 512, width))
    return g.dense(g("ReduceMean", x, axes=[1], keepdims=0), width, 64)


@network
def windows(g: Network) -> str:
    """Attention within shifted windows of an image, and patches merged."""
    x = g("Conv", g.input(1, 3, 112, 112), g.random(64, 3, 4, 4, fan=48), strides=[4, 4])
    x, size, width, heads, side = g("Transpose", x, perm=[0, 2, 3, 1]), 28, 64, 2, 7
    for layer in range(2):
        y = g.layer_norm(x, width)
        for axis in (1, 2) if layer else ():
            head, tail = g("Split", y, g.weight([3, size - 3], np.int64), outputs=2, axis=axis)
            y = g("Concat", tail, head, axis=axis)
        count = size // side
        y = g("Transpose", g.shaped(y, count, side, count, side, width), perm=[0, 2, 1, 3, 4])
        y = g.dense(g.shaped(y, count**2, side**2, width), width, 3 * width)
        y = g("Transpose", g.shaped(y, count**2, side**2, 3, heads, 32), perm=[2, 0, 3, 1, 4])
        q, k, v = (
            g.shaped(p, count**2, heads, side**2, 32) for p in g("Split", y, outputs=3, axis=0)
        )
        scores = g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2]))
        scores = g("Add", scores, g.random(heads, side**2, side**2, fan=8))
        y = g("Transpose", g("MatMul", g("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        y = g.dense(g.shaped(y, count**2, side**2, width), width, width)
        y = g("Transpose", g.shaped(y, count, count, side, side, width), perm=[0, 2, 1, 3, 4])
        x = g("Add", x, g.shaped(y, 1, size, size, width))
        y = g.dense(g.layer_norm(x, width), width, 4 * width, "Gelu")
        x = g("Add", x, g.dense(y, 4 * width, width))
    x = g.shaped(x, 1, size // 2, 2, size // 2, 2, width)
    x = g.shaped(g("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), 1, size**2 // 4, 4 * width)
    x = g.dense(g.layer_norm(x, 4 * width), 4 * width, 2 * width)
    return g.dense(g("ReduceMean", x, axes=[1], keepdims=0), 2 * width, 100)


@network
def inception(g: Network) -> str:
    """Branches with 1 x 7 and 7 x 1 convolutions and pools; channels rescaled, ELU, PRelu."""
    x = g.conv(g.input(1, 3, 96, 96), (32, 3, 3, 3), "Elu", strides=[2, 2])
    x, width = g.conv(x, (64, 32, 3, 3), strides=[2, 2]), 64
    for _ in range(2):
        a = g.conv(x, (32, width, 1, 1))
        b = g.conv(g.conv(x, (32, width, 1, 1)), (32, 32, 1, 7))
        b = g.conv(b, (48, 32, 7, 1))
        c = g.conv(g.conv(x, (24, width, 1, 1), "Elu"), (48, 24, 5, 5))
        d = g("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4, count_include_pad=1)
        d = g.conv(d, (32, width, 1, 1), "Softplus")
        x, width = g("Concat", a, b, c, d, axis=1), 160
        x = g("Mul", x, g.weight(np.geomspace(0.2, 5, width).reshape(1, width, 1, 1)))
        x = g("PRelu", x, g.weight(np.full((width, 1, 1), 0.1)))
    return g.head(x, width)


@network
def painter(g: Network) -> str:
    """An image to an image: reflected borders, instance normalization, bilinear resizing."""

    def conv(x: str, shape: tuple[int, ...], stride: int, act: str) -> str:
        pad = shape[2] // 2
        x = g("Pad", x, g.weight([0, 0, pad, pad] * 2, np.int64), mode="reflect")
        fan = int(np.prod(shape[1:]))
        x = g("Conv", x, g.random(*shape, fan=fan), strides=[stride] * 2)
        scale, shift = g.weight(np.linspace(0.5, 1.5, shape[0])), g.weight(np.zeros(shape[0]))
        return g.act(g("InstanceNormalization", x, scale, shift), act)

    x = conv(g.input(1, 3, 96, 96), (24, 3, 9, 9), 1, "Relu")
    x = conv(conv(x, (48, 24, 3, 3), 2, "Relu"), (64, 48, 3, 3), 2, "Relu")
    for _ in range(2):
        x = g("Add", x, conv(conv(x, (64, 64, 3, 3), 1, "Relu"), (64, 64, 3, 3), 1, ""))
    for inner, outer in ((64, 48), (48, 24)):
        x = g("Resize", x, "", g.weight([1, 1, 2, 2]), mode="linear")
        x = conv(x, (outer, inner, 3, 3), 1, "Relu")
    return conv(x, (3, 24, 9, 9), 1, "Tanh")
