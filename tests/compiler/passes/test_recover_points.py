from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import evaluate, relay, text
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.passes.recover_points import RecoverPoints
from compiler.quantize import Calibration, QConfig, prerequisite_optimize
from tests.each import each

op = relay.op
SCALE = 2.0**-5


def number(value: float) -> Expr:
    return relay.const(np.float32(value))


def clipped(x: Expr) -> Expr:
    steps = op.round_even(op.divide(x, number(SCALE)))
    return op.multiply(op.clip(steps, a_min=-128.0, a_max=127.0), number(SCALE))


def by_factors(x: Expr) -> Expr:
    steps = op.round_even(op.multiply(x, number(1 / SCALE)))
    limited = op.minimum(op.maximum(steps, number(-128)), number(127))
    return op.divide(limited, number(1 / SCALE))


def with_zero_point(x: Expr) -> Expr:
    steps = op.add(op.round_even(op.divide(x, number(SCALE))), number(128))
    codes = op.clip(steps, a_min=0.0, a_max=255.0)
    return op.multiply(op.subtract(codes, number(128)), number(SCALE))


def with_zero_point_in_front(x: Expr) -> Expr:
    steps = op.round_even(op.add(op.divide(x, number(SCALE)), number(128)))
    codes = op.clip(steps, a_min=0.0, a_max=255.0)
    return op.multiply(op.subtract(codes, number(128)), number(SCALE))


def module(build: Callable[[Expr], Expr]) -> IRModule:
    x = relay.var("x", (4, 64))
    return infer_module(IRModule.from_expr(relay.Function((x,), build(x))))


@pytest.mark.parametrize("build", [clipped, by_factors, with_zero_point, with_zero_point_in_front])
def test_fake_quantization_becomes_a_given_point(build: Callable[[Expr], Expr]) -> None:
    mod = module(build)
    new = RecoverPoints()(mod)
    (line,) = [line for line in text(new).splitlines() if "simulated_quantize" in line]
    line = line.replace(" /* ty=float32 */", "")
    assert "(%x, 0.03125f, -128f, 127f, " in line
    assert "given=True" in line
    data = [np.random.default_rng(0).normal(0, 3, (4, 64)).astype(np.float32)]
    np.testing.assert_array_equal(evaluate(new, data)[0], evaluate(mod, data)[0])


@pytest.mark.parametrize(
    "build",
    [
        lambda x: op.multiply(op.round_even(op.divide(x, number(0.5))), number(0.5)),
        lambda x: op.multiply(
            op.clip(op.round_even(op.divide(x, number(0.5))), a_min=-8.0, a_max=7.0), number(0.25)
        ),
        lambda x: op.multiply(
            op.clip(op.round_even(op.divide(x, number(0.5))), a_min=-7.5, a_max=7.5), number(0.5)
        ),
        lambda x: op.multiply(
            op.clip(
                op.add(op.round_even(op.divide(x, number(0.5))), number(8)), a_min=0.0, a_max=15.0
            ),
            number(0.5),
        ),
    ],
    ids=["no limits", "another scale", "limits between steps", "a zero point that stays"],
)
def test_other_rounding_stays(build: Callable[[Expr], Expr]) -> None:
    mod = module(build)
    assert RecoverPoints()(mod) is mod


def test_a_network_keeps_the_grids_that_it_was_trained_with() -> None:
    rng = np.random.default_rng(1)
    weight = rng.integers(-127, 128, (8, 64)).astype(np.float32) / 256
    mod = module(lambda x: by_factors(op.nn.dense(clipped(x), relay.const(weight))))
    mod = prerequisite_optimize(mod, None, 3, simplify=True)
    data = [{"x": rng.normal(0, 1, (4, 64)).astype(np.float32)} for _ in range(4)]
    integers = Calibration(mod, data).candidate(QConfig.recommended()).module
    for batch in each(data):
        np.testing.assert_array_equal(evaluate(integers, batch)[0], evaluate(mod, batch)[0])
