"""scale_of and may_be_divisor: which factors a weight may take over."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Call, Expr, Function, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.rules.scale_axis import Message, may_be_divisor, scale_of

X = Var("x", TensorType((1, 3, 4, 4), "float32"))
S = Var("s", TensorType((3, 1, 1), "float32"))


def scale_found(factor: Expr) -> Expr | None:
    """The factor of ``X * factor`` that a producer of ``X`` may take over along the channels."""
    product = relay.op.multiply(X, factor)
    call = infer_module(IRModule.from_expr(Function((X, S), product)))["main"].body
    assert isinstance(call, Call)
    return scale_of(call, call.args, Message(1), 0)


@pytest.mark.parametrize(("operators", "folds"), [(1, True), (60, True), (70, False)])
def test_a_factor_of_many_operators_is_no_part_of_a_weight(operators: int, folds: bool) -> None:
    factor: Expr = S
    for _ in range(operators):
        factor = relay.op.abs(factor)
    assert (scale_found(factor) is not None) is folds


@pytest.mark.parametrize(
    ("values", "divides"),
    [([1.0, -2.0], True), ([1.0, 0.0], False), ([1.0, 2.0**-25], False), ([], True)],
)
def test_a_constant_with_zeros_is_no_divisor(values: list[float], divides: bool) -> None:
    scale = relay.op.expand_dims(relay.const(np.array(values, np.float32)), axis=1)
    assert may_be_divisor(scale) is divides
    assert may_be_divisor(S)
