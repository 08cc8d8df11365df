"""Convolutions whose weight is computed, as trackers correlate a template with an image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

import qsearch
from compiler.frontend.from_onnx.load import load
from compiler.proof.derive import derive_static
from tests.compiler.frontend.ort_oracle import disagreement


def correlation(path: Path, shapes: dict[str, list[int]], **attrs: Any) -> Path:
    """y = Conv(Relu(x), Relu(z)), with a bias where ``shapes`` has one."""
    nodes = [
        helper.make_node("Relu", ["x"], ["data"]),
        helper.make_node("Relu", ["z"], ["weight"]),
        helper.make_node(
            "Conv", ["data", "weight", *("b" for b in shapes if b == "b")], ["y"], **attrs
        ),
    ]
    values = [
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in shapes.items()
    ]
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", values, [result])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@settings(max_examples=60, deadline=None)
@given(
    axes=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
    draw=st.data(),
)
def test_a_computed_weight_gives_what_onnxruntime_gives(
    tmp_path_factory: pytest.TempPathFactory,
    axes: int,
    groups: int,
    bias: bool,
    draw: st.DataObject,
) -> None:
    small = st.lists(st.integers(1, 3), min_size=axes, max_size=axes)
    kernel, strides, dilations = (draw.draw(small) for _ in range(3))
    pads = draw.draw(st.lists(st.integers(0, 2), min_size=2 * axes, max_size=2 * axes))
    shapes = {"x": [1, 4, *[9, 8][:axes]], "z": [8, 4 // groups, *kernel]}
    if bias:
        shapes["b"] = [8]
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    path = correlation(tmp_path_factory.mktemp("m") / "m.onnx", shapes, **attrs)
    assert disagreement(path, *load(path)) == ""


@pytest.mark.parametrize("groups", [1, 8])
def test_a_correlation_is_integers(groups: int, tmp_path: Path) -> None:
    shapes = {"x": [1, 8, 12, 12], "z": [8, 8 // groups, 4, 4]}
    path = correlation(tmp_path / "m.onnx", shapes, group=groups)
    rng = np.random.default_rng(0)
    data = [
        {name: rng.standard_normal(size).astype("f") for name, size in shapes.items()}
        for _ in range(8)
    ]
    module = qsearch.quantize(path, data)
    assert derive_static(module.module).findings == ()
    session = onnx.reference.ReferenceEvaluator(str(path))
    wanted = np.stack([session.run(None, batch)[0] for batch in data])
    found = np.stack([module.run(batch)[0] for batch in data])
    assert np.square(found - wanted).sum() < 1e-3 * np.square(wanted).sum()
