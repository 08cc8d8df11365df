"""Models that are no path; those of PyTorch are in tests/benchmarks/zoo/modules.py."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qsearch
from compiler.errors import CompilerError
from qsearch.opening.model_file import find_model

DIGITS = find_model("digits").path
IMAGES = np.random.default_rng(0).random((16, 1, 8, 8)).astype(np.float32)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As Optimum writes it."""
    shutil.copyfile(DIGITS, tmp_path / "model.onnx")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def test_every_form_of_a_model_gives_the_same_module(folder: Path) -> None:
    forms: list[Any] = [DIGITS, str(folder), onnx.load(DIGITS), DIGITS.read_bytes()]
    texts = [qsearch.quantize(form, IMAGES).text() for form in forms]
    assert len(set(texts)) == 1


def test_doctor_and_insight_take_a_model_in_memory() -> None:
    model = onnx.load(DIGITS)
    assert qsearch.doctor(model).diagnosis.fully_integral
    assert qsearch.insight(model, IMAGES, samples=1).insight.layers


def test_a_module_is_called_with_inputs_in_order_or_by_name() -> None:
    module = qsearch.quantize(onnx.load(DIGITS), IMAGES)
    wanted = module.run(IMAGES)[0]
    for found in (module(IMAGES), module(**{module.input_names[0]: IMAGES})):
        np.testing.assert_array_equal(found, wanted)


def test_a_folder_without_a_model_is_refused(folder: Path) -> None:
    (folder / "model.onnx").rename(folder / "decoder.onnx")
    with pytest.raises(CompilerError, match=r"a folder without model\.onnx"):
        qsearch.doctor(folder)


@pytest.mark.parametrize("model", [object(), onnx.ModelProto, b"", 7])
def test_what_is_no_model_is_named_with_the_kinds_that_are_taken(model: Any) -> None:
    with pytest.raises(CompilerError, match=r"of type .* cannot be used[^$]*torch.nn.Module"):
        qsearch.quantize(model, IMAGES)


def test_ranges_of_a_value_without_axes_are_fitted() -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    m (float[1, 8] x) => (float[1, 4] y)
    {
      a = MatMul (x, w)
      s = ReduceMean <keepdims = 0> (a)
      q = Mul (s, s)
      b = MatMul (a, v)
      y = Add (b, q)
    }
    """
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("w", (8, 4)), ("v", (4, 4))):
        weight = rng.normal(size=shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    module = qsearch.quantize(model, rng.normal(size=(40, 8)).astype(np.float32))
    assert module.proof is not None
    assert module.proof["verdict"] == "proved"
