"""onnxruntime as external compiler of float parts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.frontend.from_onnx.load import load
from compiler.quantize import prerequisite_optimize
from compiler.runtime.lowered_module import LoweredModule
from compiler.targets.ort.codegen import is_supported
from compiler.transform import PartitionGraph
from tests.each import each

op, nn = relay.op, relay.op.nn


def mixed() -> relay.IRModule:
    """Floats, then integers, then floats."""
    x, w = relay.var("x", (4, 8)), relay.var("w", (6, 8))
    y = nn.softmax(nn.dense(x, w))
    q = op.right_shift(op.cast(op.multiply(y, 100.0), dtype="int32"), relay.const(1))
    return relay.module(op.add(op.exp(op.cast(q, dtype="float32")), op.tanh(y)))


def test_float_parts_run_on_onnxruntime_and_integers_do_not(tmp_path: Path) -> None:
    mod = mixed()
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(s).astype("float32") for s in ((4, 8), (6, 8))]
    lowered = compiler.lower(PartitionGraph()(mod), target="reference")
    externals = lowered.mod.attrs["external_mods"]
    assert len(externals) == 2
    assert {e.kind for e in externals} == {"onnxruntime"}
    # Sums of floats are added up in another order by onnxruntime.
    want = compiler.evaluate(mod, inputs)
    np.testing.assert_allclose(lowered.run(inputs)[0], want[0], rtol=1e-4)
    lowered.save(tmp_path / "mixed.qmod")
    again = LoweredModule.load(tmp_path / "mixed.qmod")
    np.testing.assert_array_equal(again.run(inputs)[0], lowered.run(inputs)[0])
    again.save(tmp_path / "again.qmod")
    assert (tmp_path / "again.qmod").read_bytes() == (tmp_path / "mixed.qmod").read_bytes()


def test_tuples_inside_a_result_keep_their_form() -> None:
    x = relay.var("x", (4, 6))
    y = op.exp(x)
    parts = op.split(y, indices_or_sections=3, axis=1)
    item = relay.TupleGetItem(parts, 1)
    mod = relay.module(relay.Tuple((op.cast(y, dtype="int32"), op.cast(item, dtype="int32"))))
    lowered = compiler.lower(PartitionGraph()(mod), target="reference")
    data = np.linspace(0, 3, 24, dtype="float32").reshape(4, 6)
    for a, b in each(zip(lowered.run([data]), compiler.evaluate(mod, [data]), strict=True)):
        np.testing.assert_array_equal(a, b)


def test_support_is_what_the_exporter_writes() -> None:
    def typed(body: relay.Expr) -> relay.Call:
        call = relay.module(body)["main"].body
        assert isinstance(call, relay.Call)
        return call

    x = relay.var("x", (1, 4, 8, 8))
    assert is_supported(typed(nn.relu(x)))
    assert not is_supported(typed(nn.relu(relay.var("i", (4,), "int8"))))
    assert not is_supported(typed(op.cast(x, dtype="int8")))
    assert not is_supported(typed(nn.relu(relay.var("d", (relay.AnyDim(), 4)))))


@pytest.mark.shared
def test_a_float_model_is_one_external_function(shared_data: Path) -> None:
    mod, params = load(shared_data / "fashion_resnet.onnx")
    mod = prerequisite_optimize(mod, params)
    lowered = compiler.lower(PartitionGraph()(mod), target="reference")
    assert len(lowered.mod.attrs["external_mods"]) == 1
    rng = np.random.default_rng(0)
    inputs = [
        rng.standard_normal(p.tensor_type.concrete_shape).astype("float32")
        for p in mod["main"].params
    ]
    want = compiler.evaluate(mod, inputs)[0]
    # Convolutions are added up in another order.
    np.testing.assert_allclose(lowered.run(inputs)[0], want, rtol=1e-3, atol=1e-4)
