"""Each condition and limit, on a call that meets it and one that does not."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.fusion.hardware.conditions import parse_condition, split_condition
from compiler.fusion.hardware.dfg import Creator, Node
from compiler.fusion.hardware.limits import Limits
from compiler.ir.expr import Call, Expr

nn = relay.op.nn
X = relay.var("x", (1, 4, 8, 8))
Y = relay.var("y", (1, 4, 8, 8))
RESHAPED, RESHAPED_Y = (relay.op.reshape(v, newshape=(1, 4, 8, 8)) for v in (X, Y))
SCALAR = relay.const(2.0)
CHANNEL = relay.const(np.ones((4, 1, 1), "float32"))
FULL = relay.const(np.ones((1, 4, 8, 8), "float32"))
TOKENS = relay.var("t", (1, 9, 6))
FEATURE = relay.const(np.ones(6, "float32"))
WEIGHT = relay.const(np.ones((4, 4, 3, 3), "float32"))


def node_of(result: Expr, call: Expr | None = None) -> Node:
    """The DFG node of ``call`` (the result itself unless given) in a typed function."""
    wanted = result if call is None else call
    assert isinstance(wanted, Call)
    mod = relay.module(result)
    nodes = [n for n in Creator.prepare(mod["main"]).calls() if n.op_name == wanted.op.name]
    return nodes[0]


def conv(**attrs: object) -> Call:
    return nn.conv2d(X, WEIGHT, **attrs)


def pad(*width: tuple[int, int], value: float = 0.0) -> Call:
    return nn.pad(X, value, pad_width=width)


DEPTHWISE = nn.conv2d(X, relay.const(np.ones((4, 1, 1, 1), "float32")), groups=4)
NO = (0, 0)
POOLED = pad(NO, NO, (1, 1), (1, 1))
HOLDING = [
    ("const_operand(1)", conv(), relay.op.add(X, Y)),
    ('const_operand("any")', relay.op.add(SCALAR, X), relay.op.add(X, Y)),
    ("no_const_operand", relay.op.add(X, Y), relay.op.add(X, SCALAR)),
    ("distinct_operands", relay.op.add(X, Y), relay.op.add(X, X)),
    ("distinct_operands", relay.op.add(RESHAPED_Y, X), relay.op.add(RESHAPED, X)),
    ("same_shape_operands", relay.op.add(X, Y), relay.op.add(X, relay.var("z", (4, 1, 1)))),
    ("scalar_const", relay.op.add(X, SCALAR), relay.op.add(X, CHANNEL)),
    ("scalar_or_channel_const", relay.op.add(X, CHANNEL), relay.op.add(X, FULL)),
    ("scalar_or_channel_const", relay.op.add(X, SCALAR), relay.op.add(X, Y)),
    ("scalar_or_channel_const", relay.op.add(TOKENS, FEATURE), relay.op.add(X, Y)),
    ("attr(groups, ==, 1)", conv(), DEPTHWISE),
    ("attr(groups, !=, 4)", conv(), DEPTHWISE),
    ("attr(groups, <=, 1)", conv(), DEPTHWISE),
    ("attr(strides, in, [[1, 1], [2, 2]])", conv(strides=2), conv(strides=3)),
    ('attr(data_layout, ==, "NCHW")', conv(), None),
    # An attribute that is unset, and a list, are neither below nor above a number.
    ("attr(channels, <=, 4)", conv(channels=4), conv()),
    ("attr(channels, >=, 4)", conv(channels=4), conv()),
    ("dtype_in(float32)", relay.op.add(X, Y), relay.op.cast(X, dtype="int8")),
    ("dtype_in([int8, float32])", relay.op.cast(X, dtype="int8"), relay.op.cast(X, dtype="int32")),
    ("spatial_pad_only", pad(NO, NO, (1, 1), (1, 1)), pad(NO, (1, 0), (1, 1), (1, 1))),
    ("spatial_pad_only", pad(NO, NO, (1, 1), (1, 1)), pad(NO, NO, (-1, 1), (1, 1))),
    ("max_const_bytes(576)", conv(), nn.conv2d(X, relay.const(np.ones((5, 4, 3, 3), "f")))),
]


@pytest.mark.parametrize(("text", "holds", "fails"), HOLDING, ids=[h[0] for h in HOLDING])
def test_a_condition_tells_calls_apart(text: str, holds: Call, fails: Call | None) -> None:
    assert parse_condition(text, holds.op).holds(node_of(holds))  # type: ignore[arg-type]
    if fails is not None:
        assert not parse_condition(text, fails.op).holds(node_of(fails))  # type: ignore[arg-type]


@pytest.mark.parametrize("comparison", ["<=", ">="])
def test_a_list_compares_with_no_number(comparison: str) -> None:
    condition = parse_condition(f"attr(strides, {comparison}, 2)", conv().op)  # type: ignore[arg-type]
    assert not condition.holds(node_of(conv(strides=2)))


def test_sole_consumer_looks_at_the_users_of_the_value() -> None:
    condition = parse_condition("sole_consumer_in(nn.max_pool2d, nn.avg_pool2d)", POOLED.op)  # type: ignore[arg-type]
    pooled = nn.max_pool2d(POOLED, pool_size=(2, 2))
    assert condition.holds(node_of(pooled, POOLED))
    assert not condition.holds(node_of(nn.relu(POOLED), POOLED))
    assert not condition.holds(node_of(POOLED))
    both = relay.Tuple((pooled, nn.relu(POOLED)))
    assert not condition.holds(node_of(both, POOLED))


def test_arguments_are_numbers_words_texts_and_lists() -> None:
    assert split_condition("no_const_operand") == ("no_const_operand", [])
    assert split_condition("attr(a, ==, -1.5)") == ("attr", ["a", "==", -1.5])
    parsed = split_condition("""attr(x, in, [[2, "b c"], ['d'], true, none])""")
    assert parsed == ("attr", ["x", "in", [[2, "b c"], ["d"], True, None]])
    assert split_condition("f(" + "[" * 5000 + "]" * 5000 + ")")[0] == "f"


POOL = nn.max_pool2d(X, pool_size=(3, 3))
LIMITED = [
    (Limits(max_kernel=3), conv(), None),
    (Limits(max_kernel=2), conv(), "max_kernel 2: the window is 3 x 3"),
    (Limits(max_kernel=3), POOL, None),
    (Limits(max_kernel=7), nn.global_avg_pool2d(X), "max_kernel 7: the window is 8 x 8"),
    (Limits(max_kernel=1), relay.op.add(X, Y), None),
    (Limits(max_channels=4), conv(), None),
    (Limits(max_channels=3), conv(), "max_channels 3: the call has 4 x 4 channels"),
    (Limits(buffer_bytes=1600), conv(), None),
    (Limits(buffer_bytes=1599), conv(), "buffer_bytes 1599: the operands take 1600"),
]


@pytest.mark.parametrize(("limits", "call", "refusal"), LIMITED)
def test_a_limit_refuses_what_exceeds_it(limits: Limits, call: Call, refusal: str | None) -> None:
    assert limits.refusal(node_of(call)) == refusal


def test_sizes_that_are_not_known_are_refused() -> None:
    data = relay.var("x", (relay.AnyDim(), 4, 8, 8))
    node = node_of(nn.relu(data))
    assert Limits().refusal(node) is None
    assert Limits(buffer_bytes=1 << 40).refusal(node) is not None
    assert Limits(max_channels=1 << 40).refusal(node) is not None
