"""BatchNormalization in training mode: the statistics of the batch, in every spelling of it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qsearch
from compiler.frontend.from_onnx.convert.normalization import trains
from compiler.frontend.from_onnx.load import load
from tests.compiler.frontend.ort_oracle import disagreement

RNG = np.random.default_rng(0)


def model(path: Path, opset: int, outputs: list[str], **attributes: int) -> Path:
    stored = [numpy_helper.from_array(RNG.uniform(0.5, 2, 3).astype("f"), name) for name in "sbmv"]
    node = helper.make_node(
        "BatchNormalization", ["x", "s", "b", "m", "v"], outputs, name="norm", **attributes
    )
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 4, 4])
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 3, 4, 4])
    graph = helper.make_graph([node], "g", [value], [result], stored)
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=7), path)
    return path


@pytest.mark.parametrize("opset", [7, 9, 13])
@pytest.mark.parametrize("outputs", [["y"], ["y", "m1", "v1", "sm", "sv"]])
def test_further_outputs_before_opset_14_are_training_mode(
    tmp_path: Path, opset: int, outputs: list[str]
) -> None:
    path = model(tmp_path / "m.onnx", opset, outputs)
    assert not disagreement(path, *load(path))


def test_further_outputs_without_names_are_none(tmp_path: Path) -> None:
    blank = ["y", "", "", "", ""]  # onnxruntime 1.32 ends its process on it
    assert not trains(onnx.load(model(tmp_path / "m.onnx", 7, blank)).graph.node[0], 7)


@pytest.mark.parametrize(("opset", "outputs"), [(9, ["y", "m1", "v1", "sm", "sv"]), (15, ["y"])])
def test_a_model_in_training_mode_is_said_with_its_cure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, opset: int, outputs: list[str]
) -> None:
    mode = {"training_mode": 1} if opset >= 14 else {}
    path = model(tmp_path / "m.onnx", opset, outputs, **mode)
    with caplog.at_level(logging.WARNING):
        qsearch.quantize(path, RNG.normal(size=(4, 3, 4, 4)).astype("f"))
    assert "training mode" in caplog.text
    assert "model.eval()" in caplog.text
