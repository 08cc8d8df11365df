"""declared_interface: names, sizes and open dimensions as the file has them."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.runtime.interface import Port


def test_open_dimensions_keep_their_names_and_weights_are_no_inputs() -> None:
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4]),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 2]),
            helper.make_tensor_value_info("mask", TensorProto.INT64, [None, 3]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert declared_interface(model.SerializeToString()).inputs == (
        Port("x", "float32", ("N", 4)),
        Port("mask", "int64", ("?", 3)),
    )


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(OnnxImportError):
        declared_interface(b"no model")


def test_a_declared_type_that_onnx_does_not_know_is_none() -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    graph.output[0].type.tensor_type.elem_type = 65536
    assert declared_interface(helper.make_model(graph).SerializeToString()).outputs[0].dtype == (
        "float32"
    )
