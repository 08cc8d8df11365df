"""Operators that onnxruntime's optimizer writes, against onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler.errors import OnnxImportError
from tests.compiler.frontend.from_onnx.test_load import assert_same_as_onnxruntime, imported
from tests.e2e.test_zoo import FILES
from tests.each import each

Arrays = dict[str, np.ndarray[Any, Any]]


def drawn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def fused(
    op: str, inputs: str, feeds: Arrays, held: Arrays, outputs: str = "y", **attrs: Any
) -> onnx.ModelProto:
    """One operator; ``-`` stands for an input or output that is left out."""
    names = [name.replace("-", "") for name in inputs.split()]
    results = [name.replace("-", "") for name in outputs.split()]
    typed = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in feeds.items()}
    graph = helper.make_graph(
        [helper.make_node(op, names, results, name="one", domain="com.microsoft", **attrs)],
        "g",
        [
            helper.make_tensor_value_info(name, kind, feeds[name].shape)
            for name, kind in typed.items()
        ],
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT32 if name == "count" else TensorProto.FLOAT, None
            )
            for name in filter(None, results)
        ],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    made = helper.make_model(graph, opset_imports=opsets)
    made.ir_version = 8
    return made


def assert_same(op: str, inputs: str, feeds: Arrays, held: Arrays, **attrs: Any) -> None:
    assert_same_as_onnxruntime(fused(op, inputs, feeds, held, **attrs), feeds)


@pytest.mark.parametrize(
    "activation",
    [
        {"activation": "Relu"},
        {"activation": "Tanh"},
        {"activation": "LeakyRelu", "activation_params": [0.2]},
        {"activation": "Clip", "activation_params": [-0.5, 1.5]},
        {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]},
    ],
)
def test_a_convolution_with_addend_and_activation(activation: dict[str, Any]) -> None:
    feeds = {"x": drawn(1, 3, 6, 5), "z": drawn(1, 4, 6, 5, seed=3)}
    held = {"w": drawn(4, 3, 3, 3, seed=1), "b": drawn(4, seed=2)}
    assert_same("FusedConv", "x w b z", feeds, held, pads=[1, 1, 1, 1], **activation)


def test_a_gemm_with_an_activation() -> None:
    held = {"w": drawn(5, 4, seed=1), "b": drawn(5, seed=2)}
    assert_same(
        "FusedGemm",
        "x w b",
        {"x": drawn(3, 4)},
        held,
        transB=1,
        alpha=0.5,
        activation="LeakyRelu",
        activation_alpha=0.3,
    )


def test_a_gemm_with_an_activation_and_a_computed_constant_as_weight() -> None:
    proto = fused("FusedGemm", "x v b", {"x": drawn(3, 80)}, {"b": drawn(64)}, activation="Relu")
    proto.graph.node.insert(0, helper.make_node("Identity", ["w"], ["v"]))
    proto.graph.initializer.append(numpy_helper.from_array(drawn(80, 64, seed=1), "w"))
    assert_same_as_onnxruntime(proto, {"x": drawn(3, 80)})


@pytest.mark.parametrize("trans", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("batches", [(0, 0), (1, 0), (1, 1)])
def test_a_product_of_transposed_operands(trans: tuple[int, int], batches: tuple[int, int]) -> None:
    def operand(rows: int, columns: int, turned: int, batched: int, seed: int) -> Any:
        shape = (columns, rows) if turned else (rows, columns)
        return drawn(*((shape[0], 2, shape[1]) if batched else (2, *shape)), seed=seed)

    feeds = {
        "a": operand(3, 4, trans[0], batches[0], 0),
        "b": operand(4, 5, trans[1], batches[1], 1),
    }
    flags = {"transA": trans[0], "transB": trans[1]}
    flags |= {"transBatchA": batches[0], "transBatchB": batches[1]}
    assert_same("FusedMatMul", "a b", feeds, {}, alpha=0.25, **flags)


@pytest.mark.parametrize("transposed", [0, 1])
def test_a_product_with_a_constant(transposed: int) -> None:
    held = {"b": drawn(*((5, 4) if transposed else (4, 5)), seed=1)}
    attrs = {"alpha": 0.25, "transB": transposed}
    assert_same("FusedMatMul", "a b", {"a": drawn(2, 3, 4)}, held, **attrs)


@pytest.mark.parametrize("op", ["QuickGelu", "BiasGelu", "FastGelu"])
def test_gelus(op: str) -> None:
    held = {} if op == "QuickGelu" else {"b": drawn(6, seed=1)}
    assert_same(op, " ".join(["x", *held]), {"x": drawn(2, 3, 6)}, held)


@pytest.mark.parametrize("biased", [True, False])
def test_norms_of_sums(biased: bool) -> None:
    feeds = {"x": drawn(2, 3, 8), "s": drawn(2, 3, 8, seed=1)}
    held = {"g": drawn(8, seed=2), "c": drawn(8, seed=3)}
    more = {"b": drawn(8, seed=4)} if biased else {}
    for op, inputs in {
        "SkipLayerNormalization": "x s g c",
        "SkipSimplifiedLayerNormalization": "x s g",
    }.items():
        kept = {name: held[name] for name in inputs.split()[2:]}
        inputs = " ".join([inputs, *more])
        assert_same(op, inputs, feeds, kept | more, outputs="y - - sum", epsilon=1e-5)


def test_embeddings() -> None:
    rng = np.random.default_rng(0)
    feeds = {
        "tokens": rng.integers(0, 20, (2, 5)).astype(np.int32),
        "kinds": rng.integers(0, 2, (2, 5)).astype(np.int32),
        "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32),
    }
    held = {"words": drawn(20, 8), "places": drawn(9, 8, seed=1), "segments": drawn(2, 8, seed=2)}
    held |= {"g": drawn(8, seed=3), "b": drawn(8, seed=4)}
    inputs = "tokens kinds words places segments g b mask"
    assert_same("EmbedLayerNormalization", inputs, feeds, held, outputs="y count")


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", ["none", "tokens", "pairs"])
def test_attention(causal: int, mask: str) -> None:
    feeds: Arrays = {"x": drawn(2, 5, 8)}
    held = {"w": drawn(8, 24, seed=1), "b": drawn(24, seed=2)}
    names = "x w b"
    if mask != "none":
        feeds["m"] = np.ones((2, 5) if mask == "tokens" else (2, 5, 5), np.int32)
        feeds["m"][0, ..., 3:] = 0
        names += " m"
    assert_same("Attention", names, feeds, held, num_heads=2, unidirectional=causal)


def test_attention_of_three_streams() -> None:
    feeds = {"q": drawn(2, 5, 8), "k": drawn(2, 4, 8, seed=1), "v": drawn(2, 4, 8, seed=2)}
    feeds["m"] = np.array([[1, 1, 0, 0], [1, 1, 1, 1]], np.int32)
    feeds["r"] = drawn(2, 2, 5, 4, seed=3)
    held = {"b": drawn(24, seed=4)}
    assert_same("MultiHeadAttention", "q k v b m r", feeds, held, num_heads=2)


@pytest.mark.parametrize(
    ("op", "inputs", "shapes", "attrs", "words"),
    [
        ("FusedConv", "x w", [(1, 3, 6, 6), (4, 3, 3, 3)], {"activation": "Cube"}, "'Cube' is not"),
        ("Attention", "x w - m", [(1, 5, 8), (8, 24), (1,)], {"num_heads": 2}, r"a mask of shape"),
        ("MultiHeadAttention", "q", [(1, 5, 2, 3, 4)], {"num_heads": 2}, "packed queries"),
    ],
)
def test_what_is_not_read_is_named(
    op: str, inputs: str, shapes: list[tuple[int, ...]], attrs: dict[str, Any], words: str
) -> None:
    names = inputs.replace("-", "").split()
    feeds = {name: drawn(*shape) for name, shape in zip(names, shapes, strict=True)}
    with pytest.raises(OnnxImportError, match=f"{op}: .*{words}"):
        imported(fused(op, inputs, feeds, {}, **attrs))


@pytest.mark.slow
def test_an_optimized_model_is_quantized_as_its_original(tmp_path: Path) -> None:
    source, options = FILES / "bert_like.onnx", ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    with np.load(source.with_suffix(".npz")) as data:
        samples = {name: data[f"calib.{name}"] for name in ("ids", "mask")}
    made = qsearch.quantize(tmp_path / "optimized.onnx", samples)
    first = {name: array[:1] for name, array in samples.items()}
    wanted = ort.InferenceSession(str(source), providers=["CPUExecutionProvider"]).run(None, first)
    for a, b in each(zip(made.run(first), wanted, strict=True)):
        assert np.square(a - b).sum() < np.square(b).sum() / 1000
