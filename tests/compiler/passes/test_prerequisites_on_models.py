"""The prerequisite passes on the real models: what is left, the values, and the time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import transform
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import extract_calls, post_order
from compiler.ir.expr import Call, Constant
from compiler.ir.module import IRModule
from compiler.quantize import prerequisite_optimize
from tests.compiler.work import calls_of

pytestmark = pytest.mark.shared

MODELS = ["digits_cnn", "fashion_mobilenet", "fashion_outlier", "fashion_resnet", "fashion_vit"]


def optimized(path: Path) -> tuple[IRModule, IRModule]:
    mod, params = load(path)
    plain = prerequisite_optimize(mod, params, opt_level=0)
    return plain, prerequisite_optimize(mod, params, opt_level=3)


@pytest.mark.parametrize("name", MODELS)
def test_values_stay_and_normalisations_are_gone(shared_data: Path, name: str) -> None:
    plain, folded = optimized(shared_data / f"{name}.onnx")
    main = folded["main"]
    for op in ("nn.batch_norm", "nn.dropout", "nn.bias_add", "nn.layer_norm"):
        assert extract_calls(main, op) == []
    shape = main.params[0].type_annotation.concrete_shape
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (want,), (got,) = compiler.evaluate(plain, [data]), compiler.evaluate(folded, [data])
    # Batch norms folded into weights round differently, relative to the largest logit.
    np.testing.assert_allclose(got, want, atol=1e-4 * float(np.abs(want).max()), rtol=1e-3)


@pytest.mark.parametrize("name", ["fashion_mobilenet", "fashion_resnet"])
def test_batch_norms_end_in_weights_and_one_constant_bias(shared_data: Path, name: str) -> None:
    _, folded = optimized(shared_data / f"{name}.onnx")
    assert extract_calls(folded["main"], "multiply") == []
    for conv in extract_calls(folded["main"], "nn.conv2d"):
        assert isinstance(conv.args[1], Constant)


def test_the_work_on_efficientnet_is_bounded_by_its_calls(shared_data: Path) -> None:
    mod, params = load(shared_data / "efficientnet_lite0.onnx")
    bound = prerequisite_optimize(mod, params, opt_level=0)

    def folded() -> IRModule:
        found = bound
        with transform.PassContext(opt_level=3):
            for step in (
                transform.SimplifyInference(),
                transform.FoldConstant(),
                transform.FoldScaleAxis(),
                transform.CanonicalizeOps(),
                transform.FoldConstant(),
            ):
                found = step(found)
        return found

    calls: list[Any] = [n for n in post_order(folded()["main"]) if isinstance(n, Call)]
    before = sum(isinstance(n, Call) for n in post_order(bound["main"]))
    assert calls_of(folded) < before * 1000
    assert len(calls) > 100
