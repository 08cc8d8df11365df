"""Files that qsearch exports come back as the integers that they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import qsearch
import qsearch.models
from compiler import evaluate
from compiler.errors import OnnxImportError
from compiler.runtime.artifact import QModule
from tests.compiler.frontend.from_onnx.test_spellings import EQUAL_DB, decibels

DIGITS = Path(qsearch.models.__file__).parent


def pixels(split: str, count: int) -> np.ndarray[Any, Any]:
    with np.load(DIGITS / f"digits_{split}.npz") as file:
        return np.asarray(file["input"][:count, None], np.float32)


@pytest.fixture(scope="module")
def modules() -> dict[str, QModule]:
    calib = [{"input": image} for image in pixels("calib", 16)]
    asked = {"8 bits": "auto,for=qdq", "4 bits": "auto,for=qdq,nbit_weight=4"}
    model = DIGITS / "digits_cnn.onnx"
    return {name: qsearch.quantize(model, calib, config) for name, config in asked.items()}


def written(module: QModule, folder: Path, form: str, **options: Any) -> Path:
    module.save(folder / "m.qmod")
    return qsearch.export(folder / "m.qmod", form, folder / "e.onnx", **options).files[0]


@pytest.mark.parametrize(
    ("which", "options"),
    [
        ("8 bits", {"opset": 17}),
        ("8 bits", {"opset": 25}),
        ("8 bits", {"reduce_range": True}),
        ("4 bits", {"opset": 21}),
        ("4 bits", {"opset": 17}),
    ],
    ids=str,
)
def test_a_qdq_export_given_to_compile_is_the_same_integers(
    modules: dict[str, QModule], which: str, options: dict[str, Any], tmp_path: Path
) -> None:
    path = written(modules[which], tmp_path, "qdq", **options)
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, plain)
    again = qsearch.quantize(path, [{"input": image} for image in pixels("calib", 16)])
    feeds = [{"input": image} for image in pixels("dev", 32)]
    found = np.concatenate([evaluate(again.module, feed)[0] for feed in feeds])
    wanted = np.concatenate([session.run(None, feed)[0] for feed in feeds])
    assert decibels(found, wanted) >= EQUAL_DB


def test_an_exact_export_is_refused_by_name(modules: dict[str, QModule], tmp_path: Path) -> None:
    path = written(modules["8 bits"], tmp_path, "onnx")
    with pytest.raises(OnnxImportError, match="exact integers of a module"):
        qsearch.quantize(path, [{"input": image} for image in pixels("calib", 2)])
