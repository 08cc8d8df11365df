"""Declared work is what one run computes, told from types and attributes alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from compiler import relay, transform
from compiler.errors import ArtifactError
from compiler.ir.analysis import post_order
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.text.parser import parse
from compiler.proof.work import (
    KINDS,
    MAX_CPU_S,
    MAX_EXTRA_BYTES,
    MAX_INPUTS,
    REPLAY_CPU_S,
    RUN_S_PER_UNIT,
    STEP_S,
    Work,
    check_text,
    check_work,
    declared_work,
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
    body = Work(macs=2, units=7, steps=5, calls=1, c_text=9)
    assert body.repeated(3) == replace(body, macs=6, units=21, calls=3)
    assert body.repeated(10**30).units < 10**30


def test_windows_and_other_operators_count_as_units() -> None:
    x = relay.var("x", (1, 1, 8, 8), "int8")
    pool = work_of(op.nn.max_pool2d(x, pool_size=(2, 4), strides=(2, 4)), x)
    assert pool.macs == 0
    assert pool.units > 4 * 8 * 8
    relu = work_of(op.nn.relu(x), x)
    assert (relu.macs, relu.steps, relu.c_text) == (0, 1, 2000)
    assert work_of(op.cast(x, dtype="int64"), x).units == 2 * relu.units


IMAGE, ROWS = relay.var("x", (2, 4, 6, 5), "int8"), relay.var("x", (3, 8), "int8")
LONG, FLAGS = relay.var("x", (3, 8), "int64"), relay.var("x", (3, 8), "bool")
MIXED, WIDE = relay.const(np.ones((5, 8), "int16")), relay.const(np.ones((5, 8), "int64"))


def convolution(*shape: int, **attrs: object) -> Expr:
    return op.nn.conv2d(IMAGE, weight(*shape), out_dtype="int32", **attrs)


TRANSPOSED = op.nn.conv2d_transpose(
    IMAGE, weight(4, 3, 3, 2), strides=(2, 3), dilation=(2, 1), out_dtype="int32"
)
# A call, its multiplications, units and memory; bench_work measures what units stand for.
FIGURES = {
    "a convolution": (convolution(6, 4, 3, 2), 4608, 21760, 42624),
    "with padding": (convolution(6, 4, 3, 2, padding=(1, 2, 3, 4)), 23040, 48320, 108928),
    "of one tap": (convolution(6, 4, 1, 1), 1440, 9240, 34728),
    "of one tap, with strides": (convolution(6, 4, 1, 1, strides=(1, 2)), 864, 8520, 33576),
    "of two groups": (convolution(6, 2, 3, 2, groups=2), 2304, 25184, 41400),
    "of a group for each channel": (convolution(4, 1, 3, 2, groups=4), 768, 14752, 30088),
    "transposed": (TRANSPOSED, 4320, 144000, 99624),
    "a product of bytes": (op.nn.dense(ROWS, weight(5, 8), out_dtype="int32"), 120, 2150, 3692),
    "of wider numbers, too": (op.nn.dense(ROWS, MIXED, out_dtype="int32"), 120, 3800, 3732),
    "of 64 bits": (op.nn.dense(LONG, WIDE, out_dtype="int64"), 120, 8900, 4200),
    "a maximum of windows": (
        op.nn.max_pool2d(IMAGE, pool_size=(2, 3), padding=(0, 1, 0, 0)),
        *(0, 59604, 169808),
    ),
    "an average of windows": (op.nn.avg_pool2d(IMAGE, pool_size=(2, 3)), 0, 57492, 160680),
    "repeated elements": (op.repeat(ROWS, repeats=3, axis=0), 0, 1152, 7968),
    "copies": (op.tile(ROWS, reps=(2, 1)), 0, 192, 6984),
    "largest elements": (op.topk(ROWS, k=2, axis=1), 0, 1536, 3702),
    "elements of 64 bits": (op.nn.relu(LONG), 0, 192, 3456),
    "booleans": (op.logical_not(FLAGS), 0, 96, 3120),
}


@pytest.mark.parametrize("what", FIGURES)
def test_an_operator_counts_its_figures(what: str) -> None:
    call, *figures = FIGURES[what]
    (param,) = (node for node in post_order(call) if isinstance(node, relay.Var))
    work = work_of(call, param)
    assert [work.macs, work.units, work.memory] == figures


def test_a_transposed_convolution_of_no_channels_is_counted() -> None:
    x = relay.var("x", (1, 0, 3, 3), "int8")
    assert work_of(op.nn.conv2d_transpose(x, weight(0, 3, 2, 2), out_dtype="int32"), x).macs == 0


def test_a_few_rows_of_a_table_cost_as_much_as_all_of_it() -> None:
    x, ids = relay.var("x", (4096, 8), "int64"), relay.const(np.array([1], "int64"))
    assert work_of(op.take(x, ids, axis=0), x).units == 2 * 16 * 4096 * 8


def test_a_large_window_costs_more_than_its_elements() -> None:
    """Each of its elements is an operation of its own in the reference and in the integer ONNX."""
    x = relay.var("x", (1, 1, 4, 4), "int8")
    padding = (4500, 4500, 4500, 4500)
    work = work_of(op.nn.avg_pool2d(x, pool_size=(9000, 9000), padding=padding), x)
    with pytest.raises(ArtifactError, match="bytes of memory"):
        check_work(work, 2000)
    with pytest.raises(ArtifactError, match="CPU seconds for one run"):
        check_work(replace(work, memory=0), 2000)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_products_of_wide_integers_cost_more_than_of_bytes(dtype: str) -> None:
    x = relay.var("x", (5, 700), dtype)
    y = relay.const(np.ones((3, 700), dtype))
    wide = work_of(op.nn.dense(x, y, out_dtype=dtype), x)
    z = relay.var("z", (5, 700), "int8")
    narrow = work_of(op.nn.dense(z, weight(3, 700), out_dtype="int32"), z)
    assert wide.macs == narrow.macs
    assert wide.units > 8 * narrow.units


def test_memory_is_the_fullest_moment_and_counts_temporaries() -> None:
    x = relay.var("x", (1000,), "int8")
    value: Expr = x
    for _ in range(3):
        value = op.nn.relu(value)
    short = work_of(value, x)
    for _ in range(100):
        value = op.nn.relu(value)
    long = work_of(value, x)
    assert long.memory == short.memory, "values are freed after their last use"
    assert short.memory >= 3 * 1000 + 2 * 8 * 1000
    held = [op.nn.relu(x) for _ in range(100)]
    together = op.concatenate(relay.Tuple(held), axis=0)
    assert work_of(together, x).memory > 100 * 1000


def test_the_columns_of_a_convolution_are_memory() -> None:
    x = relay.var("x", (1, 1, 128, 128), "int8")
    call = op.nn.conv2d(x, weight(1, 1, 32, 32), out_dtype="int32")
    assert work_of(call, x).memory > 4 * 97 * 97 * 32 * 32


def test_a_constant_counts_at_every_use() -> None:
    x = relay.var("x", (100,), "int8")
    held = weight(100)
    once = work_of(op.add(x, held), x)
    twice = work_of(op.add(op.add(x, held), held), x)
    assert twice.c_text == 2 * once.c_text


def test_a_function_counts_as_often_as_it_is_called() -> None:
    lines = ["def @f0(%x: Tensor[(4), int8]) { nn.relu(%x) }"]
    lines += [
        f"def @f{i}(%x: Tensor[(4), int8]) {{ @f{i - 1}(@f{i - 1}(%x)) }}" for i in range(1, 200)
    ]
    lines.append("def @main(%x: Tensor[(4), int8]) { @f5(%x) }")
    mod = infer_module(parse('#[version = "0.0.5"]\n' + "\n".join(lines)))
    assert declared_work(mod).steps == 32
    with pytest.raises(ArtifactError, match="operators"):
        check_work(Work(steps=declared_work(mod, "f199").steps), 2000)


def test_a_lowered_function_counts_by_its_call() -> None:
    x = relay.var("x", (4,), "int8")
    mod = relay.module(relay.Function((x,), op.nn.relu(x)))
    work = declared_work(transform.LowerTE()(transform.FuseOps()(mod)))
    assert work.steps == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("@main(%x)", "@main calls itself"),
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
STEPS = round(MAX_CPU_S / STEP_S)


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (Work(c_text=MAX_EXTRA_BYTES + 4001), "characters of C"),
        (Work(memory=MAX_EXTRA_BYTES + 4001), "bytes of memory"),
        (Work(units=UNITS + 1), "CPU seconds for one run"),
        (Work(steps=STEPS + 2), "operators"),
    ],
)
def test_every_kind_of_work_has_its_limit(work: Work, told: str) -> None:
    with pytest.raises(ArtifactError, match=told) as caught:
        check_work(work, 1000)
    assert "--allow-large" in str(caught.value)


def test_what_runs_once_is_accepted() -> None:
    room = MAX_EXTRA_BYTES + 4000
    check_work(Work(memory=room, c_text=room, units=UNITS - 10_000_000), 1000)
    check_work(Work(steps=STEPS), 1000)


def test_work_decides_how_many_inputs_are_run() -> None:
    """A small module runs all; a large one a few, and one kind after the other is left out."""
    assert replay_inputs(Work(steps=40)) == MAX_INPUTS
    half = replay_inputs(Work(units=int(REPLAY_CPU_S / 10 / RUN_S_PER_UNIT)))
    assert 8 <= half <= 10
    assert replay_inputs(Work(units=UNITS // 10)) == KINDS
    assert replay_inputs(Work(units=UNITS // 2)) == 1
    assert replay_inputs(Work(units=100 * UNITS)) == 1


def test_many_operators_are_honest_where_they_have_weights() -> None:
    """A network of 100,000 operators is no attack; as many copies of four numbers are one."""
    deep = Work(macs=5 * 10**9, units=6 * 10**9, steps=100_000)
    check_work(deep, 30 << 20)
    check_text(16 << 20, 32 << 20)
    with pytest.raises(ArtifactError, match="operators"):
        check_work(deep, 2000)
    with pytest.raises(ArtifactError, match=r"module\.relay has"):
        check_text(16 << 20, 1 << 20)


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
    assert work.memory < MAX_EXTRA_BYTES // 2


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
    assert often.memory == once.memory
    nested = work(loop(50, f"({loop(1000)}.0,)"))
    assert nested.calls == 1 + 50 * 1001
    assert nested.steps == 3


def test_a_padded_image_that_is_seldom_read_is_work() -> None:
    x = relay.var("x", (1, 1, 2, 2), "int8")
    window = {"strides": (9000, 9000), "padding": (9000, 9000, 9000, 9000)}
    pool = work_of(op.nn.max_pool2d(x, pool_size=(2, 2), **window), x)
    product = op.nn.conv2d(x, weight(1, 1, 2, 2), out_dtype="int32", **window)
    for work in (pool, work_of(product, x)):
        with pytest.raises(ArtifactError, match="bytes of memory"):
            check_work(work, 2000)
