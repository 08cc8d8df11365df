"""right_shift, left_shift, bitwise_and, bitwise_or, bitwise_xor, bitwise_not on integers.

right_shift of a signed integer is arithmetic (floor division by 2^n); left_shift wraps.
logical_and, logical_or, logical_xor, logical_not on bool; isnan, isinf, isfinite on floats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words
from compiler.errors import EvaluationError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type, bits
from compiler.lir.scalars import Bin, BoolImm, Scalar, Un
from compiler.ops.arg_types import Types, integer_tensor, tensor
from compiler.ops.rules.lower import FLower, LowerRule, elementwise, like_first
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.tensor.broadcast import binary_op, check_numbers


def checked_shift(amount: NDArray[Any]) -> NDArray[Any]:
    """The shift amounts themselves.

    Raises:
        EvaluationError: one is outside [0, bits of the dtype).
    """
    width = amount.dtype.itemsize * 8
    if amount.size and (int(amount.min()) < 0 or int(amount.max()) >= width):
        raise EvaluationError(
            f"{amount.dtype} shifted by {int(amount.min())} to {int(amount.max())} bits",
            fix=f"keep them in [0, {width})",
        )
    return amount


def _right_shift(lhs: NDArray[Any], rhs: NDArray[Any]) -> Any:
    return np.right_shift(lhs, checked_shift(rhs))


def _left_shift(lhs: NDArray[Any], rhs: NDArray[Any]) -> Any:
    return np.left_shift(lhs, checked_shift(rhs))


for _name, _function, _symbol in (
    ("right_shift", _right_shift, ">>"),
    ("left_shift", _left_shift, "<<"),
    ("bitwise_and", np.bitwise_and, "&"),
    ("bitwise_or", np.bitwise_or, "|"),
    ("bitwise_xor", np.bitwise_xor, "^"),
):
    binary_op(_name, _function, _symbol, numbers="integer")


@define_op("bitwise_not", pattern=OpPattern.ELEMWISE)
def bitwise_not(types: Types, attrs: Any) -> Type:
    """Type of data, which holds integers."""
    return integer_tensor("bitwise_not", types, 0, "data")


FNumpyCompute.register(bitwise_not)(of_arrays(np.bitwise_not))
FLower.register(bitwise_not)(elementwise(lambda attrs, x: Un("not", x)))


@FBody.register("left_shift")
def left_shift_body(step: Step, words: Words) -> Value | None:
    """The product with a power of two, where the dtype holds one that is known; else a word."""
    data, amount = step.args
    if amount.data is None or not amount.data.size:
        return None
    dtype = data.type.dtype
    if amount.data.min() < 0 or amount.data.max() >= bits(dtype) - (dtype[0] != "u"):
        return None
    powers = np.left_shift(np.int64(1), amount.data.astype(np.int64))
    return words.multiply(data, words.constant(powers, dtype))


@FBody.register("bitwise_xor")
def bitwise_xor_body(step: Step, words: Words) -> Value:
    """What is in one of the two, less what is in both."""
    a, b = step.args
    either = words.binary("bitwise_or", a, b)
    return words.subtract(either, words.binary("bitwise_and", a, b))


@FBody.register("bitwise_not")
def bitwise_not_body(step: Step, words: Words) -> Value:
    """-1 - x, or the largest value less x."""
    return words.mirrored(step.args[0])


# ---- logical -------------------------------------------------------------------------------------


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
