"""logical_and, logical_or, logical_xor, logical_not on bool; isnan, isinf, isfinite on floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.lir.scalars import Bin, BoolImm, Scalar, Un
from compiler.ops.arg_types import Types, tensor
from compiler.ops.rules.lower import FLower, LowerRule, elementwise, like_first
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.tensor.broadcast import binary_op, check_numbers

binary_op("logical_and", np.logical_and, "and", numbers="bool")
binary_op("logical_or", np.logical_or, "or", numbers="bool")
binary_op("logical_xor", np.logical_xor, "xor", numbers="bool")


def _question(name: str, function: Callable[..., Any], lower: LowerRule) -> None:
    @define_op(name, pattern=OpPattern.ELEMWISE)
    def op(types: Types, attrs: Any) -> Type:
        data = tensor(name, types, 0, "data")
        if name == "logical_not":
            check_numbers(name, data.dtype, "bool")
        return TensorType(data.shape, "bool")

    FNumpyCompute.register(op)(of_arrays(function))
    FLower.register(op)(lower)


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


_question("logical_not", np.logical_not, elementwise(lambda attrs, x: Un("not", x)))
_question("isnan", np.isnan, elementwise(_is_nan, reads=2))
_question("isinf", np.isinf, elementwise(_is_infinite))
_question("isfinite", np.isfinite, elementwise(_is_finite))


@FBody.register("logical_and", "logical_or", "logical_xor", "logical_not")
def logical_body(step: Step, words: Words) -> Value:
    """A choice by the first operand."""
    a, *others = step.args
    if not others:
        return words.negation(a)
    (b,) = others
    if step.name == "logical_and":
        return words.where(a, b, words.constant(False, "bool"))
    if step.name == "logical_or":
        return words.where(a, words.constant(True, "bool"), b)
    return words.where(a, words.negation(b), b)
