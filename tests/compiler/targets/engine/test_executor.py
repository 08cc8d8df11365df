"""The executor plans, shares and calls what has no kernel."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from compiler import relay
from compiler.ir.expr import Expr
from compiler.targets.engine.executor import EngineExecutor
from tests.compiler.targets.engine.kernel_cases import agree, drawn, requantized
from tests.needs import NEEDS_C

pytestmark = NEEDS_C


def test_an_operator_without_a_kernel_runs_on_numpy() -> None:
    x = relay.var("x", (1, 4, 3), "int8")
    total = relay.op.cumsum(relay.op.cast(x, dtype="int32"), axis=1)
    mod = relay.module(relay.op.clip(total, a_min=-50, a_max=50))
    executor = agree(mod, drawn(np.random.default_rng(0), (1, 4, 3), "int8", False))
    assert executor.host_operators == ("cumsum",)


def test_an_input_may_be_reshaped_before_it_is_quantized() -> None:
    op, rng = relay.op, np.random.default_rng(0)
    x = relay.var("x", (1, 4, 33))
    image = op.expand_dims(x, axis=2)
    scaled = op.round(op.multiply(image, relay.const(np.float32(20))))
    data = op.cast(op.clip(scaled, a_min=-127, a_max=127), dtype="int8")
    weight = relay.const(drawn(rng, (5, 4, 1, 3), "int8", False))
    made = op.nn.conv2d(data, weight, padding=(0, 1, 0, 1), out_dtype="int32")
    executor = agree(relay.module(made), rng.normal(0, 3, (1, 4, 33)).astype(np.float32))
    assert executor.host_steps == 0


def test_long_chains_are_planned_without_recursion() -> None:
    x = relay.var("x", (1, 4), "int8")
    made: Expr = relay.op.cast(x, dtype="int32")
    for number in range(3000):
        made = relay.op.clip(relay.op.add(made, made), a_min=-90 + number % 7, a_max=100)
    assert agree(relay.module(made), drawn(np.random.default_rng(0), (1, 4), "int8", False))


def test_a_module_may_have_many_inputs_and_outputs() -> None:
    names = [relay.var(f"x{n}", (1, 3), "int8") for n in range(40)]
    mod = relay.module(relay.Tuple(tuple(relay.op.negative(x) for x in names)))
    rng = np.random.default_rng(0)
    agree(mod, *(drawn(rng, (1, 3), "int8", True) for _ in names))


def test_many_threads_share_a_batch_and_an_executor() -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 8, 9, 9), "uint8")
    weight = relay.const(drawn(rng, (24, 8, 3, 3), "int8", False))
    made = relay.op.nn.conv2d(x, weight, padding=1, out_dtype="int32")
    mod = relay.module(requantized(made, 24, 1, rng))
    data = drawn(rng, (13, 8, 9, 9), "uint8", False)
    wanted = [EngineExecutor(mod).run([data[i : i + 1]])[0] for i in range(13)]
    (found,) = EngineExecutor(mod).run_batch([data], 13, threads=3)
    np.testing.assert_array_equal(found, np.concatenate(wanted))


def test_many_threads_share_a_batch_whose_steps_are_not_all_kernels() -> None:
    x = relay.var("x", (1, 6), "float32")
    executor = EngineExecutor(relay.module(relay.op.multiply(x, relay.const(np.float32(3)))))
    assert executor.host_steps > 0
    data = np.arange(78, dtype=np.float32).reshape(13, 6)
    (found,) = executor.run_batch([data], 13, threads=3)
    np.testing.assert_array_equal(found, 3 * data)


def test_floats_that_overflow_on_numpy_are_not_warned_of() -> None:
    x = relay.var("x", (1, 6), "float32")
    executor = EngineExecutor(relay.module(relay.op.multiply(x, relay.const(np.float32(1e30)))))
    assert executor.host_steps > 0
    with warnings.catch_warnings(action="error"):
        (found,) = executor.run([np.full((1, 6), 1e30, np.float32)])
    assert np.isinf(found).all()


def test_four_threads_call_one_executor_at_a_time() -> None:
    rng = np.random.default_rng(1)
    x = relay.var("x", (1, 8, 9, 9), "uint8")
    weight = relay.const(drawn(rng, (24, 8, 3, 3), "int8", False))
    total = relay.op.nn.conv2d(x, weight, padding=1, out_dtype="int32")
    # A step of numpy in the middle: what Python holds is not shared either.
    made = relay.op.cumsum(requantized(total, 24, 1, rng), axis=1)
    executor = EngineExecutor(relay.module(made))
    data = drawn(rng, (40, 1, 8, 9, 9), "uint8", False)
    wanted = [executor.run([each])[0] for each in data]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: executor.run([each])[0], data))
    np.testing.assert_array_equal(found, wanted)
