"""Sparse initializers become weights with all their elements, and damaged ones are refused."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.errors import OnnxImportError
from compiler.pipeline import evaluate
from tests.compiler.frontend.from_onnx.test_load import imported, model, node


def sparse_model(indices: np.ndarray, shape: tuple[int, ...] = (3, 4)) -> onnx.ModelProto:
    proto = model([node("MatMul", "x w")], {"x": [2, 3]})
    values = numpy_helper.from_array(np.array([2.0, -1.0, 3.0], np.float32), "w")
    places = numpy_helper.from_array(indices, "places")
    proto.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, shape))
    return proto


@pytest.mark.parametrize("indices", [np.array([1, 6, 11]), np.array([[0, 1], [1, 2], [2, 3]])])
def test_a_sparse_weight_is_one_with_all_its_elements(indices: np.ndarray) -> None:
    mod, params = imported(sparse_model(indices))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    wanted = np.zeros((3, 4), np.float32)
    wanted[[0, 1, 2], [1, 2, 3]] = [2, -1, 3]
    (found,) = evaluate(mod, {"x": x, **params})
    np.testing.assert_array_equal(found, x @ wanted)


def test_a_sparse_weight_of_one_value_may_have_no_axis() -> None:
    proto = sparse_model(np.zeros((1, 0), np.int64), ())
    proto.graph.sparse_initializer[0].values.CopyFrom(
        numpy_helper.from_array(np.full((1, 1), 2.5, np.float32), "w")
    )
    proto.graph.node[0].op_type = "Mul"
    mod, params = imported(proto)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(evaluate(mod, {"x": x, **params})[0], x * np.float32(2.5))


@pytest.mark.parametrize(
    ("indices", "shape", "says"),
    [
        (np.array([1, 6, 12]), (3, 4), "do not place 3 values"),
        (np.array([1, 6]), (3, 4), "do not place 3 values"),
        (np.array([-1, 6, 7]), (3, 4), "do not place 3 values"),
        (np.array([1.0, 6.0, 7.0]), (3, 4), "float64 indices of shape"),
        (np.array([True, False, True]), (3, 4), "bool indices of shape"),
        (np.zeros((3, 0), np.int64), (3, 4), "do not place 3 values"),
        (np.array([1, 6, 7]), (1 << 20, 1 << 20), "the limit is"),
    ],
)
def test_a_damaged_sparse_weight_is_refused(
    indices: np.ndarray, shape: tuple[int, ...], says: str
) -> None:
    with pytest.raises(OnnxImportError, match=says):
        imported(sparse_model(indices, shape))
