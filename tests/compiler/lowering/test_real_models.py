"""The models of ../shared/data as loops: quantized bit for bit, in float and simulated closely."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import quantize
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.lir import reference
from compiler.lir.nodes import PrimFunc
from compiler.lir.reference import run
from tests.compiler.quantize.candidates import calibrated
from tests.each import each

pytestmark = pytest.mark.shared

SMALL = ("digits_cnn", "fashion_mobilenet", "fashion_resnet", "fashion_vit")
CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"activation_scheme": "asymmetric", "rounding": "TONEAREST_EVEN"},
    {"requantization": "power_of_two", "weight_granularity": "tensor"},
    {"nbit_weight": 4, "rounding": "TONEAREST", "keep_output_wide": True},
)
CASES = (
    *((name, config) for name in SMALL for config in CONFIGS),
    ("fashion_outlier", CONFIGS[0]),
    pytest.param("efficientnet_lite0", CONFIGS[1], marks=pytest.mark.slow),
)


@functools.cache
def candidate(
    name: str, folder: Path, **config: Any
) -> tuple[IRModule, quantize.Candidate, list[Any]]:
    """The float module, what a QConfig makes of it, and two inputs."""
    mod, params = load(folder / f"{name}.onnx")
    mod = quantize.prerequisite_optimize(mod, params, opt_level=3)
    qconfig = quantize.QConfig.recommended(**{"calibrate_mode": "max", **config})
    (x,) = mod["main"].params
    rng = np.random.default_rng(3)
    inputs = [rng.normal(0, 1, x.tensor_type.concrete_shape).astype(np.float32) for _ in range(2)]
    data = [{x.name_hint: value} for value in inputs]
    return mod, calibrated(mod, qconfig, data), inputs


@pytest.mark.parametrize(("name", "config"), CASES)
def test_a_quantized_model_has_the_same_integers_as_loops(
    name: str, config: dict[str, Any], shared_data: Path
) -> None:
    _, made, inputs = candidate(name, shared_data, **config)
    module = made.partitioned
    assert module is not None
    lowered = compiler.lower(module, target="reference")
    again = compiler.parse(compiler.text(lowered.mod))
    wanted = compiler.evaluate(module, [inputs[0]])
    for want, got in zip(wanted, lowered.run([inputs[0]]), strict=True):
        np.testing.assert_array_equal(got, want)
    for gv, function in lowered.mod.functions.items():
        if isinstance(function, PrimFunc):
            assert again[gv.name_hint].digest() == function.digest()


@pytest.mark.parametrize("name", ["digits_cnn", "fashion_mobilenet", "fashion_vit"])
def test_float_and_simulated_models_agree_as_loops(name: str, shared_data: Path) -> None:
    mod, made, inputs = candidate(name, shared_data)
    for module in (mod, made.simulated):
        lowered = compiler.lower(module, target="reference")
        wanted = compiler.evaluate(module, [inputs[0]])
        for want, got in each(zip(wanted, lowered.run([inputs[0]]), strict=True)):
            # Sums of float32 in another order; simulated ones may round one step of 1/127 apart.
            step = 1e-4 if module is mod else 0.05
            np.testing.assert_allclose(got, want, rtol=0, atol=step * float(np.abs(want).max()))


def test_nothing_wraps_in_a_quantized_model(
    shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, made, inputs = candidate("fashion_resnet", shared_data)
    assert made.partitioned is not None
    lowered = compiler.lower(made.partitioned, target="reference")
    wanted = lowered.run([inputs[0]])
    calls: list[str] = []

    def checking(func: PrimFunc, args: Sequence[Any]) -> list[Any]:
        calls.append(func.name)
        return run(func, args, check_overflow=True)

    monkeypatch.setattr(reference, "run", checking)
    np.testing.assert_array_equal(lowered.run([inputs[0]])[0], wanted[0])
    assert len(calls) > 20


def test_narrowing_is_part_of_the_kernel_that_makes_a_value(shared_data: Path) -> None:
    _, made, _ = candidate("fashion_resnet", shared_data)
    assert made.partitioned is not None
    lowered = compiler.lower(made.partitioned, target="reference")
    casts = [
        gv for gv in lowered.mod.functions if gv.name_hint.strip("_0123456789") == "m_fused_cast"
    ]
    assert casts == []
