"""Tiny networks in code, with seeded weights: inputs for tests, benchmarks and examples.

Each function returns ``(module, params)``: a typed module whose main takes ``x`` and the weights,
and the weights by name, as ``frontend.from_onnx.load`` gives them. Layout NCHW, float32.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from compiler import relay
from compiler.ir.expr import Expr, Function, Var
from compiler.ir.module import IRModule

CHANNELS = 4
"""Channels of ``residual_chain``."""
Params = dict[str, NDArray[Any]]
Model = tuple[IRModule, Params]


class _Net:
    """Collects weights as parameters while a network is written down."""

    def __init__(self, shape: tuple[int, ...], seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.params: Params = {}
        self.x = relay.var("x", shape)
        self._vars: list[Var] = [self.x]

    def weight(self, name: str, shape: tuple[int, ...], scale: float = 1.0) -> Var:
        """A parameter with normal values of standard deviation ``scale``."""
        values = self.rng.standard_normal(shape) * scale
        self.params[name] = values.astype(np.float32)
        variable = relay.var(name, shape)
        self._vars.append(variable)
        return variable

    def conv(
        self, data: Expr, name: str, channels: int, size: int, reads: int, **attrs: Any
    ) -> Expr:
        """A 2-D convolution with bias, reading ``reads`` input channels per group."""
        fan_in = reads * size * size
        w = self.weight(f"{name}_w", (channels, reads, size, size), math.sqrt(2 / fan_in))
        b = self.weight(f"{name}_b", (channels, 1, 1), 0.1)
        conv: Expr = relay.op.nn.conv2d(
            data, w, channels=channels, kernel_size=(size, size), padding=size // 2, **attrs
        )
        return conv + b

    def dense(self, data: Expr, name: str, reads: int, units: int) -> Expr:
        """A dense layer with bias."""
        w = self.weight(f"{name}_w", (units, reads), math.sqrt(2 / reads))
        b = self.weight(f"{name}_b", (units,), 0.1)
        product: Expr = relay.op.nn.dense(data, w, units=units)
        return product + b

    def model(self, result: Expr) -> Model:
        """The finished module and its weights."""
        return relay.module(Function(tuple(self._vars), result)), self.params


def mlp(
    batch: int = 1, features: int = 8, hidden: int = 16, classes: int = 4, seed: int = 0
) -> Model:
    """Two dense layers with a ReLU in between; x is (batch, features)."""
    net = _Net((batch, features), seed)
    hidden_layer = relay.op.nn.relu(net.dense(net.x, "fc0", features, hidden))
    return net.model(net.dense(hidden_layer, "fc1", hidden, classes))


def conv_chain(depth: int = 3, channels: int = 8, size: int = 8, seed: int = 0) -> Model:
    """``depth`` times convolution, bias, ReLU; x is (1, 3, size, size)."""
    net = _Net((1, 3, size, size), seed)
    value: Expr = net.x
    for k in range(depth):
        reads = 3 if k == 0 else channels
        value = relay.op.nn.relu(net.conv(value, f"conv{k}", channels, 3, reads=reads))
    return net.model(value)


def conv_bn(channels: int = 8, size: int = 8, seed: int = 0) -> Model:
    """Convolution, batch_norm, ReLU, as trained; x is (1, 3, size, size)."""
    net = _Net((1, 3, size, size), seed)
    w = net.weight("conv_w", (channels, 3, 3, 3), 0.3)
    statistics = [net.weight(f"bn_{n}", (channels,), 0.5) for n in ("gamma", "beta", "mean", "var")]
    net.params["bn_var"] = np.abs(net.params["bn_var"]) + np.float32(0.1)
    conv = relay.op.nn.conv2d(net.x, w, channels=channels, kernel_size=(3, 3), padding=1)
    norm = relay.op.nn.batch_norm(conv, *statistics)
    return net.model(relay.op.nn.relu(relay.TupleGetItem(norm, 0)))


def residual_net(
    blocks: int = 2, channels: int = 8, size: int = 8, classes: int = 4, seed: int = 0
) -> Model:
    """Stem, residual blocks, max pool, global average, dense; x is (1, 3, size, size)."""
    net = _Net((1, 3, size, size), seed)
    value = relay.op.nn.relu(net.conv(net.x, "stem", channels, 3, reads=3))
    for k in range(blocks):
        inner = relay.op.nn.relu(net.conv(value, f"block{k}_a", channels, 3, reads=channels))
        inner = net.conv(inner, f"block{k}_b", channels, 3, reads=channels)
        value = relay.op.nn.relu(relay.op.add(value, inner))
    value = relay.op.nn.max_pool2d(value, pool_size=(2, 2), strides=(2, 2))
    value = relay.op.nn.batch_flatten(relay.op.nn.global_avg_pool2d(value))
    return net.model(net.dense(value, "fc", channels, classes))


def mobile_net(channels: int = 8, size: int = 8, classes: int = 4, seed: int = 0) -> Model:
    """A stem and an inverted residual, depthwise and ReLU6; x is (1, 3, size, size)."""
    net = _Net((1, 3, size, size), seed)

    def relu6(value: Expr) -> Expr:
        return relay.call("clip", value, a_min=0.0, a_max=6.0)

    stem = relu6(net.conv(net.x, "stem", channels, 3, reads=3, strides=(2, 2)))
    wide = relu6(net.conv(stem, "expand", 2 * channels, 1, reads=channels))
    deep = relu6(net.conv(wide, "depthwise", 2 * channels, 3, reads=1, groups=2 * channels))
    value = relay.op.add(stem, net.conv(deep, "project", channels, 1, reads=2 * channels))
    value = relay.op.nn.batch_flatten(relay.op.nn.global_avg_pool2d(value))
    return net.model(net.dense(value, "fc", channels, classes))


def branches(channels: int = 4, size: int = 8, seed: int = 0) -> Model:
    """Two convolutions of one input, concatenated and averaged; x is (1, 3, size, size)."""
    net = _Net((1, 3, size, size), seed)
    left = relay.op.nn.relu(net.conv(net.x, "left", channels, 3, reads=3))
    right = relay.op.nn.relu(net.conv(net.x, "right", channels, 1, reads=3))
    joined = relay.op.concatenate([left, right], axis=1)
    return net.model(relay.op.nn.avg_pool2d(joined, pool_size=(2, 2), strides=(2, 2)))


def attention(tokens: int = 6, width: int = 8, seed: int = 0) -> Model:
    """One head of self-attention with layer norm and a residual; x is (1, tokens, width)."""
    net = _Net((1, tokens, width), seed)
    gamma, beta = net.weight("ln_gamma", (width,), 0.1), net.weight("ln_beta", (width,), 0.1)
    normed = relay.op.nn.layer_norm(net.x, gamma, beta)
    flat = relay.op.reshape(normed, newshape=(-1, width))
    q, k, v = (
        relay.op.reshape(net.dense(flat, name, width, width), newshape=(1, tokens, width))
        for name in ("q", "k", "v")
    )
    scores = relay.op.multiply(relay.op.nn.batch_matmul(q, k), 1 / math.sqrt(width))
    mixed = relay.op.nn.batch_matmul(relay.op.nn.softmax(scores), v, transpose_b=False)
    return net.model(relay.op.add(net.x, mixed))


def residual_chain(operators: int, seed: int = 0) -> bytes:
    """An ONNX model of ``operators`` nodes: x = x + relu(bn(conv(x))), again and again.

    Weights are small enough that values stay finite however long the chain.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, value: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    value = "x"
    for i in range(operators // 4):
        w = weight(f"w{i}", rng.normal(0, 1e-4, (CHANNELS, CHANNELS, 1, 1)))
        bn = [
            weight(f"gamma{i}", rng.uniform(0.9, 1.1, CHANNELS)),
            weight(f"beta{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"mean{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"var{i}", rng.uniform(0.9, 1.1, CHANNELS)),
        ]
        nodes += [
            helper.make_node("Conv", [value, w], [f"c{i}"], name=f"conv{i}"),
            helper.make_node("BatchNormalization", [f"c{i}", *bn], [f"b{i}"], name=f"bn{i}"),
            helper.make_node("Relu", [f"b{i}"], [f"r{i}"], name=f"relu{i}"),
            helper.make_node("Add", [f"r{i}", value], [f"a{i}"], name=f"add{i}"),
        ]
        value = f"a{i}"
    shape = [1, CHANNELS, 2, 2]
    graph = helper.make_graph(
        nodes,
        "residual_chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())
