"""Small networks in the spellings in which tools write integers into ONNX.

``spellings()`` gives every file by name. Those of onnxruntime.quantization are written by the tool
itself; those of Brevitas, torch, NNCF, Quark, ModelOpt and of onnxruntime's optimizer are written
here node by node as these tools write them. ``tool_files`` holds what five tools wrote themselves.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)

from tests.needs import exact_products, unoptimized

Array = NDArray[Any]
MICROSOFT = "com.microsoft"
SHAPE = (1, 3, 8, 8)


def samples(shape: Sequence[int] = SHAPE, count: int = 6, seed: int = 5) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(0, 1, shape).astype(np.float32)} for _ in range(count)]


@dataclass(slots=True)
class Graph:
    """Nodes and initializers that are added one after the other."""

    opset: int = 17
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: list[onnx.TensorProto] = field(default_factory=list)

    def store(self, value: Any, data_type: int | None = None) -> str:
        name = f"c{len(self.held)}"
        array = np.asarray(value)
        if data_type is None:
            self.held.append(numpy_helper.from_array(array, name))
        else:
            self.held.append(helper.make_tensor(name, data_type, array.shape, array.reshape(-1)))
        return name

    def add(self, op: str, *inputs: str, domain: str = "", **attrs: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(op, inputs, [name], name=f"/{name}", domain=domain, **attrs)
        )
        return name

    def model(
        self, result: str, shape: Sequence[int] = SHAPE, dtype: int = 1, out: int = 1
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "g",
            [helper.make_tensor_value_info("x", dtype, shape)],
            [helper.make_tensor_value_info(result, out, None)],
            self.held,
        )
        domains = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        domains.append(helper.make_opsetid("com.amd.quark", 1))
        version = 8 if self.opset < 19 else 10 if self.opset < 24 else 13
        return helper.make_model(graph, opset_imports=domains, ir_version=version)


# The float network --------------------------------------------------------------------------------


def weights(seed: int = 0) -> dict[str, Array]:
    """Weights of both networks; channels of different sizes."""
    rng = np.random.default_rng(seed)

    def made(*shape: int, size: float = 0.4) -> Array:
        channels = 2.0 ** rng.uniform(-2, 1, (shape[0],) + (1,) * (len(shape) - 1))
        return (rng.normal(0.02, size, shape) * channels).astype(np.float32)

    return {
        "conv": made(8, 3, 3, 3),
        "conv_b": made(8),
        "depth": made(8, 1, 3, 3),
        "depth_b": made(8),
        "dense": made(10, 8),
        "dense_b": made(10),
    }


def float_network(opset: int = 17, activation: str = "Relu") -> onnx.ModelProto:
    g, w = Graph(opset), weights()
    first = g.add("Conv", "x", g.store(w["conv"]), g.store(w["conv_b"]), pads=[1] * 4)
    a = g.add(activation, first)
    pads = {"pads": [1] * 4, "group": 8}
    b = g.add("Conv", a, g.store(w["depth"]), g.store(w["depth_b"]), **pads)
    mean = g.add("GlobalAveragePool", g.add("Add", a, b))
    flat = g.add("Flatten", mean)
    dense = g.store(np.ascontiguousarray(w["dense"].T))
    return g.model(g.add("Gemm", flat, dense, g.store(w["dense_b"])))


def attention_network(opset: int = 17) -> onnx.ModelProto:
    g, rng = Graph(opset), np.random.default_rng(3)

    def linear(data: str, rows: int, columns: int) -> str:
        sizes = 2.0 ** rng.uniform(-2, 1, columns)
        weight = (rng.normal(0, 0.3, (rows, columns)) * sizes).astype(np.float32)
        bias = rng.normal(0, 0.2, columns).astype(np.float32)
        return g.add("Add", g.add("MatMul", data, g.store(weight)), g.store(bias))

    q, k, v = (linear("x", 16, 16) for _ in range(3))
    scores = g.add("MatMul", q, g.add("Transpose", k, perm=[0, 2, 1]))
    shares = g.add("Softmax", g.add("Mul", scores, g.store(np.float32(0.25))), axis=-1)
    mixed = g.add("Add", "x", linear(g.add("MatMul", shares, v), 16, 16))
    gate = g.add("Mul", mixed, g.add("Sigmoid", mixed))
    return g.model(linear(gate, 16, 8), TOKENS)


TOKENS = (1, 6, 16)


def elementwise_network(opset: int = 17) -> onnx.ModelProto:
    """The network that holds operators of com.microsoft besides products."""
    g, rng = Graph(opset), np.random.default_rng(4)
    weight = rng.normal(0, 0.4, (8, 3, 3, 3)).astype(np.float32)
    a = g.add("LeakyRelu", g.add("Conv", "x", g.store(weight), pads=[1] * 4), alpha=0.1)
    b = g.add("Sigmoid", a)
    c = g.add("Mul", a, b)
    both = g.add("Concat", c, b, axis=1)
    pooled = g.add("AveragePool", both, kernel_shape=[3, 3])  # thirds: no ties
    most = g.add("MaxPool", pooled, kernel_shape=[2, 2], strides=[2, 2])
    flat = g.add("Reshape", most, g.store(np.array([1, -1], np.int64)))
    dense = rng.normal(0, 0.2, (144, 6)).astype(np.float32)
    return g.model(g.add("Softmax", g.add("MatMul", flat, g.store(dense)), axis=-1))


# onnxruntime's own tool ---------------------------------------------------------------------------


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: Sequence[int]) -> None:
        self._left = samples(shape, 8, 1)

    def get_next(self) -> dict[str, Any] | None:
        return self._left.pop() if self._left else None


def by_onnxruntime(
    network: Callable[[int], onnx.ModelProto],
    form: QuantFormat = QuantFormat.QDQ,
    activations: QuantType = QuantType.QUInt8,
    weight: QuantType = QuantType.QInt8,
    opset: int = 17,
    per_channel: bool = False,
    **options: Any,
) -> onnx.ModelProto:
    """The file that quantize_static writes of the network."""
    model = network(opset)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.onnx"
        quantize_static(
            onnx.shape_inference.infer_shapes(model),
            path,
            Reader(shape),
            quant_format=form,
            per_channel=per_channel,
            activation_type=activations,
            weight_type=weight,
            extra_options=options,
        )
        return onnx.load(path)


def dynamic(network: Callable[[int], onnx.ModelProto]) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "q.onnx"
        quantize_dynamic(onnx.shape_inference.infer_shapes(network(17)), path)
        return onnx.load(path)


# Hand-written -------------------------------------------------------------------------------------

INTEGERS = {
    "int2": (TensorProto.INT2, -2, 1),
    "uint2": (TensorProto.UINT2, 0, 3),
    "int4": (TensorProto.INT4, -8, 7),
    "uint4": (TensorProto.UINT4, 0, 15),
    "int8": (TensorProto.INT8, -128, 127),
    "uint8": (TensorProto.UINT8, 0, 255),
    "int16": (TensorProto.INT16, -32768, 32767),
    "uint16": (TensorProto.UINT16, 0, 65535),
}
FLOATS = {"float32": 1, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


@dataclass(slots=True)
class Speller:
    """Quantized layers in one spelling.

    ``points``: dtype of activations; ``zero``: their zero point, as a share of the range; ``clip``:
    bounds of a Clip between Q and DQ, in integers. ``weight``: dtype of weights; ``axis``: one
    scale by channel or one; ``block``: elements of a block along the inputs; ``zeros``: zero points
    by channel. ``stored``: weights as integers, or as floats in front of a QuantizeLinear (torch,
    NNCF). ``constants``: scales by Constant nodes (Brevitas, torch).
    """

    opset: int = 17
    points: str = "uint8"
    zero: float = 0.5
    clip: tuple[int, int] | None = None
    weight: str = "int8"
    per_channel: bool = True
    block: int = 0
    zeros: bool = False
    floats: str = "float32"
    domain: str = ""
    names: tuple[str, str] = ("QuantizeLinear", "DequantizeLinear")
    stored: bool = True
    constants: bool = False
    int_bias: bool = True
    narrow: bool = False
    power_of_2: bool = False
    g: Graph = field(default_factory=Graph)
    scales: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.g = Graph(self.opset)

    def store(self, value: Any, kind: int) -> str:
        if not self.constants:
            return self.g.store(value, kind)
        tensor = helper.make_tensor("", kind, np.shape(value), np.asarray(value).reshape(-1))
        return self.g.add("Constant", value=tensor)

    def real(self, value: Any) -> str:
        return self.store(np.asarray(value, np.float32), FLOATS[self.floats])

    def held(self, value: Any) -> Any:
        """A scale as the file holds it."""
        value = np.asarray(value, np.float32)
        if self.power_of_2:
            return np.exp2(np.ceil(np.log2(value))).astype(np.float32)
        if self.floats == "float16":
            return value.astype(np.float16).astype(np.float32)
        if self.floats == "bfloat16":
            return (value.view(np.uint32) & 0xFFFF0000).view(np.float32)
        return value

    def q(self, *inputs: str, **attrs: Any) -> str:
        return self.g.add(self.names[0], *inputs, domain=self.domain, **attrs)

    def dq(self, *inputs: str, **attrs: Any) -> str:
        return self.g.add(self.names[1], *inputs, domain=self.domain, **attrs)

    def codes(self, data: str, reach: float) -> tuple[str, tuple[str, str], float]:
        """The integers of an activation in [-reach, reach], or of [0, reach] for ``zero`` 0."""
        kind, low, high = INTEGERS[self.points]
        zero = round(low + self.zero * (high - low + 1))
        share = 1 if self.zero == 0 else 2
        scale = float(self.held(share * reach / (high - low)))
        names = self.real(scale), self.store(np.array(zero), kind)
        code = self.q(data, *names)
        if self.clip is not None:
            ends = (self.store(np.array(end), kind) for end in self.clip)
            code = self.g.add("Clip", code, *ends)
        return code, names, scale

    def point(self, data: str, reach: float) -> str:
        code, names, scale = self.codes(data, reach)
        found = self.dq(code, *names)
        self.scales[found] = scale
        return found

    def tensor(self, value: Array, axis: int, along: int) -> tuple[str, Array]:
        """A dequantized weight, and its scales by channel."""
        kind, low, high = INTEGERS[self.weight]
        low += self.narrow
        others = tuple(a for a in range(value.ndim) if a != axis)
        shape = [1] * value.ndim
        if self.block:
            return self.blocks(value, along), np.ones(1)
        if not self.per_channel:
            others = tuple(range(value.ndim))
        else:
            shape[axis] = -1
        least, most = value.min(axis=others), value.max(axis=others)
        if self.zeros or low == 0:
            scale = self.held((most - least) / (high - low))
            zero = np.clip(np.rint(low - least / scale), low, high).astype(np.int64)
            if not self.zeros:
                scale = self.held(2 * np.maximum(-least, most) / (high - low))
                zero = np.full(scale.shape, (high + 1) // 2)
        else:
            scale = self.held(np.maximum(-least, most) / high)
            zero = np.zeros(scale.shape, np.int64)
        wide, moved = scale.reshape(shape or ()), zero.reshape(shape or ())
        levels = np.clip(np.rint(value / wide) + moved, low, high).astype(np.int64)
        names = self.real(scale), self.store(zero, kind)
        attrs = {"axis": axis} if self.per_channel else {}
        if self.stored:
            code = self.g.store(levels, kind)
        else:
            code = self.q(self.g.store(value, FLOATS[self.floats]), *names, **attrs)
            if self.clip is not None:
                ends = (self.store(np.array(end), kind) for end in (low, high))
                code = self.g.add("Clip", code, *ends)
        return self.dq(code, *names, **attrs), scale

    def blocks(self, value: Array, along: int) -> str:
        kind, low, high = INTEGERS[self.weight]
        axis, size = along, value.shape[along]
        count = size // self.block
        parted = value.reshape(*value.shape[:axis], count, self.block, *value.shape[axis + 1 :])
        scale = self.held(np.abs(parted).max(axis=axis + 1) / high)
        levels = np.clip(np.rint(value / scale.repeat(self.block, axis)), low, high)
        name = self.g.store(levels.astype(np.int64), kind)
        return self.dq(name, self.real(scale), axis=axis, block_size=self.block)

    def bias(self, value: Array, data: str, scale: Array) -> str:
        if not self.int_bias or data not in self.scales or not self.stored:
            return self.g.store(value, FLOATS[self.floats])
        unit = np.asarray(self.scales[data] * scale, np.float32)
        levels = np.rint(value / unit).astype(np.int64)
        attrs = {"axis": 0} if unit.ndim else {}
        names = self.g.store(levels, TensorProto.INT32), self.real(unit)
        return self.dq(*names, self.g.store(np.zeros(unit.shape), TensorProto.INT32), **attrs)

    def conv(self, data: str, weight: Array, bias: Array, op: str = "Conv", **attrs: Any) -> str:
        transposed = op == "ConvTranspose"
        wide, scale = self.tensor(weight, int(transposed), 1)
        if transposed and attrs.get("group", 1) > 1:
            scale = np.ones(1)
            return self.g.add(op, data, wide, self.g.store(bias), **attrs)
        return self.g.add(op, data, wide, self.bias(bias, data, scale), **attrs)

    def network(self, ends: bool = True) -> onnx.ModelProto:
        """The float network, quantized; ``ends``: with a point at the output."""
        w, g = weights(), self.g
        x = "x"
        if self.floats != "float32" and self.opset < 23:
            x = g.add("Cast", "x", to=FLOATS[self.floats])
        x = self.point(x, 3.5)
        a = self.conv(x, w["conv"], w["conv_b"], pads=[1] * 4)
        a = self.point(g.add("Relu", a), 6.1)
        b = self.point(self.conv(a, w["depth"], w["depth_b"], pads=[1] * 4, group=8), 6.3)
        total = self.point(g.add("Add", a, b), 9.7)
        flat = self.point(g.add("Flatten", g.add("GlobalAveragePool", total)), 4.7)
        wide, scale = self.tensor(w["dense"], 0, 1)
        y = g.add("Gemm", flat, wide, self.bias(w["dense_b"], flat, scale), transB=1)
        if ends:
            y = self.point(y, 5.2)
        if self.floats != "float32" and self.opset < 23:
            y = g.add("Cast", y, to=1)
        return g.model(y)

    def layer(self, kind: str) -> onnx.ModelProto:
        """One layer of a kind between two points."""
        rng, g = np.random.default_rng(7), self.g

        def made(*shape: int, axis: int = 0) -> Array:
            sizes = 2.0 ** rng.uniform(-3, 1, shape[axis])
            wide = sizes.reshape([-1 if a == axis else 1 for a in range(len(shape))])
            return (rng.normal(0.03, 0.3, shape) * wide).astype(np.float32)

        shape = LAYERS[kind]
        x = self.point("x", 3.5)
        if kind == "matmul":
            wide, _ = self.tensor(made(32, 12, axis=1), 1, 0)
            y = g.add("Add", g.add("MatMul", x, wide), g.store(made(12)))
        elif kind == "gemm":
            wide, scale = self.tensor(made(32, 12, axis=1), 1, 0)
            y = g.add("Gemm", x, wide, self.bias(made(12), x, scale))
        elif kind == "conv1d":
            y = self.conv(x, made(8, 3, 3), made(8), pads=[1, 1])
        elif kind == "conv3d":
            y = self.conv(x, made(6, 2, 3, 3, 3), made(6), pads=[1] * 6)
        elif kind == "transpose1d":
            y = self.conv(x, made(3, 8, 4, axis=1), made(8), "ConvTranspose", strides=[2])
        elif kind == "transpose3d":
            y = self.conv(x, made(2, 4, 2, 2, 2, axis=1), made(4), "ConvTranspose", strides=[2] * 3)
        elif kind == "transpose2d":
            y = self.conv(x, made(3, 8, 3, 3, axis=1), made(8), "ConvTranspose", strides=[2, 2])
        else:
            weight = made(4, 3, 3, 3, axis=1)
            y = self.conv(x, weight, made(6), "ConvTranspose", strides=[2, 2], group=2)
        return g.model(self.point(y, 6.7), shape)


LAYERS: Mapping[str, tuple[int, ...]] = {
    "matmul": (1, 4, 32),
    "gemm": (2, 32),
    "conv1d": (1, 3, 16),
    "conv3d": (1, 2, 4, 5, 6),
    "transpose1d": (1, 3, 8),
    "transpose2d": (1, 3, 5, 5),
    "transpose3d": (1, 2, 3, 3, 3),
    "transpose grouped": (1, 4, 5, 5),
}


def integer_ports() -> onnx.ModelProto:
    """Integers in and out, as of a deployed file."""
    s = Speller()
    w, g = weights(), s.g
    scale, zero = s.real(0.03), s.store(np.array(120), TensorProto.UINT8)
    x = s.dq("x", scale, zero)
    s.scales[x] = float(np.float32(0.03))
    a = s.point(g.add("Relu", s.conv(x, w["conv"], w["conv_b"], pads=[1] * 4)), 6)
    y, _, _ = s.codes(s.conv(a, w["depth"], w["depth_b"], pads=[1] * 4, group=8), 6.3)
    return g.model(y, SHAPE, TensorProto.UINT8, TensorProto.UINT8)


def pixels_in() -> onnx.ModelProto:
    """uint8 in, float out."""
    s = Speller(points="int8", zero=0.5)
    w, g = weights(), s.g
    x = s.dq("x", s.real(0.02), s.store(np.array(128), TensorProto.UINT8))
    a = s.point(g.add("Relu", s.conv(x, w["conv"], w["conv_b"], pads=[1] * 4)), 6)
    return g.model(a, SHAPE, TensorProto.UINT8)


def integer_products(conv: bool) -> onnx.ModelProto:
    """MatMulInteger or ConvInteger behind a QuantizeLinear with a constant scale."""
    g, rng = Graph(17), np.random.default_rng(8)
    scale, zero = g.store(np.float32(0.03)), g.store(np.uint8(117))
    code = g.add("QuantizeLinear", "x", scale, zero)
    shape: tuple[int, ...] = (8, 3, 3, 3) if conv else (16, 12)
    w = g.store(rng.integers(-127, 128, shape).astype(np.int8))
    sizes = rng.uniform(0.001, 0.01, (8, 1, 1) if conv else 12).astype(np.float32)
    if conv:
        product = g.add("ConvInteger", code, w, zero, g.store(np.int8(0)), pads=[1] * 4)
    else:
        product = g.add("MatMulInteger", code, w, zero, g.store(np.int8(0)))
    real = g.add("Cast", product, to=1)
    factors = g.add("Mul", scale, g.store(sizes))
    y = g.add("Add", g.add("Mul", real, factors), g.store(sizes * np.float32(20)))
    return g.model(g.add("Relu", y), SHAPE if conv else TOKENS)


def matmul_nbits() -> onnx.ModelProto:
    """Weights of 4 bits in blocks beside float activations."""
    g, rng = Graph(17), np.random.default_rng(9)
    w = rng.integers(0, 256, (12, 2, 8)).astype(np.uint8)
    scale = rng.uniform(0.01, 0.1, 24).astype(np.float32)
    sizes = {"N": 12, "K": 32, "block_size": 16, "bits": 4}
    y = g.add("MatMulNBits", "x", g.store(w), g.store(scale), domain=MICROSOFT, **sizes)
    return g.model(y, (2, 32))


def optimized(model: onnx.ModelProto) -> onnx.ModelProto:
    """A file as onnxruntime's optimizer fuses it: QLinearConv, QGemm, QLinearAdd, …"""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.graph_optimization_level = level
        options.optimized_model_filepath = str(Path(folder) / "o.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options)
        return onnx.load(Path(folder) / "o.onnx")


Made = Callable[[], onnx.ModelProto]
QDQ, QOP = QuantFormat.QDQ, QuantFormat.QOperator
S8, U8, S16, U16 = QuantType.QInt8, QuantType.QUInt8, QuantType.QInt16, QuantType.QUInt16
S4, U4 = QuantType.QInt4, QuantType.QUInt4


def _net(**options: Any) -> Made:
    return lambda: Speller(**options).network()


def _layer(kind: str, **options: Any) -> Made:
    return lambda: Speller(**options).layer(kind)


def _ort(network: Callable[[int], onnx.ModelProto], **options: Any) -> Made:
    return partial(by_onnxruntime, network, **options)


SPELLINGS: dict[str, Made] = {
    # written by onnxruntime.quantization
    "onnxruntime QDQ u8 s8": _ort(float_network),
    "onnxruntime QDQ s8 s8": _ort(float_network, activations=S8, ActivationSymmetric=True),
    "onnxruntime QDQ u8 s8 per channel": _ort(float_network, per_channel=True),
    "onnxruntime QDQ u8 u8": _ort(float_network, weight=U8),
    "onnxruntime QDQ u8 u8 per channel": _ort(float_network, weight=U8, per_channel=True),
    "onnxruntime QDQ s8 asymmetric weights": _ort(float_network, WeightSymmetric=False),
    "onnxruntime QDQ s16 s8": _ort(float_network, activations=S16, opset=21),
    "onnxruntime QDQ u16 s8": _ort(float_network, activations=U16, opset=21, per_channel=True),
    "onnxruntime QDQ u16 u8": _ort(float_network, activations=U16, weight=U8, opset=21),
    "onnxruntime QDQ com.microsoft u8 s8": _ort(float_network, UseQDQContribOps=True),
    "onnxruntime QDQ com.microsoft u16 s8": _ort(float_network, activations=U16),
    "onnxruntime QDQ s4 weights": _ort(float_network, weight=S4, opset=21),
    "onnxruntime QDQ u4 weights": _ort(float_network, weight=U4, opset=21),
    "onnxruntime QDQ weights quantized by nodes": _ort(float_network, AddQDQPairToWeight=True),
    "onnxruntime QDQ dedicated pairs": _ort(float_network, DedicatedQDQPair=True),
    "onnxruntime QDQ opset 13": _ort(float_network, opset=13, per_channel=True),
    "onnxruntime QDQ attention": _ort(attention_network),
    "onnxruntime QDQ attention per channel": _ort(attention_network, per_channel=True),
    "onnxruntime QDQ elementwise": _ort(elementwise_network),
    "onnxruntime QOperator u8 s8": _ort(float_network, form=QOP),
    "onnxruntime QOperator s8 s8": _ort(float_network, form=QOP, activations=S8),
    "onnxruntime QOperator u8 u8": _ort(float_network, form=QOP, weight=U8),
    "onnxruntime QOperator per channel": _ort(float_network, form=QOP, per_channel=True),
    "onnxruntime QOperator attention": _ort(attention_network, form=QOP),
    "onnxruntime QOperator elementwise": _ort(elementwise_network, form=QOP),
    "onnxruntime optimized QDQ": lambda: optimized(by_onnxruntime(float_network)),
    "onnxruntime optimized attention": lambda: optimized(by_onnxruntime(attention_network)),
    "onnxruntime optimized elementwise": lambda: optimized(by_onnxruntime(elementwise_network)),
    # as Brevitas writes
    "Brevitas QCDQ": _net(points="int8", clip=(-127, 127), narrow=True, constants=True),
    "Brevitas QCDQ unsigned 6 bits": _net(zero=0.0, clip=(0, 63), constants=True, narrow=True),
    "Brevitas QCDQ of weights": _net(
        points="int8", clip=(-127, 127), stored=False, constants=True, narrow=True
    ),
    # as torch.onnx writes fake_quantize
    "torch fake_quantize": _net(points="uint8", stored=False, constants=True),
    "torch fake_quantize 7 bits": _net(clip=(64, 191), stored=False, constants=True, opset=13),
    "torch per tensor": _net(points="int8", stored=False, per_channel=False, int_bias=False),
    # as NNCF writes
    "NNCF u8 s8": _net(stored=False, int_bias=False, opset=13),
    "NNCF s8 s8, narrow": _net(points="int8", stored=False, narrow=True, int_bias=False),
    # as Quark writes
    "Quark powers of two": _net(points="int8", power_of_2=True),
    "Quark extended": _net(
        points="int16",
        weight="int16",
        domain="com.amd.quark",
        names=("ExtendedQuantizeLinear", "ExtendedDequantizeLinear"),
    ),
    "Quark com.microsoft s16": _net(points="int16", domain=MICROSOFT, weight="int16"),
    # as ModelOpt writes
    "ModelOpt int8": _net(points="int8", stored=False, int_bias=False, opset=19),
    "ModelOpt float16": _net(points="int8", floats="float16", int_bias=False, opset=19),
    "ModelOpt int4 blocks": lambda: Speller(
        points="int8", weight="int4", block=8, opset=21, int_bias=False
    ).layer("matmul"),
    # grids of every kind
    "opset 10": _net(opset=10, per_channel=False),
    "opset 25": _net(opset=25),
    "uint8 zero points by channel": _net(weight="uint8", zeros=True),
    "int8 zero points by channel": _net(zeros=True),
    "uint8 weights per tensor": _net(weight="uint8", zeros=True, per_channel=False),
    "int16 points and weights": _net(points="int16", weight="int16", opset=21),
    "uint16 points": _net(points="uint16", zero=0.3, opset=21),
    "uint16 from 0": _net(points="uint16", zero=0.0, opset=21),
    "int16 zero point": _net(points="int16", zero=0.4, opset=21),
    "int4 weights": _net(weight="int4", opset=21),
    "uint4 zero points by channel": _net(weight="uint4", zeros=True, opset=21),
    "int2 weights": _net(weight="int2", opset=25),
    "uint4 points": _net(points="uint4", zero=0.25, opset=21),
    "int4 points": _net(points="int4", opset=21),
    "bfloat16 scales": _net(floats="bfloat16", opset=23),
    "float16 scales beside float32": _net(floats="float16", opset=23),
    "float at the end": lambda: Speller().network(ends=False),
    **{f"{kind} per channel": _layer(kind) for kind in LAYERS},
    **{f"{kind} per tensor": _layer(kind, per_channel=False) for kind in LAYERS},
    **{f"{kind} uint8": _layer(kind, weight="uint8", zeros=True) for kind in LAYERS},
    "matmul blocks int8": _layer("matmul", block=8, opset=21),
    "matmul u16 points": _layer("matmul", points="uint16", opset=21),
    "com.microsoft MatMulNBits": matmul_nbits,
    "MatMulInteger, static": partial(integer_products, False),
    "ConvInteger, static": partial(integer_products, True),
    "uint8 in and out": integer_ports,
    "uint8 in, float out": pixels_in,
}


def in_double(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every float in double precision, so that sums and ties are those of ONNX's
    definition."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    narrow, double = (1, TensorProto.FLOAT16, TensorProto.BFLOAT16), TensorProto.DOUBLE

    def widen(tensor: onnx.TensorProto) -> None:
        if tensor.data_type in narrow:
            held = numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(numpy_helper.from_array(held, tensor.name))

    for tensor in made.graph.initializer:
        widen(tensor)
    for node in made.graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                widen(attribute.t)
            if attribute.name in ("to", "output_dtype") and attribute.i in narrow:
                attribute.i = double
    for entry in made.opset_import:  # onnx evaluates DequantizeLinear from 19 on
        entry.version = max(entry.version, 21) if entry.domain == "" else entry.version
    for info in (*made.graph.input, *made.graph.output):
        if info.type.tensor_type.elem_type in narrow:
            info.type.tensor_type.elem_type = double
    return made


def exactly(model: onnx.ModelProto, feeds: dict[str, Array], saturates: bool = False) -> Array:
    """Output 0 by ONNX's definition in double precision; by onnxruntime without optimizations
    where onnx's evaluator has not all operators, or fails at groups."""
    grouped = any(
        node.op_type == "ConvTranspose" and len(node.attribute) > 1 for node in model.graph.node
    )
    if not (grouped or any(node.domain for node in model.graph.node)):
        wide = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in feeds.items()}
        return np.asarray(ReferenceEvaluator(in_double(model)).run(None, wide)[0])
    options = exact_products() if saturates else unoptimized()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return np.asarray(session.run(None, feeds)[0])


TWINS: dict[str, str] = {
    "onnxruntime optimized QDQ": "onnxruntime QDQ u8 s8",
    "onnxruntime optimized attention": "onnxruntime QDQ attention",
    "onnxruntime optimized elementwise": "onnxruntime QDQ elementwise",
    "Quark extended": "int16 points and weights",
}
"""Files of the same function that ONNX defines: kernels of onnxruntime's own operators round as
they please, and operators of Quark are in a library of its own."""


def wanted(name: str, feeds: Sequence[dict[str, Array]]) -> Array:
    """The exact outputs of the file of a spelling, sample by sample."""
    model = SPELLINGS[TWINS.get(name, name)]()
    saturates = name in ("onnxruntime QOperator per channel", "onnxruntime QOperator attention")
    return np.concatenate([exactly(model, feed, saturates) for feed in feeds])


def feeds_of(model: onnx.ModelProto, count: int, seed: int) -> list[dict[str, Array]]:
    """Random inputs of the kind that a file of one input takes."""
    kind = model.graph.input[0].type.tensor_type
    shape = [dim.dim_value for dim in kind.shape.dim]
    if kind.elem_type == TensorProto.FLOAT:
        return samples(shape, count, seed)
    rng = np.random.default_rng(seed)
    return [{"x": rng.integers(0, 256, shape).astype(np.uint8)} for _ in range(count)]
