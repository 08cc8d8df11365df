from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import compiler
from compiler import relay
from compiler.errors import TypeInferenceError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.targets.ort.session import OrtExecutor


def run(name: str, *arrays: NDArray[Any], **attrs: Any) -> NDArray[Any]:
    params = [relay.var(f"x{k}", a.shape, str(a.dtype)) for k, a in enumerate(arrays)]
    mod = relay.module(relay.Function(tuple(params), relay.call(name, *params, **attrs)))
    return compiler.evaluate(mod, list(arrays))[0]


DATA = np.array([[[1, -2], [3, 4]], [[-5, 6], [7, -7]]], np.int32)


@pytest.mark.parametrize(
    ("attrs", "axes"),
    [
        ({}, (0, 1, 2)),
        ({"axis": ()}, (0, 1, 2)),
        ({"axis": 1}, (1,)),
        ({"axis": (-1, 0)}, (0, 2)),
        ({"axis": 1, "exclude": True}, (0, 2)),
        ({"axis": (), "exclude": True}, (0, 1, 2)),
    ],
)
@pytest.mark.parametrize("keepdims", [False, True])
def test_axes_are_named_counted_back_or_excluded(
    attrs: dict[str, Any], axes: tuple[int, ...], keepdims: bool
) -> None:
    want = DATA.sum(axis=axes, keepdims=keepdims)
    np.testing.assert_array_equal(run("sum", DATA, **attrs, keepdims=keepdims), want)
    np.testing.assert_array_equal(
        run("max", DATA, **attrs, keepdims=keepdims), DATA.max(axis=axes, keepdims=keepdims)
    )


def test_the_mean_of_integers_truncates_toward_zero() -> None:
    assert run("mean", np.array([-3, -4], np.int8)).item() == -3
    assert run("mean", np.array([127, 127, 127], np.int8)).item() == 127


def test_variance_divides_by_n_or_one_less() -> None:
    data = np.array([1.0, 2.0, 3.0, 6.0], np.float32)
    mean = np.array([3.0], np.float32)
    assert run("variance", data, mean).item() == 3.5
    assert run("variance", data, mean, unbiased=True).item() == pytest.approx(14 / 3)


def test_arg_reductions_choose_the_first_or_the_last() -> None:
    data = np.array([[1, 3, 3], [2, 2, 0]], np.int8)
    assert run("argmax", data, axis=1).tolist() == [1, 0]
    assert run("argmax", data, axis=1, select_last_index=True).tolist() == [2, 1]
    assert run("argmin", data, axis=1, keepdims=True).tolist() == [[0], [2]]
    assert run("argmax", data).item() == 1
    assert run("argmax", data, dtype="int64").dtype == np.int64


def test_cumsum_can_leave_the_element_itself_out() -> None:
    data = np.array([[1, 2, 3]], np.int32)
    assert run("cumsum", data, axis=1).tolist() == [[1, 3, 6]]
    assert run("cumsum", data, axis=1, exclusive=True).tolist() == [[0, 1, 3]]


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_sums_of_elements_in_a_row_are_no_bool(dtype: str) -> None:
    data = relay.var("x", (2, 3), dtype)
    how = {} if dtype == "bool" else {"dtype": "bool"}
    with pytest.raises(TypeInferenceError, match="sums are no bool"):
        relay.module(relay.Function((data,), relay.op.cumsum(data, axis=1, **how)))


def test_logsumexp_does_not_overflow() -> None:
    data = np.array([1000.0, 1000.0], np.float32)
    assert run("logsumexp", data).item() == pytest.approx(1000 + np.log(2))


def test_an_axis_outside_the_rank_is_a_type_error() -> None:
    with pytest.raises(TypeInferenceError, match="axis 3"):
        run("sum", DATA, axis=3)
    with pytest.raises(TypeInferenceError, match="twice"):
        run("sum", DATA, axis=(0, -3))


TRUTH = np.array([[True, False, True], [True, True, True], [False, False, False]])


@pytest.mark.parametrize("executor", ["reference", "c"])
@pytest.mark.parametrize("attrs", [{}, {"axis": 1}, {"axis": 0, "keepdims": True}])
def test_the_largest_of_bools_is_any_and_the_smallest_all(
    attrs: dict[str, Any], executor: str
) -> None:
    x = relay.var("x", (3, 3), "bool")
    for name, wanted in (("max", TRUTH.max), ("min", TRUTH.min)):
        mod = relay.module(relay.call(name, x, **attrs))
        (got,) = compiler.evaluate(mod, [TRUTH], executor=executor)
        assert got.dtype == np.bool_
        np.testing.assert_array_equal(got, wanted(**attrs))


@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_of_bools_are_exported(name: str) -> None:
    x = relay.var("x", (3, 3), "bool")
    mod = relay.module(relay.call(name, x, axis=1))
    (got,) = OrtExecutor(to_onnx(mod)).run([TRUTH])
    np.testing.assert_array_equal(got, getattr(TRUTH, name)(axis=1))


def test_sums_of_bools_are_refused() -> None:
    with pytest.raises(TypeInferenceError, match="numbers is needed"):
        run("sum", TRUTH)
