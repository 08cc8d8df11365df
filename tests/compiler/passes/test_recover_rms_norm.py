from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.passes.recover_rms_norm import RecoverRmsNorm
from compiler.transform import SimplifyInference

op = relay.op


def number(value: float) -> Expr:
    return relay.const(np.float32(value))


def mean_square(x: Expr) -> Expr:
    return op.mean(op.multiply(x, x), axis=(-1,), keepdims=True)


def length(x: Expr) -> Expr:
    return op.sum(op.power(x, number(2)), axis=(1,), keepdims=True)


FOUND: dict[str, Callable[[Expr], Expr]] = {
    "divided": lambda x: op.divide(x, op.sqrt(op.add(mean_square(x), number(1e-3)))),
    "times rsqrt": lambda x: op.multiply(op.rsqrt(op.add(number(1e-3), mean_square(x))), x),
    "times 1 / root": lambda x: op.multiply(
        x, op.divide(number(1), op.sqrt(op.add(mean_square(x), number(1e-3))))
    ),
    "l2": lambda x: op.nn.l2_normalize(x, eps=1e-6, axis=(2,)),
    "by its length": lambda x: op.divide(x, op.maximum(op.sqrt(length(x)), number(1e-6))),
    "at least 0.001": lambda x: op.divide(x, op.maximum(op.sqrt(length(x)), number(1e-3))),
    "clipped and spread": lambda x: op.divide(
        x,
        op.broadcast_to(
            op.clip(op.sqrt(length(x)), a_min=1e-6, a_max=float("inf")), shape=(2, 3, 4)
        ),
    ),
}
ROWS: dict[str, Callable[[Expr], Expr]] = {
    "axes of one element": lambda x: op.divide(
        x, op.sqrt(op.sum(op.multiply(x, x), axis=(1, 2), keepdims=True))
    ),
    "all axes": lambda x: op.divide(x, op.sqrt(op.sum(op.multiply(x, x), keepdims=True))),
}
KEPT: dict[str, Callable[[Expr], Expr]] = {
    "another tensor": lambda x: op.divide(op.nn.relu(x), op.sqrt(mean_square(x))),
    "a large bound": lambda x: op.divide(x, op.sqrt(op.maximum(mean_square(x), number(0.5)))),
    "two axes": lambda x: op.divide(
        x, op.sqrt(op.mean(op.multiply(x, x), axis=(1, 2), keepdims=True))
    ),
    "cubes": lambda x: op.divide(
        x, op.sqrt(op.mean(op.power(x, number(3)), axis=(1,), keepdims=True))
    ),
}


SHAPE, ROW = (2, 3, 4), (1, 1, 4)


def module(build: Callable[[Expr], Expr], shape: tuple[int, ...] = SHAPE) -> IRModule:
    x = relay.var("x", shape)
    mod = infer_module(IRModule.from_expr(relay.Function((x,), build(x))))
    return SimplifyInference()(mod)


def norms(mod: IRModule) -> list[Call]:
    return [n for n in post_order(mod["main"].body) if is_op_call(n, "nn.rms_norm")]  # type: ignore[misc]


@pytest.mark.parametrize(
    ("build", "shape"),
    [*((build, SHAPE) for build in FOUND.values()), *((build, ROW) for build in ROWS.values())],
    ids=[*FOUND, *ROWS],
)
def test_division_by_the_root_of_a_mean_square_is_one_call(
    build: Callable[[Expr], Expr], shape: tuple[int, ...]
) -> None:
    mod = module(build, shape)
    new = RecoverRmsNorm()(mod)
    assert len(norms(new)) == 1
    data = np.random.default_rng(0).normal(0, 3, shape).astype("float32")
    np.testing.assert_allclose(evaluate(new, [data])[0], evaluate(mod, [data])[0], rtol=1e-5)


@pytest.mark.parametrize("name", KEPT)
def test_other_arithmetic_is_left_alone(name: str) -> None:
    mod = module(KEPT[name])
    assert RecoverRmsNorm()(mod) is mod


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_the_norm_has_the_dtype_of_its_data(dtype: str) -> None:
    x = relay.var("x", (2, 3, 4), dtype)
    total = op.sum(op.multiply(x, x), axis=(2,), keepdims=True)
    divided = op.divide(x, op.sqrt(op.maximum(total, relay.const(np.asarray(1e-4, dtype)))))
    new = RecoverRmsNorm()(infer_module(IRModule.from_expr(relay.Function((x,), divided))))
    assert len(norms(new)) == 1
    assert new["main"].body.checked_type == x.type_annotation
