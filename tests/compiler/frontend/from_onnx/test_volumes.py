"""Convolutions of three axes against onnxruntime, and what is left of them on integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

import qsearch
from compiler.errors import CompilerError
from compiler.frontend.from_onnx.load import load
from tests.compiler.frontend.ort_oracle import disagreement


def model(path: Path, nodes: list[Any], shape: list[int], **constants: tuple[int, ...]) -> Path:
    rng = np.random.default_rng(0)
    stored = [
        numpy_helper.from_array(rng.standard_normal(size).astype("f"), name)
        for name, size in constants.items()
    ]
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    result = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [value], [result], stored)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@st.composite
def convolutions(draw: st.DrawFn) -> dict[str, Any]:
    of_axes = st.lists(st.integers(1, 3), min_size=3, max_size=3)
    kernel, strides, dilations = draw(of_axes), draw(of_axes), draw(of_axes)
    pads = [draw(st.integers(0, 2)) for _ in range(6)]
    groups = draw(st.sampled_from([1, 2, 4]))
    return {
        "kernel_shape": kernel,
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        "group": groups,
    }


@settings(max_examples=60, deadline=None)
@given(convolutions(), st.booleans(), st.integers(1, 2), st.integers(7, 9))
def test_volumes_are_onnxruntimes(
    tmp_path_factory: pytest.TempPathFactory,
    attrs: dict[str, Any],
    transposed: bool,
    batch: int,
    depth: int,
) -> None:
    groups, kernel = attrs["group"], attrs["kernel_shape"]
    if transposed:
        attrs = {**attrs, "output_padding": [min(1, s - 1) for s in attrs["strides"]]}
    weight = (4, 8 // groups) if transposed else (8, 4 // groups)
    kind = "ConvTranspose" if transposed else "Conv"
    path = model(
        tmp_path_factory.mktemp("volume") / "m.onnx",
        [helper.make_node(kind, ["x", "w", "b"], ["y"], **attrs)],
        [batch, 4, depth, 7, 8],
        w=(*weight, *kernel),
        b=(8,),
    )
    mod, params = load(path)
    assert not disagreement(path, mod, params)


@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("kernel", [[1, 2, 3], [3, 1, 1], [2, 2, 2], [1, 1, 1]], ids=str)
@pytest.mark.parametrize(
    ("kind", "more"),
    [("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1})],
    ids=str,
)
def test_pools_of_volumes_are_onnxruntimes(
    kind: str, more: dict[str, int], kernel: list[int], channels: int, tmp_path: Path
) -> None:
    pads = [size // 2 for size in kernel]
    attrs = {"kernel_shape": kernel, "pads": [*pads, *pads], **more}
    nodes = [helper.make_node(kind, ["x"], ["y"], **attrs)]
    path = model(tmp_path / "m.onnx", nodes, [2, channels, 5, 6, 7])
    mod, params = load(path)
    assert not disagreement(path, mod, params)


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
@pytest.mark.parametrize(
    "attrs",
    [
        {"pads": [1 << 40] * 6},
        {"pads": [0, 0, 0, 1 << 40, 0, 0]},
        {"strides": [0, 1, 1]},
        {"strides": [-1, 1, 1]},
        {"dilations": [0, 1, 1]},
        {"strides": [1 << 40, 1, 1], "output_padding": [1 << 39, 0, 0]},
        {"output_padding": [-9, 0, 0]},
        {"pads": [-9, 0, 0, 0, 0, 0]},
    ],
    ids=str,
)
def test_sizes_that_a_file_may_claim_are_one_error(
    attrs: dict[str, list[int]], kind: str, tmp_path: Path
) -> None:
    if kind == "Conv":
        attrs = {name: value for name, value in attrs.items() if name != "output_padding"}
    nodes = [helper.make_node(kind, ["x", "w"], ["y"], **attrs)]
    path = model(tmp_path / "m.onnx", nodes, [1, 4, 6, 7, 8], w=(4, 4, 3, 3, 3))
    try:
        mod, params = load(path)
    except CompilerError:
        return
    assert not disagreement(path, mod, params)


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose"])
def test_a_batch_norm_and_a_relu_belong_to_the_convolution(
    axes: int, kind: str, tmp_path: Path
) -> None:
    nodes = [
        helper.make_node(kind, ["x", "w"], ["a"], pads=[1] * 2 * axes),
        helper.make_node("BatchNormalization", ["a", "s", "b", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Conv", ["r", "u"], ["y"]),
    ]
    sizes = dict.fromkeys("sbm", (8,)) | {"u": (4, 8, *[1] * axes)}
    path = model(
        tmp_path / "m.onnx", nodes, [1, 8, *[8] * axes], w=(8, 8, *[3] * axes), **sizes, v=(8,)
    )
    proto = onnx.load(path)
    (variance,) = (one for one in proto.graph.initializer if one.name == "v")
    variance.CopyFrom(numpy_helper.from_array(np.ones(8, "f"), "v"))
    onnx.save(proto, path)
    calib = np.random.default_rng(1).standard_normal((16, 8, *[8] * axes)).astype("f")
    text = str(qsearch.quantize(path, calib).module["quantized_main"]).split("// constants")[0]
    assert text.count("nn.conv2d") == 2
    assert text.count("qnn.requantize") == 2
    assert "multiply(" not in text.replace("fixed_point_multiply", "")
    assert text.count("uint8") > 0
