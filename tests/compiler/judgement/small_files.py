"""Small int8 files, each with one thing that the judgement has to find."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

node = helper.make_node


def packed(
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str],
    constants: dict[str, Any],
    *,
    dtype: int = TensorProto.FLOAT,
    opset: int = 17,
    out: int = TensorProto.FLOAT,
) -> bytes:
    """A model from x to y."""
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", dtype, shape)],
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def dense(
    weights: NDArray[np.int8],
    bias: NDArray[Any] | None = None,
    *,
    scales: tuple[float, float, float] = (0.05, 0.01, 0.1),
    zeros: tuple[int, int] = (128, 128),
    dtype: type = np.uint8,
    conv: bool = False,
) -> bytes:
    """x → Q → DQ → Gemm or Conv of int8 weights → Q → DQ → y, as quantize_static writes it."""
    sx, sw, sy = map(np.float32, scales)
    constants: dict[str, Any] = {"sx": sx, "sw": sw, "sy": sy, "w": weights, "zw": np.int8(0)}
    constants |= {"zx": dtype(zeros[0]), "zy": dtype(zeros[1])}
    nodes = [
        node("QuantizeLinear", ["x", "sx", "zx"], ["q"], name="enter"),
        node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["v"]),
    ]
    inputs = ["d", "v"]
    if bias is not None:
        constants["b"] = bias
        inputs.append("c" if bias.dtype == np.int32 else "b")
        if bias.dtype == np.int32:
            constants |= {"sb": sx * sw, "zb": np.int32(0)}
            nodes.append(node("DequantizeLinear", ["b", "sb", "zb"], ["c"]))
    op, shape = ("Conv", [1, weights.shape[1], 4, 4]) if conv else ("Gemm", [1, len(weights)])
    nodes += [
        node(op, inputs, ["f"], name="layer"),
        node("QuantizeLinear", ["f", "sy", "zy"], ["p"], name="leave"),
        node("DequantizeLinear", ["p", "sy", "zy"], ["y"]),
    ]
    return packed(nodes, shape, constants)


def softmax(scale: float, zero: int = -128) -> bytes:
    """x → Q → DQ → Softmax → Q → DQ → y with int8."""
    constants = {"s": np.float32(0.25), "z": np.int8(0)}
    constants |= {"sy": np.float32(scale), "zy": np.int8(zero)}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        node("Softmax", ["d"], ["f"], name="softmax", axis=-1),
        node("QuantizeLinear", ["f", "sy", "zy"], ["p"]),
        node("DequantizeLinear", ["p", "sy", "zy"], ["y"]),
    ]
    return packed(nodes, [1, 4], constants)


def random_weights(rows: int, columns: int, largest: int, seed: int = 0) -> NDArray[np.int8]:
    """Weights of a Gemm with transB=0."""
    rng = np.random.default_rng(seed)
    return rng.integers(-largest, largest + 1, (rows, columns)).astype(np.int8)
