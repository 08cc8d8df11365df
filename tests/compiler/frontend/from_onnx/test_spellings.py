"""Files in which other tools hold integers are read as given, whatever their spelling."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qsearch
from compiler import evaluate
from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.load import load
from compiler.quantize import given_note, prerequisite_optimize
from qsearch.errors import SettingsError
from tests.compiler.frontend.from_onnx.spellings import SPELLINGS, Graph, exactly, feeds_of, wanted

EQUAL_DB = 60.0
FEW, ONE_STEP_DB = 0.015, 45.0
"""Outputs that may be one step away."""
TOOL_FILES = sorted(Path(__file__).with_name("tool_files").glob("*.onnx"))
FLOAT_PARTS_DB = {"nncf": 36.0, "modelopt": 36.0, "quark": 40.0}
"""For tools that leave operators in float between points: their 8 bits are ours."""
KEPT = (
    *("nncf.attention.mixed", "nncf.gated.performance", "nncf.sequence.mixed"),
    *("nncf.silu.performance", "modelopt.attention.int8", "modelopt.attention.float16"),
    *("modelopt.relu6.int8", "modelopt.silu.int8", "quark.gated.s8", "quark.sequence.s16"),
)
WEIGHTS_ONLY = ("com.microsoft MatMulNBits",)


def decibels(found: np.ndarray, exact: np.ndarray) -> float:
    error = np.square(found.astype(np.float64) - exact).sum()
    power = np.square(exact.astype(np.float64)).sum()
    return float(10 * np.log10(power / error)) if error else 200.0


@pytest.mark.parametrize("name", [name for name in SPELLINGS if name not in WEIGHTS_ONLY])
def test_a_quantized_file_becomes_a_module_of_the_same_integers(name: str) -> None:
    model = SPELLINGS[name]()
    feeds = feeds_of(model, 8, seed=9)
    module = qsearch.quantize(model, feeds_of(model, 4, seed=5)).module
    found = np.concatenate([evaluate(module, feed)[0] for feed in feeds])
    exact = wanted(name, feeds)
    assert found.shape == exact.shape
    # A sum next to a half may go to the other side: by a bias in float, or a table's own rounding.
    differ = np.mean(np.abs(found.astype(np.float64) - exact) > 1e-4)
    assert decibels(found, exact) >= (EQUAL_DB if differ > FEW else ONE_STEP_DB)


@pytest.mark.parametrize("file", TOOL_FILES, ids=lambda file: file.stem)
def test_a_file_that_a_tool_wrote_becomes_a_module_close_to_it(file: Path) -> None:
    # onnxruntime has no operator of QONNX: Brevitas wrote the same network as QCDQ, too.
    model, plain = onnx.load(file), onnx.load(file.with_name(file.name.replace(".qonnx", "")))
    data = [feed["x"] for feed in feeds_of(model, 16, seed=1)]
    feeds = [{model.graph.input[0].name: x} for x in data]
    module = qsearch.quantize(model, feeds).module
    found = np.concatenate([evaluate(module, feed)[0] for feed in feeds[:6]])
    name = plain.graph.input[0].name
    exact = np.concatenate([exactly(plain, {name: x}) for x in data[:6]])
    assert decibels(found, exact) >= FLOAT_PARTS_DB.get(file.name.partition(".")[0], EQUAL_DB)


@pytest.mark.parametrize("stem", KEPT)
def test_what_a_file_leaves_in_float_can_stay_so(stem: str) -> None:
    model = onnx.load(Path(__file__).with_name("tool_files") / f"{stem}.onnx")
    feeds = feeds_of(model, 16, seed=1)
    module = qsearch.quantize(model, feeds, keep_float_parts=True)
    found = np.concatenate([evaluate(module.module, feed)[0] for feed in feeds[:6]])
    exact = np.concatenate([exactly(model, feed) for feed in feeds[:6]])
    assert decibels(found, exact) >= EQUAL_DB
    assert "int8" in str(module.module)


def test_a_model_without_points_has_no_float_parts_to_keep() -> None:
    with pytest.raises(SettingsError, match="quantization points of its own, and this one has"):
        qsearch.quantize("digits", keep_float_parts=True)


def test_a_product_of_16_bits_with_a_zero_point_and_4_bits_is_read() -> None:
    graph = Graph(opset=21)

    def point(data: str, scale: float, zero: int, kind: int) -> str:
        grid = graph.store(np.float32(scale)), graph.store(zero, kind)
        return graph.add("DequantizeLinear", graph.add("QuantizeLinear", data, *grid), *grid)

    wide = point("x", 3e-5, 29653, onnx.TensorProto.UINT16)
    narrow = point(graph.add("Relu", "x"), 0.3, 0, onnx.TensorProto.INT4)
    model = graph.model(graph.add("MatMul", wide, narrow))
    feeds = feeds_of(model, 8, seed=5)
    module = qsearch.quantize(model, feeds).module
    found = np.concatenate([evaluate(module, feed)[0] for feed in feeds])
    exact = np.concatenate([exactly(model, feed) for feed in feeds])
    assert decibels(found, exact) >= EQUAL_DB


def test_a_point_that_rounds_otherwise_is_refused_by_name() -> None:
    file = next(file for file in TOOL_FILES if file.stem.endswith("int8.qonnx"))
    model = onnx.load(file)
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "rounding_mode":
                attribute.s = b"FLOOR"
    with pytest.raises(OnnxImportError, match="FLOOR to 8 bits is not read"):
        load(model.SerializeToString())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("onnxruntime QDQ u8 u8 per channel", "scales of its weights are kept;"),
        ("int8 zero points by channel", "scales of its weights are kept;"),
        ("onnxruntime QOperator u8 s8", "its 6 quantize points"),
        ("matmul blocks int8", "except the weights of '/matmul_3' (16 bits): the file has them in"),
        ("int16 points and weights", "'/conv_4' (12 bits)"),
        ("com.microsoft MatMulNBits", "except the weights of '/matmulnbits_0' (8 bits)"),
    ],
)
def test_the_note_names_the_weights_that_are_rounded_again(name: str, said: str) -> None:
    mod, params = load(SPELLINGS[name]().SerializeToString())
    assert said in given_note(prerequisite_optimize(mod, params, 3, simplify=True))
