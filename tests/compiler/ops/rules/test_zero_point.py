"""FQZeroPoint: what operators say of zero points, and who may have one."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Op, Tuple, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.op import DEFAULT_LEVEL
from compiler.ir.ty import TensorType, Type, is_dynamic
from compiler.ops.annotation.attach_simulated_quantize import attach_simulated_quantize
from compiler.ops.evaluate import evaluate_op
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr
from compiler.ops.rules.zero_point import (
    FQZeroPoint,
    ZeroPoint,
    may_have_zero_point,
    plainly,
    zero_point_answer,
)
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.ranges.expressions import ExpressionRanges
from tests.compiler.random_graphs import accepted_calls, plain_attrs, random_value

SHIFT = 5


def keeps(name: str) -> bool:
    op = Op.get(name)
    try:
        return FQZeroPoint.require(op)(Call(op, (), plain_attrs(op)), 0) is ZeroPoint.KEEPS
    except (AttributeError, IndexError):
        return False  # its answer depends on attributes or operands


def is_int32(ty: Type) -> bool:
    return isinstance(ty, TensorType) and ty.dtype == "int32"


@pytest.mark.parametrize("name", [n for n in FQZeroPoint.names() if keeps(n)])
def test_what_keeps_a_zero_point_commutes_with_adding_a_constant(name: str) -> None:
    op, rng = Op.get(name), np.random.default_rng(2)
    checked = 0
    calls = accepted_calls(op, 5, 400)[0] + accepted_calls(op, 6, 400, vary_attrs=False)[0]
    for attrs, types, result in calls:
        if not is_int32(types[0]) or any(map(is_dynamic, types)):
            continue
        values = [random_value(ty, rng) for ty in types]
        if values[0].size == 0:  # type: ignore[union-attr]
            continue
        shifted = [values[0] + SHIFT, *values[1:]]  # type: ignore[operator]
        if name == "nn.pad":
            shifted[1] = values[1] + SHIFT  # type: ignore[operator]
        plain, moved = (evaluate_op(op, attrs, args, result) for args in (values, shifted))
        pairs = zip(plain, moved) if isinstance(plain, tuple) else ((plain, moved),)
        for one, other in pairs:
            # Windows of nothing but padding read the smallest integer in both.
            real = one != np.iinfo("int32").min
            np.testing.assert_array_equal(one[real] + SHIFT, other[real])
        checked += 1
    assert checked > 0


def test_every_answer_belongs_to_a_realize_rule() -> None:
    assert [name for name in FQZeroPoint.names() if name not in FQRealizeRewrite] == []


def point(value: relay.Expr) -> relay.Expr:
    return attach_simulated_quantize(value, QAnnotateKind.INPUT)


def test_one_reader_that_cannot_take_it_is_enough() -> None:
    op = relay.op
    x = relay.var("x", (1, 4, 4))
    held = point(x)
    moved = op.transpose(held, axes=(0, 2, 1))
    for result, expected in (
        (op.nn.softmax(moved), True),
        (op.nn.batch_matmul(moved, moved), False),
        (relay.Tuple((op.nn.softmax(moved), op.nn.batch_matmul(held, held))), False),
        (op.erf(moved), True),  # runs in float, over real values
    ):
        nodes = list(post_order(result))
        assert (held in may_have_zero_point(nodes)) is expected


def test_a_computed_weight_allows_none() -> None:
    op = relay.op
    x, w = relay.var("x", (2, 4)), relay.var("w", (3, 4))
    weight = attach_simulated_quantize(w, QAnnotateKind.WEIGHT)
    for rhs, expected in ((weight, True), (point(w), False)):
        held = point(x)
        result = op.nn.dense(held, rhs)
        params = [n for n in post_order(result) if isinstance(n, Var)]
        typed = infer_module(IRModule.from_expr(relay.Function(tuple(params), result)))
        nodes = list(post_order(typed["main"].body))
        (call,) = (n for n in nodes if isinstance(n, Call) and n.op is Op.get("nn.dense"))
        assert (call.args[0] in may_have_zero_point(nodes)) is expected


def test_a_zero_point_answer_does_not_hold_for_a_users_realize_rule() -> None:
    """Whoever registers another rule has not promised to look at zero points."""
    op = Op.get("squeeze")
    call = Call(op, (relay.var("x", (2, 2)),))
    assert zero_point_answer(call, 0) is ZeroPoint.KEEPS
    held = dict(FQRealizeRewrite._rules)
    try:
        FQRealizeRewrite.register(op, level=DEFAULT_LEVEL)(lambda ref_call, args, ctx: None)
        assert zero_point_answer(call, 0) is None
    finally:
        FQRealizeRewrite._rules = held


def test_integers_in_a_tuple_are_centred_however_deep_it_is_nested() -> None:
    scale = relay.const(np.float32(0.5))
    x = relay.var("x", (2,), "int8")
    value = QRealizeIntExpr(x, scale, "int8", ExpressionRanges().of, zero_point=3)
    nested: Expr = value
    for _ in range(10_000):
        nested = Tuple((nested,))
    assert plainly(nested, ZeroPoint.KEEPS, QConfig()) is nested
    result = plainly(nested, ZeroPoint.CENTRES, QConfig())
    while isinstance(result, Tuple):
        (result,) = result.fields
    assert isinstance(result, QRealizeIntExpr)
    assert (result.zero_point, result.dtype) == (0, "int32")
