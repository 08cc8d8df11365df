"""The algebra of SimplifyExpr."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay, transform
from compiler.ir.expr import Expr

op = relay.op
x = relay.var("x", (2, 3, 4))
image = relay.var("image", (1, 2, 6, 6))
kernel = relay.const(np.random.default_rng(3).standard_normal((3, 2, 3, 3)).astype(np.float32))


def simplified(body: Expr) -> tuple[Any, Any]:
    mod = relay.module(body)
    return mod, transform.SimplifyExpr()(mod)


def becomes(body: Expr, expected: Expr, rtol: float = 0.0) -> None:
    mod, new = simplified(body)
    compiler.assert_structural_equal(new["main"].body, relay.module(expected)["main"].body, True)
    inputs = [
        np.random.default_rng(1).standard_normal(p.type_annotation.shape).astype(np.float32)
        for p in mod["main"].params
    ]
    (want,), (got,) = compiler.evaluate(mod, inputs), compiler.evaluate(new, inputs)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0)


def stays(body: Expr) -> None:
    mod, new = simplified(body)
    assert new["main"] is mod["main"]


def test_reshapes_merge_and_cancel() -> None:
    twice = op.reshape(op.reshape(x, newshape=[6, 4]), newshape=[0, 2, 2])
    becomes(twice, op.reshape(x, newshape=[6, 2, 2]))
    becomes(op.tanh(op.reshape(op.reshape(x, newshape=[-1]), newshape=[2, 3, 4])), op.tanh(x))
    becomes(op.tanh(op.reshape(x, newshape=[2, 3, 4])), op.tanh(x))
    thrice = op.reshape(twice, newshape=[24])
    becomes(thrice, op.reshape(x, newshape=[24]))


def test_squeeze_and_expand_dims_cancel() -> None:
    y = op.squeeze(op.expand_dims(x, axis=1), axis=[1])
    becomes(op.tanh(y), op.tanh(x))
    stays(op.squeeze(op.expand_dims(relay.var("x", (1, 3)), axis=0), axis=[0, 1]))
    z = relay.var("z", (1, 3))
    becomes(op.tanh(op.expand_dims(op.squeeze(z, axis=[0]), axis=0)), op.tanh(z))


def test_transposes_compose_or_cancel() -> None:
    becomes(
        op.transpose(op.transpose(x, axes=[1, 0, 2]), axes=[2, 0, 1]),
        op.transpose(x, axes=[2, 1, 0]),
    )
    becomes(op.tanh(op.transpose(op.transpose(x))), op.tanh(x))
    becomes(op.tanh(op.transpose(x, axes=[0, 1, -1])), op.tanh(x))
    stays(op.transpose(x, axes=[1, 0, 2]))


def test_a_cast_to_the_same_dtype_goes_away() -> None:
    becomes(op.tanh(op.cast(x, dtype="float32")), op.tanh(x))
    stays(op.cast(x, dtype="float16"))


@pytest.mark.parametrize(
    "build",
    [
        lambda: op.add(x, relay.const(0.0)),
        lambda: op.add(relay.const(0.0), x),
        lambda: op.subtract(x, relay.const(0.0)),
        lambda: op.multiply(x, relay.const(np.ones((3, 1), np.float32))),
        lambda: op.multiply(relay.const(1.0), x),
        lambda: op.divide(x, relay.const(1.0)),
    ],
)
def test_neutral_operands_go_away(build: Any) -> None:
    becomes(op.tanh(build()), op.tanh(x))


def test_operands_that_are_not_neutral_stay() -> None:
    stays(op.subtract(relay.const(0.0), x))
    stays(op.divide(relay.const(1.0), x))
    stays(op.add(x, relay.const(1e-30)))
    # Broadcasting makes the result larger than x.
    stays(op.add(x, relay.const(np.zeros((5, 1, 1, 1), np.float32))))
    stays(op.multiply(relay.var("y", (1, 4)), relay.const(np.ones((3, 4), np.float32))))


def test_division_by_a_float_constant_becomes_multiplication() -> None:
    becomes(op.divide(x, relay.const(4.0)), op.multiply(x, relay.const(0.25)))
    c = np.array([3.0, 0.5, 7.0, 2.0], np.float32)
    # 1/3 and 1/7 are rounded, so the product may differ in the last bit.
    becomes(op.divide(x, relay.const(c)), op.multiply(x, relay.const(1 / c)), rtol=3e-7)


def test_division_by_zero_and_by_integers_stays() -> None:
    stays(op.divide(x, relay.const(0.0)))
    n = relay.var("n", (4,), "int32")
    stays(op.divide(n, relay.const(4, "int32")))


def test_clips_merge() -> None:
    becomes(
        op.clip(op.clip(x, 0.0, 6.0), -1.0, 4.0),
        op.clip(x, 0.0, 4.0),
    )
    becomes(op.clip(op.clip(x, 0.0, 1.0), 2.0, 3.0), op.clip(x, 2.0, 2.0))
    stays(op.clip(op.clip(x, 1.0, 0.0), 0.0, 3.0))


def test_where_on_a_constant_condition_is_the_branch() -> None:
    y = relay.var("y", (2, 3, 4))
    becomes(op.tanh(op.where(relay.const(True), x, y)), op.tanh(x))
    becomes(op.tanh(op.where(relay.const(np.zeros((4,), bool)), x, y)), op.tanh(y))
    stays(op.where(relay.const(np.array([True, False, True, True])), x, y))
    stays(op.where(relay.const(np.ones((5, 2, 3, 4), bool)), x, y))


def test_concatenation_of_one_and_the_whole_slice_go_away() -> None:
    becomes(op.tanh(op.concatenate([x], axis=1)), op.tanh(x))
    becomes(op.tanh(op.strided_slice(x, begin=[0, 0], end=[9, 9])), op.tanh(x))
    stays(op.strided_slice(x, begin=[0, -1, 0], end=[2, -9, 4], strides=[1, -1, 1]))
    stays(op.strided_slice(x, begin=[0, 1], end=[2, 3]))


def padded(value: float, *width: tuple[int, int]) -> Expr:
    return op.nn.pad(image, relay.const(value), pad_width=((0, 0), (0, 0), *width))


def test_a_zero_pad_moves_into_a_convolution() -> None:
    becomes(
        op.nn.conv2d(padded(0.0, (1, 2), (0, 1)), kernel, padding=1),
        op.nn.conv2d(image, kernel, padding=(2, 1, 3, 2)),
        rtol=1e-6,
    )
    stays(op.nn.conv2d(padded(1.0, (1, 1), (1, 1)), kernel))
    stays(
        op.nn.conv2d(
            op.nn.pad(image, relay.const(0.0), pad_width=((0, 1), (0, 0), (1, 1), (1, 1))), kernel
        )
    )
    edge = op.nn.pad(
        image, relay.const(0.0), pad_width=((0, 0), (0, 0), (1, 1), (1, 1)), pad_mode="edge"
    )
    stays(op.nn.conv2d(edge, kernel))


def test_pads_move_into_pools_that_pad_with_the_same_value() -> None:
    ring = (1, 1), (1, 1)
    becomes(
        op.nn.max_pool2d(padded(-np.inf, *ring), pool_size=(3, 3)),
        op.nn.max_pool2d(image, pool_size=(3, 3), padding=1),
    )
    stays(op.nn.max_pool2d(padded(0.0, *ring), pool_size=(3, 3)))
    becomes(
        op.nn.avg_pool2d(padded(0.0, *ring), pool_size=(3, 3)),
        op.nn.avg_pool2d(image, pool_size=(3, 3), padding=1, count_include_pad=True),
        rtol=1e-6,
    )
    stays(op.nn.avg_pool2d(padded(0.0, *ring), pool_size=(3, 3), padding=1))
    becomes(
        op.nn.avg_pool2d(padded(0.0, *ring), pool_size=(4, 4), padding=1, count_include_pad=True),
        op.nn.avg_pool2d(image, pool_size=(4, 4), padding=2, count_include_pad=True),
        rtol=1e-6,
    )


def test_rules_see_what_rules_below_them_made() -> None:
    y = op.add(op.transpose(x), relay.const(0.0))
    becomes(op.tanh(op.transpose(op.multiply(y, relay.const(1.0)))), op.tanh(x))


def test_a_deep_chain_of_reshapes_becomes_one() -> None:
    y: Expr = x
    for i in range(3_000):
        y = op.reshape(y, newshape=[24] if i % 2 else [4, 6])
    _, new = simplified(y)
    compiler.assert_structural_equal(new["main"].body, op.reshape(x, newshape=[24]), True)
