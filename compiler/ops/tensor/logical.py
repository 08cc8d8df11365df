"""logical_and, logical_or, logical_xor, logical_not on bool; isnan, isinf, isfinite on floats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import TypeRelation, result_rel
from compiler.lir.scalars import Bin, BoolImm, Scalar, Un
from compiler.ops.arg_types import tensor
from compiler.ops.rules.lower import FLower, binary, elementwise, like_first
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel, check_numbers

_BINARY = {
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
}
_QUESTIONS = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}


def _question_rel(op: str) -> TypeRelation:
    def infer(types: Sequence[Any], attrs: Any) -> Type:
        data = tensor(op, types, 0, "data")
        if op == "logical_not":
            check_numbers(op, data.dtype, "bool")
        return TensorType(data.shape, "bool")

    return result_rel(infer)


def _register_binary(name: str, function: Any) -> None:
    op = register_op(
        name,
        arg_names=("lhs", "rhs"),
        rel=broadcast_rel(name, numbers="bool"),
        pattern=OpPattern.BROADCAST,
    )

    @FNumpyCompute.register(op)
    def compute(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
        return [function(args[0], args[1])]


def _register_question(name: str, function: Any) -> None:
    op = register_op(name, arg_names=("data",), rel=_question_rel(name), pattern=OpPattern.ELEMWISE)

    @FNumpyCompute.register(op)
    def compute(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
        return [function(args[0])]


for _name, _function in _BINARY.items():
    _register_binary(_name, _function)
for _name, _ask in {**_QUESTIONS, "logical_not": np.logical_not}.items():
    _register_question(_name, _ask)


def _is_nan(attrs: Any, x: Scalar) -> Scalar:
    return Bin("!=", x, x) if x.dtype.startswith("float") else BoolImm(False)


def _is_infinite(attrs: Any, x: Scalar) -> Scalar:
    if not x.dtype.startswith("float"):
        return BoolImm(False)
    return Bin("==", Un("abs", x), like_first(np.inf, x))


def _is_finite(attrs: Any, x: Scalar) -> Scalar:
    if not x.dtype.startswith("float"):
        return BoolImm(True)
    return Bin("<", Un("abs", x), like_first(np.inf, x))


FLower.register("logical_and")(binary("and"))
FLower.register("logical_or")(binary("or"))
FLower.register("logical_xor")(binary("xor"))
FLower.register("logical_not")(elementwise(lambda attrs, x: Un("not", x)))
FLower.register("isnan")(elementwise(_is_nan, reads=2))
FLower.register("isinf")(elementwise(_is_infinite))
FLower.register("isfinite")(elementwise(_is_finite))
