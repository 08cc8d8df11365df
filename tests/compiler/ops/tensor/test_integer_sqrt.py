"""Roots of sums are exact integers: magnitudes of spectra keep what is quiet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ir.expr import is_op_call
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.quantize import QConfig, prerequisite_optimize
from compiler.targets.c.executor import CExecutor
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.quantize.candidates import assert_same_integers, calibrated, sqnr_db

AUTO = QConfig.recommended(
    layers={"<tables>": {"nbit_input": 12}, "<sums>": {"nbit_input": 16}},
    partition_conversions="fully_integral",
)


def magnitude(epsilon: float = 0.0, kind: str = "pair") -> IRModule:
    """|DFT| of 16 samples, or the length of such a vector."""
    op, places = relay.op, np.outer(np.arange(9), np.arange(16)) * (2 * np.pi / 16)
    x = relay.var("x", (4, 16))
    parts = [
        op.nn.dense(x, relay.const(wave(places).astype(np.float32))) for wave in (np.cos, np.sin)
    ]
    squares = [op.multiply(part, part) for part in parts]
    total = op.add(*squares) if kind == "pair" else op.sum(squares[0], axis=[1], keepdims=True)
    if epsilon:
        total = op.add(total, relay.const(np.float32(epsilon)))
    mod = relay.module(relay.Function([x], op.sqrt(total)))
    return prerequisite_optimize(mod, None, 3, simplify=True)


def signals(count: int, loudness: float) -> list[dict[str, Any]]:
    rng, time = np.random.default_rng(5), np.arange(16)
    found = []
    for _ in range(count):
        pitch, phase = rng.uniform(0.2, 2.5, (4, 1)), rng.uniform(0, 6, (4, 1))
        found.append({"x": (loudness * np.sin(pitch * time + phase)).astype(np.float32)})
    return found


@pytest.mark.parametrize("kind", ["pair", "sum"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_quiet_signals_keep_their_magnitudes(epsilon: float, kind: str) -> None:
    mod = magnitude(epsilon, kind)
    loud, quiet = signals(8, 1.0), signals(8, 0.05)
    candidate = calibrated(mod, AUTO, loud + quiet)
    module = candidate.partitioned
    assert module is not None
    assert any(is_op_call(node, "isqrt") for node in nodes_of(module["quantized_main"]))
    assert sqnr_db(mod, module, loud) > 35
    assert sqnr_db(mod, module, quiet) > 15  # 26 dB less signal above the same steps of the input


@pytest.mark.parametrize("requantization", ["float_product", "fixed_point", "power_of_two"])
def test_every_form_of_a_root_agrees_bit_for_bit(requantization: str) -> None:
    config = AUTO.with_overrides(requantization=requantization)
    data = signals(8, 1.0)
    module = calibrated(magnitude(), config, data).partitioned
    assert_same_integers(module, data[:2])
    assert module is not None
    for form in (CExecutor(module), EngineExecutor(module), OrtExecutor(to_integer_onnx(module))):
        for given in data[:2]:
            (wanted,) = evaluate(module, given)
            np.testing.assert_array_equal(form.run(given)[0], wanted)


def test_without_tables_a_root_stays_in_float() -> None:
    config = QConfig.recommended(integer_tables=False, partition_conversions="disabled")
    made = calibrated(magnitude(), config, signals(4, 1.0)).integer
    assert made is not None
    assert any(is_op_call(node, "sqrt") for node in nodes_of(made["main"]))


def test_a_module_for_tflm_has_a_table() -> None:
    config = QConfig.recommended(requantization="tflite", partition_conversions="fully_integral")
    data = signals(8, 1.0)
    module = calibrated(magnitude(), config, data).partitioned
    assert module is not None
    assert not any(is_op_call(node, "isqrt") for node in nodes_of(module["quantized_main"]))
    assert any(is_op_call(node, "lookup") for node in nodes_of(module["quantized_main"]))
