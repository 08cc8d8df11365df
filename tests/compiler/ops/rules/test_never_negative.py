"""What FNeverNegative says of an operator is true of its values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Op, Var
from compiler.ir.ty import TensorType, TupleType, Type, tensor_fields
from compiler.ops.arg_types import static
from compiler.ops.evaluate import evaluate_op
from compiler.ops.rules.never_negative import FNeverNegative, never_negative
from tests.compiler.random_graphs import accepted_calls
from tests.each import each

TRIES = 400
SQ = "relay.op.annotation.simulated_quantize"


def value_of(ty: Type, positive: bool, rng: np.random.Generator) -> Any:
    if isinstance(ty, TupleType):
        return tuple(value_of(field, positive, rng) for field in ty.fields)
    assert isinstance(ty, TensorType)
    values = rng.integers(0 if positive else -3, 4, ty.concrete_shape)
    return values.astype(ty.dtype)


def is_plain(ty: Type) -> bool:
    return all(
        ty.dtype == "float32" and static(ty.shape) and ty.num_elements > 0
        for ty in tensor_fields(ty)
    )


# The mark of an open loop has no value of its own. simulated_quantize rounds what it reads, so its
# sign is the operand's; its scale must be positive.
@pytest.mark.parametrize("name", sorted(set(FNeverNegative.names()) - {SQ, "scan.step"}))
def test_no_result_is_below_zero_where_the_rule_says_so(name: str) -> None:
    op, rng = Op.get(name), np.random.default_rng(1)
    rule = FNeverNegative.require(op)
    calls = accepted_calls(op, 3, TRIES)[0] + accepted_calls(op, 4, TRIES, vary_attrs=False)[0]
    checked = 0
    for attrs, types, result in calls:
        if not all(is_plain(ty) for ty in types):
            continue
        signs = tuple(bool(rng.integers(0, 4)) for _ in types)
        call = Call(op, tuple(Var("x", ty) for ty in types), attrs)
        if not rule(call, signs):
            continue
        values = [value_of(ty, sign, rng) for ty, sign in zip(types, signs)]
        found = evaluate_op(op, attrs, values, result)
        for part in found if isinstance(found, tuple) else (found,):
            # Windows of nothing but padding have no largest value: -inf.
            assert not (part[np.isfinite(part)] < 0).any(), (attrs, signs)
        checked += 1
    # Places to pick from are integers; random ones hardly ever meet floats to pick.
    assert checked > 0 or name in ("gather", "gather_nd", "scatter_nd", "take")


def test_never_negative_follows_signs_through_a_graph() -> None:
    op = relay.op
    x = relay.var("x", (1, 4))
    positive: list[Expr] = [op.nn.relu(x), op.sigmoid(x), op.clip(x, a_min=0.0, a_max=6.0)]
    positive.append(op.add(positive[0], positive[1]))
    positive.append(op.concatenate(relay.Tuple((positive[0], positive[2])), axis=1))
    positive.append(op.maximum(x, positive[1]))
    signed: list[Expr] = [x, op.negative(positive[0]), op.clip(x, a_min=-1.0, a_max=6.0)]
    signed.append(op.add(x, positive[0]))
    signed.append(op.subtract(positive[0], positive[1]))
    for expected, nodes in ((True, positive), (False, signed)):
        for node in each(nodes):
            assert (node in never_negative(list(post_order(node)))) is expected


def test_a_cubic_resize_overshoots_and_a_nearest_one_does_not() -> None:
    x = relay.op.nn.relu(relay.var("x", (1, 1, 4, 4)))
    for method, expected in (("nearest_neighbor", True), ("linear", True), ("cubic", False)):
        node = relay.op.image.resize2d(x, size=(7, 7), method=method)
        assert (node in never_negative(list(post_order(node)))) is expected
