"""Small networks as ONNX files hold them: the engine gives the bits of the reference and the grid.

``QSEARCH_RANDOM_GRAPHS`` sets how many networks are drawn.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from compiler.errors import QuantizeError
from compiler.frontend.from_onnx.load import load
from compiler.quantize import channel_stats, layer_names, prerequisite_optimize
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.emitted import random_qconfig
from tests.compiler.quantize.candidates import calibrated
from tests.needs import NEEDS_C

pytestmark = NEEDS_C

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
COUNT = int(os.environ.get("QSEARCH_RANDOM_GRAPHS", "4"))


class Network:
    """An ONNX graph that grows by blocks; images of shape (1, C, H, W) until ``head``."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.inputs: dict[str, Shape] = {}
        self.outputs: list[str] = []

    def add(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> str:
        names = [f"v{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attrs))
        return names[0]

    def weight(self, *shape: int, low: float = -1.0, high: float = 1.0) -> str:
        size = np.sqrt(max(np.prod(shape[1:]), 1))
        return self.constant((self.rng.uniform(low, high, shape) / size).astype(np.float32), "w")

    def constant(self, array: Array, kind: str = "c") -> str:
        name = f"{kind}{len(self.weights)}"
        self.weights[name] = array
        return name

    def given(self, *shape: int) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = shape
        return name

    def conv(self, x: str, inner: int, outer: int, kernel: int = 3, **attrs: Any) -> str:
        groups = attrs.get("group", 1)
        weight = self.weight(outer, inner // groups, kernel, kernel)
        reach = attrs.get("dilations", [1])[0] * (kernel - 1) // 2
        attrs = {"pads": [reach] * 4, "kernel_shape": [kernel] * 2} | attrs
        return self.add("Conv", x, weight, self.weight(outer), **attrs)

    def activation(self, x: str) -> str:
        kind = str(self.rng.choice(["Relu", "HardSwish", "Clip", "LeakyRelu", "Sigmoid", "Gelu"]))
        if kind == "Clip":
            return self.add("Clip", x, *(self.constant(np.array(v, "f4"), "w") for v in (0, 6)))
        return self.add(kind, x)

    # Blocks take and give ``c`` channels.

    def residual(self, x: str, c: int) -> str:
        inner = self.activation(self.conv(x, c, c))
        return self.add("Relu", self.add("Add", self.conv(inner, c, c, 1), x))

    def concat(self, x: str, c: int) -> str:
        halves = [self.conv(x, c, c // 2, kernel) for kernel in (1, 3)]
        return self.activation(self.add("Concat", *halves, axis=1))

    def grouped(self, x: str, c: int) -> str:
        made = self.activation(self.conv(x, c, c, group=2))
        return self.conv(made, c, c, 5, group=c)

    def dilated(self, x: str, c: int) -> str:
        return self.activation(self.conv(x, c, c, dilations=[2, 2]))

    def transposed(self, x: str, c: int) -> str:
        made = self.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        weight = self.weight(c, c, 2, 2)
        return self.activation(self.add("ConvTranspose", made, weight, strides=[2, 2]))

    def excited(self, x: str, c: int) -> str:
        mean = self.add("GlobalAveragePool", x)
        gate = self.conv(self.add("Relu", self.conv(mean, c, 4, 1)), 4, c, 1)
        return self.add("Mul", x, self.add("HardSigmoid", gate))

    def attention(self, x: str, c: int) -> str:
        size = 64
        flat = self.add("Reshape", x, self.constant(np.array([1, c, size], np.int64)))
        rows = self.add("Transpose", flat, perm=[0, 2, 1])
        q, k, v = (self.add("MatMul", rows, self.weight(c, c)) for _ in range(3))
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 2, 1]))
        mixed = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        normal = self.add(
            "LayerNormalization", self.add("Add", mixed, rows), self.weight(c, low=0.5), axis=-1
        )
        back = self.add("Transpose", normal, perm=[0, 2, 1])
        return self.add("Reshape", back, self.constant(np.array([1, c, 8, 8], np.int64)))

    def shuffled(self, x: str, c: int) -> str:
        made = self.add("Reshape", x, self.constant(np.array([1, 2, c // 2, 8, 8], np.int64)))
        made = self.add("Transpose", made, perm=[0, 2, 1, 3, 4])
        return self.conv(
            self.add("Reshape", made, self.constant(np.array([1, c, 8, 8], np.int64))), c, c, 1
        )

    def padded(self, x: str, c: int) -> str:
        mode = str(self.rng.choice(["constant", "reflect", "edge"]))
        widths = self.constant(np.array([0, 0, 1, 0, 0, 0, 1, 2], np.int64))
        made = self.add("Pad", x, widths, mode=mode)
        starts, ends = (self.constant(np.array(v, np.int64)) for v in ([1, 0], [9, 8]))
        made = self.add("Slice", made, starts, ends, self.constant(np.array([2, 3], np.int64)))
        return self.activation(self.conv(made, c, c))

    def resized(self, x: str, c: int) -> str:
        made = self.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
        scales = self.constant(np.array([1, 1, 2, 2], np.float32))
        return self.conv(self.add("Resize", made, "", scales, mode="nearest"), c, c)

    def split(self, x: str, c: int) -> str:
        first = self.add("Split", x, outputs=2, axis=1, num_outputs=2)
        sides = [first, first[:-1] + "1"]
        made = self.add("Concat", self.activation(sides[0]), sides[1], axis=1)
        return self.add("Mul", made, self.weight(c, 1, 1))

    def joined(self, x: str, c: int) -> str:
        other = self.conv(self.given(1, 3, 8, 8), 3, c)
        return self.add(str(self.rng.choice(["Add", "Mul", "Max", "Sub"])), x, other)

    def side(self, x: str, c: int) -> str:
        self.outputs.append(self.add("ReduceMean", self.conv(x, c, 3, 1), keepdims=0))
        return x

    def model(self, blocks: int) -> onnx.ModelProto:
        c = int(self.rng.choice([8, 12, 16]))
        x = self.activation(self.conv(self.given(1, 3, 8, 8), 3, c))
        makers = (
            self.residual, self.concat, self.grouped, self.dilated, self.transposed, self.excited,
            self.attention, self.shuffled, self.padded, self.resized, self.split, self.joined,
            self.side,
        )  # fmt: skip
        for number in self.rng.integers(0, len(makers), blocks):
            x = makers[number](x, c)
        flat = self.add("Flatten", self.add("GlobalAveragePool", x))
        self.outputs.append(self.add("Gemm", flat, self.weight(5, c), self.weight(5), transB=1))
        half = self.rng.random() < 0.25
        kind = TensorProto.FLOAT16 if half else TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info(n, kind, s) for n, s in self.inputs.items()],
            [helper.make_empty_tensor_value_info(n) for n in self.outputs],
            [
                numpy_helper.from_array(a.astype(np.float16) if half and n[0] == "w" else a, n)
                for n, a in self.weights.items()
            ],
        )
        opsets = [helper.make_opsetid("", 20)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(made)


@pytest.mark.parametrize("seed", range(COUNT))
def test_random_networks_keep_their_bits(seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = Network(rng).model(int(rng.integers(1, 6)))
    mod, params = load(model.SerializeToString())
    mod = prerequisite_optimize(mod, params, 3, simplify=True)
    types = {p.name_hint: p.tensor_type for p in mod["main"].params}

    def batch(reach: float) -> dict[str, Array]:
        return {
            n: (reach * rng.normal(size=t.concrete_shape)).astype(t.dtype) for n, t in types.items()
        }

    calib = [batch(1) for _ in range(3)]
    channels = channel_stats(mod, calib, sample=True)
    for _ in range(20):
        config = random_qconfig(rng, layer_names(mod))
        try:
            module = calibrated(mod, config, calib, channels).partitioned
            break
        except QuantizeError:
            continue
    else:
        raise AssertionError("none of 20 configurations could be built")
    assert module is not None
    reference = ReferenceExecutor(module)
    others = [IntegerExecutor(module)]
    others += [EngineExecutor(module, isa=isa) for isa in available_isas()]
    for inputs in (*calib, batch(1), batch(30)):
        wanted = reference.run(inputs)
        for other in others:
            name = getattr(other, "isa", type(other).__name__)
            for left, right in zip(wanted, other.run(inputs), strict=True):
                np.testing.assert_array_equal(left, right, err_msg=f"{name}, {config}")
