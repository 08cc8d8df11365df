"""Accumulators are narrowed in front of moves, but of those that pick few of their elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, is_op_call
from compiler.quantize import QConfig
from tests.compiler.quantize.candidates import calibrated, const

op, nn = relay.op, relay.op.nn
MOVES: dict[str, tuple[Callable[[Any], Any], str, bool]] = {
    "repeated places": (
        lambda x: op.take(x, relay.const(np.array([0, 1, 1, 2, 5, 5, 3, 4])), axis=2),
        "take",
        True,
    ),
    "one place": (lambda x: op.take(x, relay.const(np.array([2])), axis=2), "take", False),
    "zeros": (
        lambda x: nn.pad(x, relay.const(np.float32(0)), pad_width=((0, 0), (0, 0), (2, 1), (0, 0))),
        "nn.pad",
        True,
    ),
    "another value": (
        lambda x: nn.pad(x, relay.const(np.float32(9)), pad_width=((0, 0), (0, 0), (2, 1), (0, 0))),
        "nn.pad",
        False,
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_in_front_of_a_product_is_narrow_where_it_reads_all(name: str) -> None:
    move, operator, narrow = MOVES[name]
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 3, 6, 6))
    moved = move(op.sigmoid(nn.conv2d(x, const(rng, 4, 3, 1, 1))))
    product = nn.conv2d(moved, const(rng, 2, 4, 1, 1))
    mod = relay.module(relay.Function([x], product))
    data = [{"x": rng.normal(size=(1, 3, 6, 6)).astype("float32")} for _ in range(2)]
    config = QConfig.recommended(calibrate_mode="max", weight_rounding="nearest")
    made = calibrated(mod, config, data).module["quantized_main"]
    (call,) = (n for n in post_order(made) if isinstance(n, Call) and is_op_call(n, operator))
    assert (call.args[0].tensor_type.dtype in ("int8", "uint8")) == narrow
