"""The identity relation for operators that take one tensor of numbers."""

from __future__ import annotations

from typing import Any

from compiler.ir.ty import Type
from compiler.ir.type_relation import TypeRelation, result_rel
from compiler.ops.arg_types import Types, check_floats, check_no_bools, tensor


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
        if not bools:
            check_no_bools(op, data)
        if floats_only:
            check_floats(op, data)
        return data

    return result_rel(infer)
