from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.errors import TypeInferenceError
from compiler.ir.ty import Any, TensorType


@pytest.mark.parametrize("dim", [-1, 1.5, "n", None, True])
def test_what_is_not_a_dimension_is_refused(dim: object) -> None:
    with pytest.raises(TypeInferenceError, match="is not a dimension"):
        TensorType((2, dim))  # type: ignore[arg-type]


def test_an_unknown_dtype_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeInferenceError, match="float32"):
        TensorType((2,), "float31")


def test_numpy_integers_are_dimensions_and_become_ints() -> None:
    ty = TensorType((np.int64(2), Any(), 0))  # type: ignore[arg-type]
    assert [type(d) for d in ty.shape] == [int, Any, int]


def test_a_variable_takes_the_dtype_of_a_scalar() -> None:
    assert relay.var("x", "int32").type_annotation == TensorType((), "int32")
