from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import relay
from compiler.errors import TypeInferenceError
from compiler.ir.ty import (
    MAX_NESTING,
    MAX_TYPE_PARTS,
    Any,
    FuncType,
    RefType,
    TensorType,
    TupleType,
    Type,
)


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


@pytest.mark.parametrize("shape", [(1 << 41,), (1 << 21, 1 << 20), (0, 1 << 41), (1,) * 33])
def test_a_tensor_beyond_2_to_the_40_elements_or_32_axes_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(TypeInferenceError, match="at most 32 axes and 2\\^40 elements"):
        TensorType(shape)


def test_a_tensor_of_2_to_the_40_elements_is_a_type() -> None:
    assert TensorType((1 << 20, 1 << 20)).num_elements == 1 << 40


@pytest.mark.parametrize(
    "double",
    [
        lambda ty: TupleType((ty, ty)),
        lambda ty: FuncType((ty,), ty),
        lambda ty: TupleType((RefType(ty), ty)),
    ],
)
def test_types_that_double_are_refused_before_they_are_endless(
    double: Callable[[Type], Type],
) -> None:
    def doubled(times: int) -> Type:
        ty: Type = TensorType(())
        for _ in range(times):
            ty = double(ty)
        return ty

    assert doubled(10).parts <= MAX_TYPE_PARTS
    with pytest.raises(TypeInferenceError, match=f"more than {MAX_TYPE_PARTS} others"):
        doubled(60)


def test_members_that_a_program_lists_are_not_bounded_until_something_repeats_them() -> None:
    """An imported graph has a parameter for each weight; calibration returns every tensor."""
    one = TensorType((1,))
    results = TupleType((one,) * (MAX_TYPE_PARTS + 1))
    whole = FuncType((one,) * (MAX_TYPE_PARTS + 1), results)
    assert whole.parts == 2 * MAX_TYPE_PARTS + 4
    with pytest.raises(TypeInferenceError, match=f"more than {MAX_TYPE_PARTS} others"):
        TupleType((results, results))


def test_a_type_may_be_nested_as_deep_as_its_text_may_be() -> None:
    ty: Type = TensorType(())
    for _ in range(MAX_NESTING - 1):
        ty = TupleType((ty,))
    assert (ty.depth, ty.parts) == (MAX_NESTING, MAX_NESTING)
    with pytest.raises(TypeInferenceError, match=f"nested more than {MAX_NESTING} deep"):
        TupleType((ty,))
