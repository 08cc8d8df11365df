"""Exported models as callers know the original: names, dtypes, any number of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from compiler import relay
from compiler.errors import ArtifactError, CodegenError, OnnxExportError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.export.to_onnx.interface import with_batch, with_metadata, with_names
from compiler.pipeline import evaluate
from compiler.runtime.artifact import QModule
from compiler.runtime.interface import KEY, Interface, Port
from compiler.targets.ort.exported import open_exported, seal
from compiler.targets.ort.session import OrtExecutor
from tests.each import each

op = relay.op


def token_module() -> relay.IRModule:
    """A constant token in front of rows: what a transformer does to its samples."""
    x = relay.var("x", (1, 4, 6))
    token = relay.const(np.arange(6, dtype="float32").reshape(1, 1, 6))
    joined = op.concatenate((token, op.reshape(x, newshape=(1, 4, 6))), axis=1)
    return relay.module(op.reshape(joined, newshape=(1, 30)))


@pytest.mark.parametrize("batch", [None, 3])
def test_a_batch_gives_what_its_samples_give(batch: int | None) -> None:
    mod = token_module()
    session = OrtExecutor(with_batch(to_onnx(mod), None, batch))
    assert session.inputs == [("x", "float32", (batch or "batch", 4, 6))]
    data = np.random.default_rng(0).standard_normal((3, 4, 6)).astype("float32")
    (found,) = session.run([data])
    for sample in range(3):
        (expected,) = evaluate(mod, {"x": data[sample : sample + 1]})
        np.testing.assert_array_equal(found[sample : sample + 1], expected)


def test_an_operator_that_cuts_a_moved_axis_of_samples_is_named() -> None:
    x = relay.var("x", (1, 4, 3))
    rows = op.reshape(op.transpose(x, axes=(1, 0, 2)), newshape=(4, 3))
    pieces = op.split(rows, indices_or_sections=4, axis=0)
    mod = relay.module(op.add(relay.TupleGetItem(pieces, 0), relay.TupleGetItem(pieces, 1)))
    with pytest.raises(OnnxExportError, match="has the samples on another axis"):
        with_batch(to_onnx(mod), None)


def test_an_operator_that_joins_samples_is_refused() -> None:
    x = relay.var("x", (1, 4))
    other = relay.const(np.ones((1, 4), "float32"))
    mod = relay.module(op.concatenate((x, other), axis=0))
    with pytest.raises(OnnxExportError, match="one sample at a time"):
        with_batch(to_onnx(mod), None)
    with pytest.raises(OnnxExportError, match="no input has a leading axis"):
        with_batch(to_onnx(relay.module(op.exp(relay.var("x", ())))), None)


X = relay.var("x", (1, 4, 3))
THREE = relay.const(np.arange(36, dtype="float32").reshape(3, 4, 3))
MATRICES = relay.const(np.arange(27, dtype="float32").reshape(3, 3, 3))
H, W = relay.var("h", (1, 4, 3)), relay.var("w", (1, 4, 3))
LOOP = relay.TupleGetItem(
    op.scan(
        relay.Function([H, W], relay.Tuple((op.max(W, axis=0, keepdims=True),))),
        relay.Tuple((relay.const(np.zeros((1, 4, 3), "float32")),)),
        relay.Tuple(()),
        relay.Tuple((X,)),
        length=2,
    ),
    0,
)


def folded(rows: relay.Expr) -> relay.Expr:
    """One maximum of all rows beside the samples."""
    flat = op.reshape(rows, newshape=(1, 36))
    return op.add(X, op.reshape(op.max(flat, axis=1, keepdims=True), newshape=(1, 1, 1)))


ALONG_SAMPLES = {
    "max": op.max(X, axis=0, keepdims=True),
    "sum of all": op.sum(X, keepdims=True),
    "cumsum": op.cumsum(X, axis=0),
    "reverse": op.reverse(X, axis=0),
    "softmax": op.nn.softmax(X, axis=0),
    "argmax": op.cast(op.argmax(X, axis=0, keepdims=True), dtype="float32"),
    "a product of samples": op.nn.batch_matmul(
        op.transpose(X, axes=(1, 0, 2)), op.transpose(X, axes=(1, 0, 2))
    ),
    "behind a moved axis": op.transpose(
        op.max(op.transpose(X, axes=(1, 0, 2)), axis=1, keepdims=True), axes=(1, 0, 2)
    ),
    # A batch of three has the shapes that one sample has behind these.
    "a sum with three constant rows": folded(op.add(X, THREE)),
    "a choice with three constant rows": folded(op.where(op.less(THREE, X), X, op.nn.relu(X))),
    "a copy for each of three rows": folded(op.broadcast_to(X, shape=(3, 4, 3))),
    "a product with three constant matrices": folded(op.nn.batch_matmul(X, MATRICES)),
    "a column of a table for each sample": op.gather(
        THREE, op.cast(op.clip(X, a_min=0, a_max=1), dtype="int32"), axis=1
    ),
    "a loop that reads the samples from outside": LOOP,
}


@pytest.mark.parametrize("what", ALONG_SAMPLES)
def test_what_works_along_the_samples_takes_one_at_a_time(what: str) -> None:
    """One sample does not show it: the axis has one element."""
    model = to_onnx(relay.module(relay.Function([X], ALONG_SAMPLES[what])))
    with pytest.raises(OnnxExportError, match="one sample at a time"):
        with_batch(model, None)
    with_batch(model, None, 1)


def test_a_reversal_along_another_axis_takes_any_number_of_samples() -> None:
    y = op.transpose(op.nn.softmax(op.reverse(X, axis=2), axis=1), axes=(1, 0, 2))
    mod = relay.module(relay.Function([X], op.transpose(op.max(y, axis=0), axes=(0, 1))))
    session = OrtExecutor(with_batch(to_onnx(mod), None))
    data = np.random.default_rng(0).standard_normal((3, 4, 3)).astype("float32")
    (found,) = session.run([data])
    for sample in range(3):
        (expected,) = evaluate(mod, {"x": data[sample : sample + 1]})
        np.testing.assert_allclose(found[sample : sample + 1], expected, rtol=1e-6)


def test_names_order_and_dtypes_are_those_of_the_model() -> None:
    x = relay.var("pixels", (1, 4))
    mod = relay.module(relay.Tuple((op.exp(x), op.nn.relu(x))))
    inputs = (Port("unread", "int64", ("n",)), Port("pixels", "float16", ("n", 4)))
    # The second name is one that the exporter gives to its own tensors.
    outputs = (Port("logits", "float16", ("n", 4)), Port("t0", "float32", ("n", 4)))
    interface = Interface(inputs, outputs)
    model = with_names(with_batch(to_onnx(mod), interface), interface)
    onnx.checker.check_model(model, full_check=True)
    session = OrtExecutor(model)
    assert session.inputs == [
        ("unread", "int64", ("n",)),
        ("pixels", "float16", ("n", 4)),
    ]
    assert session.output_names == ("logits", "t0")
    data = np.random.default_rng(0).standard_normal((2, 4)).astype("float16")
    found = session.run({"unread": np.zeros(2, "int64"), "pixels": data})
    assert [str(each.dtype) for each in found] == ["float16", "float32"]
    np.testing.assert_array_equal(found[1], np.maximum(data, 0).astype("float32"))


def test_names_inside_a_loop_give_way_to_those_of_the_model() -> None:
    mod = relay.module(relay.Function([X], relay.Tuple((op.nn.relu(X), LOOP))))
    interface = Interface(
        (Port("x", "float16", (1, 4, 3)),),
        # The loop reads the input, and gives its tensors names like these.
        tuple(Port(name, "float32", (1, 4, 3)) for name in ("h", "t0_1")),
    )
    model = with_names(to_onnx(mod), interface)
    onnx.checker.check_model(model, full_check=True)
    data = np.random.default_rng(0).standard_normal((1, 4, 3)).astype("float16")
    found = OrtExecutor(model).run({"x": data})
    for ours, theirs in each(zip(found, evaluate(mod, {"x": data.astype("float32")}), strict=True)):
        np.testing.assert_array_equal(ours, theirs)


def test_a_file_with_other_bits_is_refused(tmp_path: Path) -> None:
    mod = token_module()
    module = QModule(mod, provenance={KEY: {"inputs": [], "outputs": []}})
    model = with_batch(to_onnx(mod), None)
    seal(model, "onnx", module)
    onnx.save(model, tmp_path / "good.onnx")
    assert open_exported(tmp_path / "good.onnx").metadata["qsearch.form"] == "onnx"
    for fixed in (1, 4):
        model = with_batch(to_onnx(mod), None, fixed)
        seal(model, "onnx", module)
        onnx.save(model, tmp_path / "fixed.onnx")
        open_exported(tmp_path / "fixed.onnx")
    model.graph.initializer[0].CopyFrom(
        helper.make_tensor(
            model.graph.initializer[0].name, TensorProto.FLOAT, (1, 1, 6), np.ones(6)
        )
    )
    onnx.save(model, tmp_path / "other.onnx")
    with pytest.raises(CodegenError, match="other bits"):
        open_exported(tmp_path / "other.onnx")
    with_metadata(model, {"qsearch.check": "{"})
    onnx.save(model, tmp_path / "damaged.onnx")
    with pytest.raises(ArtifactError, match="damaged"):
        open_exported(tmp_path / "damaged.onnx")
    onnx.save(to_onnx(mod), tmp_path / "foreign.onnx")
    with pytest.raises(ArtifactError, match="not written by"):
        open_exported(tmp_path / "foreign.onnx")


TEST = '{"seed": 0, "outputs_sha256": ""}'


@pytest.mark.parametrize(
    ("dims", "dtype", "test"),
    [
        ((1, 4), TensorProto.FLOAT, TEST.replace("0", "-1")),
        ((1, 4), TensorProto.FLOAT, TEST.replace("0", "1e999")),
        ((1, 4), TensorProto.FLOAT, "[" * 100_000),
        ((10**10, 4), TensorProto.FLOAT, TEST),
        ((1, 10**5, 10**5), TensorProto.FLOAT, TEST),
        ((1, 2**62, 4), TensorProto.FLOAT, TEST),
        ((1, 4), TensorProto.STRING, TEST),
    ],
)
def test_a_hostile_file_is_refused_with_a_sentence(
    dims: tuple[int, ...], dtype: int, test: str, tmp_path: Path
) -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Identity", ["x"], ["y"])
    graph = helper.make_graph([node], "g", [value("x", dtype, dims)], [value("y", dtype, dims)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with_metadata(model, {"qsearch.form": "onnx", "qsearch.check": test})
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ArtifactError, match=r"damaged|more than"):
        open_exported(tmp_path / "m.onnx")
