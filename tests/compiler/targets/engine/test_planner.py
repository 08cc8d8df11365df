"""Constants and shapes that no quantizer writes: the reference's integers, or one error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.errors import AttrError, CodegenError, CompilerError, EvaluationError, PlanError
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.proof.derive import derive_static
from compiler.proof.replay import differing_elements
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import ISA_VARIABLE, detected_isa
from compiler.targets.engine.planner import rules
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.inner_values import ENGINE
from tests.compiler.proof import chains
from tests.compiler.proof.forged import CLASSES, build
from tests.compiler.targets.engine.forged_inputs import forged_inputs
from tests.compiler.targets.engine.kernel_cases import agree
from tests.compiler.targets.engine.planner_cases import (
    RESULTS,
    TERA,
    anything,
    const,
)
from tests.needs import NEEDS_C

pytestmark = NEEDS_C

op = relay.op


@pytest.mark.parametrize("what", RESULTS)
def test_the_result_is_that_of_the_reference(what: str) -> None:
    build, shape, dtype = RESULTS[what]
    agree(relay.module(build(relay.var("x", shape, dtype))), anything(shape, dtype))


@pytest.mark.parametrize("what", ENGINE)
def test_a_value_that_hardly_any_input_meets_is_that_of_the_reference(what: str) -> None:
    case = ENGINE[what]
    assert derive_static(case.mod).holds
    agree(case.mod, *case.given.values())


def test_results_of_64_bits_become_floats_as_on_the_reference() -> None:
    x = relay.var("x", (1, 3), "int64")
    result = op.multiply(op.cast(x, dtype="float32"), relay.const(np.float32(0.5)))
    agree(relay.module(result), np.array([[TERA, -5, (1 << 62) + 1]]))


def test_sums_that_int32_may_not_hold_have_no_kernel_of_products() -> None:
    """The positive weights alone leave int32 on the way, though all of them cancel."""
    weight = relay.const(np.tile(np.array([127, -127], np.int8), (1, 9000)))
    x = relay.var("x", (1, 18000), "uint8")
    engine = agree(
        relay.module(op.nn.dense(x, weight, out_dtype="int32")), anything((1, 18000), "uint8")
    )
    assert "gemm" not in {step.kind for step in engine.steps}


@pytest.mark.parametrize("limit", [float("inf"), float("nan")])
def test_limits_that_are_no_integers_are_not_quantized_by_a_kernel(limit: float) -> None:
    x = relay.var("x", (1, 5), "float32")
    rounded = op.round(op.multiply(x, relay.const(np.float32(3))))
    clipped = op.cast(op.clip(rounded, a_min=-limit, a_max=limit), dtype="int8")
    agree(relay.module(clipped), np.linspace(-2, 2, 5, dtype=np.float32).reshape(1, 5))


@pytest.mark.parametrize("reader", ["pad", "conv2d"])
def test_a_border_is_there_whatever_order_of_axes_is_left(reader: str) -> None:
    """A difference along the last axis finds no program in the order that the reader wants."""
    x = relay.var("x", (1, 1, 4, 4), "int8")
    rng = np.random.default_rng(0)
    kernel = relay.const(rng.integers(-127, 128, (2, 1, 3, 3)).astype("int8"))
    sums = op.nn.conv2d(x, kernel, padding=[1, 1, 1, 1], out_dtype="int32")
    narrow = op.cast(op.clip(op.right_shift(sums, const(6)), a_min=0, a_max=255), dtype="uint8")
    wide = op.cast(narrow, dtype="int32")
    below = op.clip(op.subtract(wide, op.max(wide, axis=[3], keepdims=True)), a_min=-255, a_max=0)
    small = op.cast(op.add(below, const(127)), dtype="int8")
    if reader == "pad":
        edges = [[0, 0], [0, 0], [1, 1], [1, 1]]
        result = op.nn.pad(small, relay.const(np.int8(127)), pad_width=edges)
    else:
        again = relay.const(rng.integers(-127, 128, (2, 2, 3, 3)).astype("int8"))
        result = op.nn.conv2d(small, again, padding=[1, 1, 1, 1], out_dtype="int32")
    agree(relay.module(result), rng.integers(-128, 128, (1, 1, 4, 4)).astype("int8"))


def test_as_many_inputs_and_outputs_as_wanted() -> None:
    inputs = [relay.var(f"x{n}", (1, 5), "int8") for n in range(40)]
    total: Expr = const(0)
    for x in inputs:
        total = op.add(total, op.cast(x, dtype="int32"))
    outputs = relay.Tuple([op.add(total, const(n)) for n in range(40)])
    agree(relay.module(outputs), *(anything((1, 5)) for _ in inputs))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, for NaN and infinities
@pytest.mark.parametrize("name", [name for name in CLASSES if "float16" not in name])
def test_forged_modules_give_the_integers_of_the_reference(name: str) -> None:
    made = lambda rng: build(CLASSES[name](rng))  # noqa: E731
    assert forms_agree(made, [5, *name.encode()], 25) > 25


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_chains_give_the_integers_of_the_reference() -> None:
    assert forms_agree(chains.module, [6], 120) > 200


def forms_agree(
    made: Callable[[np.random.Generator], IRModule], seed: list[int], count: int
) -> int:
    """Run modules on the reference and on the engine, on all integers; how often it was."""
    ran = 0
    for index in range(count):
        rng = np.random.default_rng([*seed, index])
        with contextlib.suppress(CompilerError):
            mod = made(rng)
            for function in ("main", "quantized_main"):
                given = forged_inputs(mod, function, rng)
                wanted = [ReferenceExecutor(mod, function).run(each) for each in given]
                engine = EngineExecutor(mod, function)
                for each, outputs in zip(given, wanted, strict=True):
                    assert not differing_elements(outputs, engine.run(each))[1], (seed, index)
                    ran += 1
    return ran


def _relus(x: Expr, count: int) -> Expr:
    for n in range(count):
        x = op.clip(op.add(x, const(n % 3 - 1)), a_min=-100 - n % 5, a_max=100)
    return x


def _casts(x: Expr, count: int) -> Expr:
    for n in range(count):
        x = op.cast(x, dtype=("int16", "int32")[n % 2])
    return op.add(x, x)


def _joined(x: Expr, count: int) -> Expr:
    return op.concatenate([op.add(x, const(n)) for n in range(count)], axis=1)


@pytest.mark.parametrize(
    ("build", "count"),
    [(_relus, 1500), (_casts, 3000), (_joined, 1500)],
    ids=["relu", "cast", "concatenate"],
)
def test_thousands_of_operators(build: Callable[[Expr, int], Expr], count: int) -> None:
    x = op.cast(relay.var("x", (1, 4), "int8"), dtype="int32")
    agree(relay.module(build(x, count)), anything((1, 4)))


def test_a_batch_of_pools_is_no_step_for_each_image() -> None:
    x = relay.var("x", (20000, 1, 2, 2), "int8")
    mod = relay.module(
        op.nn.max_pool2d(
            op.nn.pad(x, const(1, "int8"), pad_width=[(0, 0), (0, 0), (1, 1), (0, 0)]),
            pool_size=(2, 2),
        )
    )
    assert len(agree(mod, anything((20000, 1, 2, 2))).steps) < 100


def test_memory_far_beyond_the_values_is_refused() -> None:
    x = relay.var("x", (1, 2, 4, 4), "int8")
    weight = relay.const(anything((2, 1, 1, 1)))
    how = {"groups": 2, "padding": (20000,) * 4, "strides": (20000, 20000)}
    with pytest.raises(CodegenError, match="GiB"):
        EngineExecutor(relay.module(op.nn.conv2d(x, weight, out_dtype="int32", **how)))


def test_strides_beyond_every_tensor_are_refused() -> None:
    x = relay.var("x", (1, 4, 5, 5), "int8")
    weight = relay.const(anything((3, 4, 1, 1)))
    with pytest.raises(AttrError, match="strides="):
        op.nn.conv2d(x, weight, strides=(1 << 62, 1 << 62), out_dtype="int32")


def test_a_defect_of_a_rule_is_an_error_that_names_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(rules, "add", lambda planner, step, args: args[9])
    x = relay.var("x", (1, 4), "int8")
    with pytest.raises(PlanError, match="cannot plan add: IndexError") as error:
        EngineExecutor(relay.module(op.add(x, x)))
    assert 'executor="reference"' in str(error.value)


WORDS = {
    "nn.conv2d": lambda x: op.nn.conv2d(
        x,
        const(anything((6, 2, 3, 2))),
        strides=(2, 1),
        padding=(1, 0, 2, 1),
        dilation=(1, 2),
        groups=2,
        out_dtype="int32",
    ),
    "nn.conv2d_transpose": lambda x: op.nn.conv2d_transpose(
        x,
        const(anything((4, 3, 3, 2))),
        strides=(3, 1),
        padding=(1, 2, 4, 0),
        dilation=(1, 2),
        groups=2,
        output_padding=(1, 0),
        out_dtype="int64",
    ),
    "nn.max_pool2d": lambda x: op.nn.max_pool2d(
        x, pool_size=(3, 2), strides=(2, 3), padding=(2, 1, 1, 1), dilation=(2, 1), ceil_mode=True
    ),
    "nn.matmul": lambda x: op.nn.matmul(x, op.reshape(x, newshape=(6, 60)), out_dtype="int32"),
    "nn.batch_matmul": lambda x: op.nn.batch_matmul(
        op.reshape(x, newshape=(2, 30, 6)),
        op.reshape(op.transpose(x, axes=(3, 2, 1, 0)), newshape=(2, 6, 30)),
        transpose_b=False,
        out_dtype="int64",
    ),
    "sum": lambda x: op.sum(op.transpose(x, axes=(1, 3, 0, 2)), axis=[0, 2]),
}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_a_word_that_its_own_rule_refuses_runs_on_any_strides(
    name: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for word in ("nn.conv2d", *WORDS):
        monkeypatch.delitem(rules, word, raising=False)
    shape = (2, 4, 5, 9) if name != "nn.matmul" else (60, 6)
    result = WORDS[name](relay.var("x", shape, dtype))
    engine = agree(relay.module(result), anything(shape, dtype))
    assert {step.kind for step in engine.steps} & {"reduce", "wide"}


@pytest.mark.slow
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 7), st.integers(1, 150)),
    order=st.permutations(range(3)),
    axes=st.sets(st.integers(0, 2), min_size=1),
    dtype=st.sampled_from(["int8", "uint8", "int16", "int32"]),
    last=st.booleans(),
)
@settings(max_examples=60)
def test_reductions_of_any_strides_agree(
    shape: tuple[int, ...], order: list[int], axes: set[int], dtype: str, last: bool
) -> None:
    x = relay.var("x", shape, dtype)
    turned, along = op.transpose(x, axes=order), {"axis": sorted(axes)}
    # Few values, so that the largest is there more than once.
    few = op.clip(turned, a_min=0, a_max=2)
    found = (
        op.argmax(few, select_last_index=last, **along),
        op.argmin(few, select_last_index=last, **along),
        op.max(turned, **along),
        op.sum(op.cast(turned, dtype="int64"), **along),
    )
    agree(relay.module(relay.Tuple(found)), anything(shape, dtype))


def test_a_reduction_of_more_axes_than_a_step_has_loops() -> None:
    x = relay.var("x", (2, 3, 2, 3, 2, 3, 2, 2), "int8")
    turned = op.transpose(x, axes=(7, 5, 3, 1, 0, 2, 4, 6))
    sums = op.sum(op.cast(turned, dtype="int32"), axis=[0, 2, 4, 6])
    agree(
        relay.module(relay.Tuple((sums, op.max(turned, axis=[1, 3, 5, 7])))),
        anything(x.type_annotation.concrete_shape),
    )


def test_indices_of_a_batch_are_the_same_for_all_axes_between() -> None:
    x = relay.var("x", (2, 3, 4, 5), "int8")
    places = relay.var("places", (2, 7), "int32")
    found = op.take(x, places, axis=2, batch_dims=1, mode="wrap")
    agree(relay.module(found), anything((2, 3, 4, 5)), anything((2, 7), "int32"))


def test_sizes_that_no_kernel_has_are_refused_before_a_run() -> None:
    x = relay.var("x", (1, 1 << 24), "int8")
    table = const(np.arange(9))
    with pytest.raises(CodegenError, match="no such sizes"):
        EngineExecutor(relay.module(op.nn.integer_softmax(x, table)))


def test_a_batch_that_does_not_fit_is_refused() -> None:
    x = relay.var("x", (1, 4), "int8")
    engine = EngineExecutor(relay.module(op.add(x, x)))
    for sample in (anything((3, 5)), anything((2, 4)), anything((3, 4), "int16")):
        with pytest.raises(EvaluationError, match="an input of 3 runs"):
            engine.run_batch([sample], 3)


def test_an_instruction_set_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "avx3")
    with pytest.raises(CodegenError, match="avx3"):
        detected_isa()
