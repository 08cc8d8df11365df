"""qsearch verify: a module whose sums could leave int32 is refuted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import qsearch
from compiler import relay
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.quantize.conversions.partition_conversions import fuse_partitions
from compiler.runtime.artifact import QModule
from qsearch.cli.main import run


def test_a_refuted_file_gets_no_record(tmp_path: Path) -> None:
    path = tmp_path / "wide.qmod"
    overflowing_module(140_000).save(path)
    before = path.read_bytes()
    assert qsearch.verify(path, record=True).record == "missing"
    assert path.read_bytes() == before


def test_a_module_that_could_overflow_is_refused_with_node_and_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wide.qmod"
    overflowing_module(140_000).save(path)
    assert run(["verify", str(path)]) == 1
    printed = capsys.readouterr().out
    assert "%0 nn.dense: the accumulator of channel 1 may reach -2258060000" in printed
    assert "int32 ends at -2147483648" in printed
    record = json.loads((tmp_path / "proof.json").read_text())
    assert record["verdict"] == "refuted"
    assert record["findings"][0]["bound"] == -2258060000


def test_the_same_module_with_fewer_terms_is_proved(tmp_path: Path) -> None:
    overflowing_module(130_000).save(tmp_path / "m.qmod")
    assert qsearch.verify(tmp_path / "m.qmod").findings == ()


def overflowing_module(terms: int) -> QModule:
    """A dense layer of that many products, whose outputs stay small on its only sample."""
    op = relay.op
    weight = np.zeros((2, terms), "int8")
    weight[1] = 127
    x = relay.var("x", (1, terms))
    scaled = op.round(op.multiply(x, relay.const(np.float32(4.0))))
    narrow = op.cast(op.clip(scaled, a_min=-127, a_max=127), dtype="int8")
    q = relay.var("x", (1, terms), "int8")
    r = relay.var("input", (1, 2), "int32")
    parts = {
        "quantize_inputs": relay.Function((x,), relay.Tuple((narrow,))),
        "quantized_main": relay.Function(
            (q,), op.nn.dense(q, relay.const(weight), out_dtype="int32")
        ),
        "dequantize_outputs": relay.Function(
            (r,), op.multiply(op.cast(r, dtype="float32"), relay.const(np.float32(0.5)))
        ),
    }
    module = fuse_partitions(
        *(infer_module(IRModule({"main": function})) for function in parts.values())
    )
    inputs = {"x": np.zeros((1, terms), "float32")}
    return QModule(module, samples=[(inputs, evaluate(module, inputs))])


def hashing_model(at: Path) -> Path:
    """Rows that a product of 64-bit numbers picks, which is meant to wrap."""
    rng = np.random.default_rng(0)
    held = {"factor": np.array(2**40), "count": np.array(7)}
    held |= {"table": rng.normal(size=(7, 8)).astype(np.float32)}
    held |= {"weight": rng.normal(size=(8, 8)).astype(np.float32)}
    nodes = [
        helper.make_node(op, reads, [result])
        for op, reads, result in (
            ("Mul", ["ids", "factor"], "large"),
            ("Mul", ["large", "large"], "wrapped"),
            ("Mod", ["wrapped", "count"], "place"),
            ("Gather", ["table", "place"], "rows"),
            ("MatMul", ["rows", "weight"], "y"),
        )
    ]
    graph = helper.make_graph(
        nodes,
        "hashing",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 8])],
        [numpy_helper.from_array(array, name) for name, array in held.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), at / "m.onnx")
    np.savez(at / "data.npz", ids=rng.integers(0, 100, (16, 5)))
    return at / "m.onnx"


def test_compile_ends_with_1_where_an_overflow_is_possible(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = str(hashing_model(tmp_path)), str(tmp_path / "m.qmod")
    given = ["compile", model, "--calib", str(tmp_path / "data.npz"), "-o", out]
    assert run(given) == 0  # cut behind the hash
    assert qsearch.verify(out).proved
    assert run([*given, "--qconfig", "auto,partition_conversions=enabled"]) == 1
    assert "the module is not proved" in capsys.readouterr().err
    found = qsearch.verify(out)
    assert not found.proved
    assert found.record == "agrees"  # the writer said so


def test_launch_ends_with_1_where_an_overflow_is_possible(tmp_path: Path) -> None:
    model, data = hashing_model(tmp_path), str(tmp_path / "data.npz")
    space = tmp_path / "space.yaml"
    space.write_text("fields:\n  partition_conversions: [enabled]\n")
    out = tmp_path / "run"
    result = qsearch.launch(model, calib=data, eval=data, space=space, until="y", trials=1, out=out)
    assert result.exit_code == 1
    assert result.summary["emitted"]["findings"]
    assert not qsearch.verify(out).proved
