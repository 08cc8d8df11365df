from __future__ import annotations

import numpy as np
import pytest

from compiler import evaluate, relay, text
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.transform import SelectByPlace

op = relay.op


def module(body: Expr) -> IRModule:
    return infer_module(IRModule.from_expr(relay.Function((VAR,), body)))


VAR = relay.var("x", (2, 9))
X = op.nn.relu(VAR)
PAIR = op.topk(X, k=3, axis=1, ret_type="both", dtype="int64")
ORDERED: dict[str, Expr] = {
    "topk": op.add(
        relay.TupleGetItem(PAIR, 0), op.cast(relay.TupleGetItem(PAIR, 1), dtype="float32")
    ),
    "values": op.topk(X, k=4, axis=0 - 1, ret_type="values", is_ascend=True),
    "all places": op.topk(X, k=0, axis=1, ret_type="both"),
    "one_hot": op.one_hot(
        *(op.argmax(X, axis=[1]), relay.const(np.float32(5)), relay.const(np.float32(2))), depth=9
    ),
}


def test_values_are_picked_from_places() -> None:
    new = SelectByPlace()(module(ORDERED["topk"]))
    assert text(new, show_types=False, show_meta=False).strip().splitlines()[2:] == [
        "  %0 = nn.relu(%x);",
        '  %1 = topk(%0, k=3, axis=1, ret_type="indices", dtype="int64");',
        "  %2 = gather(%0, %1, axis=1);",
        '  %3 = cast(%1, dtype="float32");',
        "  add(%2, %3)",
        "}",
    ]


@pytest.mark.parametrize("name", ORDERED)
def test_results_are_the_same_and_equal_values_keep_their_order(name: str) -> None:
    mod = module(ORDERED[name])
    new = SelectByPlace()(mod)
    assert new is not mod
    data = np.random.default_rng(0).integers(0, 4, (2, 9)).astype("float32")
    for got, wanted in zip(evaluate(new, [data]), evaluate(mod, [data]), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_places_and_long_orders_are_left_alone() -> None:
    mod = module(op.topk(X, k=3, axis=1, ret_type="indices"))
    assert SelectByPlace()(mod) is mod
    long = relay.var("x", (1, 100))
    for data in (VAR, op.nn.relu(long)):  # what is given, and what is long
        var = VAR if data is VAR else long
        mod = infer_module(IRModule.from_expr(relay.Function((var,), op.topk(data, k=0, axis=1))))
        assert SelectByPlace()(mod) is mod
