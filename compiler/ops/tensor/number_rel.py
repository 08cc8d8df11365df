"""The identity relation for operators that take one tensor of numbers."""

from __future__ import annotations

from typing import Any

from compiler.errors import TypeInferenceError
from compiler.ir.ty import Type, is_float
from compiler.ir.type_relation import TypeRelation, result_rel
from compiler.ops.arg_types import Types, tensor


def number_rel(op: str, floats_only: bool = False, bools: bool = False) -> TypeRelation:
    """Result type = type of argument 0.

    Args:
        op: name for error messages.
        floats_only: refuse integers.
        bools: accept bool.
    Raises:
        TypeInferenceError: (from the relation) the data are of another kind.
    """

    def infer(types: Types, attrs: Any) -> Type:
        data = tensor(op, types, 0, "data")
        if data.dtype == "bool" and not bools:
            raise TypeInferenceError(
                f"{op}: argument 0 (data) is {data}, numbers are needed", fix="insert a cast"
            )
        if floats_only and not is_float(data.dtype):
            raise TypeInferenceError(
                f"{op}: argument 0 (data) is {data}, a float dtype is needed", fix="insert a cast"
            )
        return data

    return result_rel(infer)
