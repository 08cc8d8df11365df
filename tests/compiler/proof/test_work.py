"""Declared work is what one run computes, told from types and attributes alone."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay, transform
from compiler.errors import ArtifactError
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.text.parser import parse
from compiler.proof.work import (
    KINDS,
    MAX_CPU_S,
    MAX_INPUTS,
    REPLAY_CPU_S,
    RUN_S_PER_UNIT,
    Work,
    check_work,
    declared_work,
    refusal_expected,
    replay_inputs,
    run_seconds,
)

op = relay.op


def work_of(call: Expr, *params: relay.Var) -> Work:
    return declared_work(infer_module(relay.module(relay.Function(params, call))))


def weight(*shape: int) -> relay.Constant:
    return relay.const(np.ones(shape, "int8"))


def test_products_count_their_multiplications() -> None:
    x = relay.var("x", (2, 6, 9, 9), "int8")
    plain = op.nn.conv2d(x, weight(4, 6, 3, 3), out_dtype="int32")
    assert work_of(plain, x).macs == 2 * 4 * 7 * 7 * 6 * 3 * 3
    grouped = op.nn.conv2d(x, weight(6, 1, 3, 3), groups=6, channels=6, out_dtype="int32")
    assert work_of(grouped, x).macs == 2 * 6 * 7 * 7 * 3 * 3
    y = relay.var("y", (5, 7), "int8")
    assert work_of(op.nn.dense(y, weight(3, 7), out_dtype="int32"), y).macs == 5 * 3 * 7


def test_a_loop_repeats_what_its_body_computes_and_holds_it_once() -> None:
    body = Work(macs=2, units=7, steps=5, calls=1)
    assert Work(steps=1).plus(body, 3) == Work(macs=6, units=21, steps=6, calls=3)
    assert Work().plus(body, 10**30).units < 10**30


def test_windows_and_other_operators_count_as_units() -> None:
    x = relay.var("x", (1, 1, 8, 8), "int8")
    pool = work_of(op.nn.max_pool2d(x, pool_size=(2, 4), strides=(2, 4)), x)
    assert pool.macs == 0
    relu = work_of(op.nn.relu(x), x)
    assert pool.units > 8 * relu.units
    assert (relu.macs, relu.steps, relu.calls) == (0, 1, 1)
    assert work_of(op.reshape(x, newshape=(64,)), x) == Work(steps=1, calls=1)


def test_a_transposed_convolution_of_no_channels_is_counted() -> None:
    x = relay.var("x", (1, 0, 3, 3), "int8")
    assert work_of(op.nn.conv2d_transpose(x, weight(0, 3, 2, 2), out_dtype="int32"), x).macs == 0


def test_a_large_window_costs_more_than_its_elements() -> None:
    """Each of its elements is an operation of its own in the reference and in the integer ONNX."""
    x = relay.var("x", (1, 1, 4, 4), "int8")
    padding = (4500, 4500, 4500, 4500)
    work = work_of(op.nn.avg_pool2d(x, pool_size=(9000, 9000), padding=padding), x)
    with pytest.raises(ArtifactError, match="CPU seconds for one run"):
        check_work(work)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_products_of_wide_integers_cost_more_than_of_bytes(dtype: str) -> None:
    x = relay.var("x", (5, 700), dtype)
    y = relay.const(np.ones((3, 700), dtype))
    wide = work_of(op.nn.dense(x, y, out_dtype=dtype), x)
    z = relay.var("z", (5, 700), "int8")
    narrow = work_of(op.nn.dense(z, weight(3, 700), out_dtype="int32"), z)
    assert wide.macs == narrow.macs
    assert wide.units > 8 * narrow.units


def test_a_function_counts_as_often_as_it_is_called() -> None:
    lines = ["def @f0(%x: Tensor[(4), int8]) { nn.relu(%x) }"]
    lines += [
        f"def @f{i}(%x: Tensor[(4), int8]) {{ @f{i - 1}(@f{i - 1}(%x)) }}" for i in range(1, 200)
    ]
    lines.append("def @main(%x: Tensor[(4), int8]) { @f5(%x) }")
    mod = infer_module(parse('#[version = "0.0.5"]\n' + "\n".join(lines)))
    assert declared_work(mod).steps == 32
    with pytest.raises(ArtifactError, match="CPU seconds for one run"):
        check_work(declared_work(mod, "f199"))


def test_a_lowered_function_counts_by_its_call() -> None:
    x = relay.var("x", (4,), "int8")
    mod = relay.module(relay.Function((x,), op.nn.relu(x)))
    work = declared_work(transform.LowerTE()(transform.FuseOps()(mod)))
    assert work.steps == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("@main(%x)", "calls itself"),
        ("if (True) { %x } else { nn.relu(%x) }", "holds a If"),
        ("let %f = fn (%y: Tensor[(4), int8]) { %y }; %f(%x)", "calls a value"),
        ("nn.relu(arange(0, max(cast(%x, dtype='int32')), 1, dtype='int32'))", "of unknown shape"),
    ],
)
def test_what_has_no_bound_is_refused(body: str, told: str) -> None:
    result = "Tensor[(?), int32]" if "arange" in body else "Tensor[(4), int8]"
    source = f"def @main(%x: Tensor[(4), int8]) -> {result} {{ {body} }}".replace("'", '"')
    with pytest.raises(ArtifactError, match=told):
        declared_work(infer_module(parse(f'#[version = "0.0.5"]\n{source}')))


UNITS = int(MAX_CPU_S / RUN_S_PER_UNIT)


def test_a_run_that_takes_longer_than_the_limit_is_refused() -> None:
    check_work(Work(units=UNITS - 10_000_000))
    with pytest.raises(ArtifactError, match=r"61\S* CPU seconds for one run"):
        check_work(Work(units=UNITS + 10**9))


def test_a_refusal_is_expected_of_the_products_in_8_bits() -> None:
    x = relay.var("x", (20_000, 2_000), "float32")

    def refusal(rows: int) -> str:
        weights = relay.const(np.ones((rows, 2_000), "float32"))
        return refusal_expected(
            infer_module(relay.module(relay.Function((x,), op.nn.dense(x, weights))))
        )

    assert refusal(100) == ""
    assert "will refuse the module without --allow-large" in refusal(5_000)


def test_work_decides_how_many_inputs_are_run() -> None:
    """A small module runs all; a large one a few, and one kind after the other is left out."""
    assert replay_inputs(Work(steps=40)) == MAX_INPUTS
    half = replay_inputs(Work(units=int(REPLAY_CPU_S / 10 / RUN_S_PER_UNIT)))
    assert 8 <= half <= 10
    assert replay_inputs(Work(units=UNITS // 10)) == KINDS
    assert replay_inputs(Work(units=UNITS // 2)) == 1
    assert replay_inputs(Work(units=100 * UNITS)) == 1


@pytest.mark.parametrize(
    ("shape", "weights", "seconds"),
    [((1, 197, 768), (3072, 768), 1), ((1, 64, 320, 320), (64, 64, 3, 3), 10)],
    ids=["a layer of a transformer", "a layer of a detector"],
)
def test_a_layer_of_a_true_size_network_is_far_from_the_limits(
    shape: tuple[int, ...], weights: tuple[int, ...], seconds: int
) -> None:
    x = relay.var("x", shape, "int8")
    product = op.nn.conv2d if len(shape) == 4 else op.nn.dense
    work = work_of(product(x, weight(*weights), out_dtype="int32"), x)
    assert run_seconds(work) < seconds


def test_a_loop_counts_its_body_in_every_step() -> None:
    def loop(length: int, body: str = "(nn.relu(%h),)") -> str:
        fn = f"fn (%h: Tensor[(4), int8]) {{ {body} }}"
        return f"scan({fn}, (%h,), (), (), length={length}, reverse_inputs=[], reverse_outputs=[])"

    def work(body: str) -> Work:
        text = '#[version = "0.0.5"]\ndef @main(%h: Tensor[(4), int8]) { ' + body + " }"
        return declared_work(infer_module(parse(text)))

    once, often = work(loop(1)), work(loop(1000))
    assert (often.steps, once.steps) == (2, 2), "a form holds the body once"
    assert often.calls == 1001
    nested = work(loop(50, f"({loop(1000)}.0,)"))
    assert nested.calls == 1 + 50 * 1001
    assert nested.steps == 3
