"""The imported model is compared with the file in onnxruntime: faults of the importer are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import qsearch
from compiler.frontend.from_onnx import graph as importer
from compiler.frontend.from_onnx.opsets import find_converter
from qsearch.cli.main import run
from qsearch.errors import WrongImportError

RNG = np.random.default_rng(0)


def network(folder: Path) -> tuple[str, str]:
    """Convolution, norm, activations, pooling, product and softmax; and data."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"], name="norm"),
        helper.make_node("LeakyRelu", ["n"], ["r"], name="leaky", alpha=0.2),
        helper.make_node("MaxPool", ["r"], ["p"], name="pool", kernel_shape=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "k"], ["h"], name="product"),
        helper.make_node("Sigmoid", ["h"], ["g"], name="gate"),
        helper.make_node("Mul", ["h", "g"], ["t"], name="gated"),
        helper.make_node("Softmax", ["t"], ["y"], name="scores"),
    ]
    stored = {
        "w": RNG.normal(size=(4, 2, 3, 3)),
        **{name: RNG.uniform(0.5, 2, 4) for name in "sbmv"},
        "k": RNG.normal(size=(100, 5)) * 0.1,
    }
    opened = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 2, 6, 6])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 5])],
        [numpy_helper.from_array(value.astype("f"), name) for name, value in stored.items()],
    )
    model = helper.make_model(opened, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "m.onnx")
    np.savez(folder / "x.npz", x=RNG.normal(size=(16, 2, 6, 6)).astype("f"))
    return str(folder / "m.onnx"), str(folder / "x.npz")


def faulty(monkeypatch: pytest.MonkeyPatch, op_type: str, change: Callable[[Any], None]) -> None:
    """Let the importer read nodes of a type as if the file said something else."""

    def found(name: str, opset: int, domain: str = "") -> Any:
        converter = find_converter(name, opset, domain)
        if name != op_type or converter is None:
            return converter

        def changed(node: Any) -> Any:
            change(node.proto)
            renamed = find_converter(node.proto.op_type, opset, domain)
            assert renamed is not None
            return renamed(node)

        return changed

    monkeypatch.setattr(importer, "find_converter", found)


def renamed(op_type: str) -> Callable[[Any], None]:
    return lambda proto: setattr(proto, "op_type", op_type)


def given(**attributes: Any) -> Callable[[Any], None]:
    def change(proto: Any) -> None:
        kept = [a for a in proto.attribute if a.name not in attributes]
        del proto.attribute[:]
        proto.attribute.extend(kept)
        proto.attribute.extend(helper.make_attribute(*item) for item in attributes.items())

    return change


FAULTS = {
    "an epsilon": ("BatchNormalization", given(epsilon=1e-2), "norm"),
    "pads": ("Conv", given(pads=[2, 2, 0, 0]), "conv"),
    "a slope": ("LeakyRelu", given(alpha=0.21), "leaky"),
    "a relu": ("LeakyRelu", renamed("Relu"), "leaky"),
    "another pool": ("MaxPool", renamed("AveragePool"), "pool"),
    "another gate": ("Sigmoid", renamed("HardSigmoid"), "gate"),
    "an addition": ("Mul", renamed("Add"), "gated"),
    "an axis": ("Softmax", given(axis=0), "scores"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_importer_is_named_at_its_node(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    op_type, change, node = FAULTS[fault]
    model, data = network(tmp_path)
    faulty(monkeypatch, op_type, change)
    with pytest.raises(WrongImportError, match=f"first at .* '{node}'"):
        qsearch.quantize(model, data)


def test_commands_end_with_1_at_a_fault_and_0_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = network(tmp_path)
    words = ["compile", model, "--calib", data, "-o", str(tmp_path / "m.qmod")]
    assert run(words) == 0
    faulty(monkeypatch, "Sigmoid", renamed("HardSigmoid"))
    assert run(words) == 1
    assert run(["launch", model, "--calib", data, "-o", str(tmp_path / "run")]) == 1
