"""Real architectures: imported, printed, parsed back, run and exported, always the same network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

import compiler
from compiler import transform
from compiler.export.to_onnx.float.model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import bind
from compiler.ir.expr import Constant
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.frontend.zoo import LIGHT, PYTORCH, light_model, pytorch_model

SHARED = (
    "digits_cnn",
    "efficientnet_lite0",
    "fashion_mobilenet",
    "fashion_outlier",
    "fashion_resnet",
    "fashion_vit",
)


def bound(mod: IRModule, params: dict[str, NDArray[Any]]) -> IRModule:
    main = mod["main"]
    values = {v: Constant(params[v.name_hint]) for v in main.params if v.name_hint in params}
    return infer_module(mod.with_function("main", bind(main, values)))


def close(results: list[Any], expected: list[Any], rtol: float = 1e-4) -> None:
    """Within rtol of each element, or of the largest: sums of thousands of products cancel."""
    assert len(results) == len(expected)
    for result, want in zip(results, expected):
        assert result.shape == want.shape
        assert result.dtype == want.dtype
        floor = rtol * float(np.nanmax(np.abs(want), initial=0.0)) if want.dtype.kind == "f" else 0
        np.testing.assert_allclose(result, want, rtol=rtol, atol=floor)


def test_the_nine_architectures_are_there() -> None:
    assert len(LIGHT) == 9


@pytest.mark.slow
@pytest.mark.parametrize("name", LIGHT)
def test_an_architecture_keeps_its_text_and_its_results(name: str) -> None:
    check_model(light_model(name))


@pytest.mark.shared
@pytest.mark.parametrize("name", SHARED)
def test_a_shared_model_keeps_its_text_and_its_results(name: str, shared_data: Path) -> None:
    check_model(onnx.load(shared_data / f"{name}.onnx"))


def check_model(model: onnx.ModelProto) -> None:
    mod, params = load(model.SerializeToString())
    text = compiler.text(mod)
    again = infer_module(compiler.parse(text))
    compiler.assert_structural_equal(again, mod)
    # Spans stand in comments and are not read back, so the bare texts are compared.
    assert compiler.text(again, show_types=False) == compiler.text(mod, show_types=False)

    rng = np.random.default_rng(1)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    sizes = {
        i.name: [d if isinstance(d, int) else 1 for d in i.shape] for i in session.get_inputs()
    }
    feeds = {name: rng.standard_normal(shape, np.float32) for name, shape in sizes.items()}
    expected = session.run(None, feeds)
    assert np.ptp(expected[0]) > 0
    del session, model
    closed = bound(mod, params)
    close(compiler.evaluate(closed, feeds), expected)
    tidy = transform.SimplifyInference()(closed)
    for step in (transform.FoldConstant(), transform.FoldScaleAxis(), transform.CanonicalizeOps()):
        tidy = step(tidy)
    close(compiler.evaluate(tidy, feeds), expected)
    close(OrtExecutor(to_onnx(closed)).run(feeds), expected)


@pytest.mark.parametrize("name", PYTORCH)
def test_what_pytorch_exported_gives_what_pytorch_computed(name: str) -> None:
    model, pairs = pytorch_model(name)
    assert pairs
    for inputs, expected in pairs:
        mod, params = load(
            model.SerializeToString(), input_shapes={n: v.shape for n, v in inputs.items()}
        )
        text = compiler.text(mod)
        compiler.assert_structural_equal(compiler.parse(text), mod)
        closed = bound(mod, params)
        close(compiler.evaluate(closed, inputs), expected, rtol=1e-3)
        close(OrtExecutor(to_onnx(closed)).run(inputs), expected, rtol=1e-3)
