"""Constants and shapes that no quantizer writes: the reference's integers, or one error."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.errors import CodegenError, CompilerError, EvaluationError
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.proof.replay import differing_elements
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import ISA_VARIABLE, detected_isa
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.proof import chains
from tests.compiler.proof.forged import CLASSES, build
from tests.compiler.targets.engine.forged_inputs import forged_inputs
from tests.compiler.targets.engine.kernel_cases import agree

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")

Array = np.ndarray[Any, Any]
op = relay.op
TERA = 1 << 40


def const(value: Any, dtype: str = "int32") -> Expr:
    return relay.const(np.asarray(value, dtype))


def anything(shape: tuple[int, ...], dtype: str = "int8") -> Array:
    info = np.iinfo(dtype)
    rng = np.random.default_rng(list(shape))
    return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)


def dense(x: Expr, dtype: str = "int32") -> Expr:
    return op.nn.dense(x, relay.const(anything((3, 40))), out_dtype=dtype)


def wide(x: Expr) -> Expr:
    return op.cast(x, dtype="int64")


def to_int8(x: Expr) -> Expr:
    return op.cast(op.clip(x, a_min=-128, a_max=127), dtype="int8")


def scaled(x: Expr, multiplier: int, shift: int) -> Expr:
    return op.fixed_point_multiply(x, multiplier=multiplier, shift=shift)


def stored(x: Expr) -> Expr:
    return op.sum(op.cast(x, dtype="int32"), axis=[0])


def largest(x: Expr, **attrs: Any) -> Expr:
    return op.nn.max_pool2d(x, pool_size=(1, 1), **attrs)


RESULTS: dict[str, tuple[Callable[[Expr], Expr], tuple[int, ...], str]] = {
    # A result that wraps in its dtype wraps before it is read again.
    "sums wrap": (lambda x: op.nn.relu(op.add(x, x)), (1, 64), "int8"),
    "differences wrap": (lambda x: op.nn.relu(op.subtract(const(9, "uint8"), x)), (9,), "uint8"),
    "products wrap": (lambda x: op.nn.relu(op.multiply(x, x)), (1, 64), "int16"),
    "left shifts wrap": (lambda x: op.nn.relu(op.left_shift(x, const(5, "int8"))), (64,), "int8"),
    "accumulators wrap": (lambda x: op.nn.relu(dense(x, "int16")), (1, 40), "int8"),
    "totals wrap": (lambda x: op.nn.relu(op.sum(x, axis=[1])), (3, 40), "int8"),
    "factors before an average wrap": (
        lambda x: op.nn.global_avg_pool2d(op.multiply(x, const(100, "int8"))),
        (1, 4, 4, 4),
        "int8",
    ),
    "factors wrap": (lambda x: op.nn.relu(scaled(x, (1 << 31) - 1, 3)), (1, 400), "int8"),
    "half of the last place wraps, int8": (lambda x: scaled(x, 1 << 30, -5), (400,), "int8"),
    "half of the last place wraps, uint8": (lambda x: scaled(x, 1 << 30, -6), (400,), "uint8"),
    # A result that a kernel reads from memory, which holds no more than its bounds.
    "a choice of two ranges": (
        lambda x: stored(
            op.where(
                op.less(x, const(0, "int16")),
                op.clip(x, a_min=0, a_max=3),
                op.clip(x, a_min=0, a_max=999),
            )
        ),
        (1, 64),
        "int16",
    ),
    "the larger of two ranges": (
        lambda x: stored(op.maximum(op.clip(x, a_min=0, a_max=999), op.clip(x, a_min=0, a_max=3))),
        (1, 64),
        "int16",
    ),
    "bits of either of two ranges": (
        lambda x: stored(
            op.bitwise_or(op.clip(x, a_min=0, a_max=999), op.clip(op.negative(x), a_min=0, a_max=3))
        ),
        (1, 256),
        "int16",
    ),
    "averages of positive numbers whose sum leaves int32": (
        lambda x: op.mean(op.clip(wide(x), a_min=0, a_max=1 << 20), axis=[2, 3]),
        (1, 1, 64, 80),
        "int32",
    ),
    "some factors are powers of two": (
        lambda x: op.fixed_point_multiply_per_axis(
            op.clip(x, a_min=-99, a_max=99),
            const([1 << 30, 3 << 29, 1 << 30]),
            const([-9, 2, -20]),
            axis=1,
        ),
        (1, 3),
        "int16",
    ),
    "sums of positive numbers wrap": (
        lambda x: op.nn.relu(op.add(op.clip(x, a_min=0, a_max=127), op.clip(x, a_min=0, a_max=9))),
        (1, 64),
        "int8",
    ),
    "limits of a product, one for each channel": (
        lambda x: op.maximum(
            op.nn.dense(x, relay.const(np.ones((3, 4), "int8")), out_dtype="int32"),
            relay.const(np.array([[1, -200, 300]], "int32")),
        ),
        (2, 4),
        "int8",
    ),
    "limits of a product, one at a time": (
        lambda x: to_int8(op.minimum(op.maximum(dense(x), const(-9)), const(900))),
        (9, 40),
        "int8",
    ),
    # More operators, and more operands at a time, than one program holds.
    "a dozen comparisons": (
        lambda x: functools.reduce(
            op.add, [op.cast(op.equal(x, const(n, "int8")), dtype="int32") for n in range(12)]
        ),
        (1, 256),
        "int8",
    ),
    "eight operands wait": (
        lambda x: functools.reduce(
            lambda inner, n: op.subtract(
                op.maximum(op.clip(x, a_min=-n, a_max=n), const(1 - n)),
                op.maximum(inner, const(-n)),
            ),
            range(2, 10),
            op.clip(x, a_min=-9, a_max=9),
        ),
        (1, 64),
        "int32",
    ),
    "shifts between integers of 64 bits": (
        lambda x: to_int8(
            op.subtract(
                op.add(
                    wide(op.right_shift(op.cast(x, dtype="int32"), const(3))), const(TERA, "int64")
                ),
                const(TERA, "int64"),
            )
        ),
        (1, 64),
        "int16",
    ),
    "results that lie apart": (
        lambda x: op.concatenate([op.clip(x, a_min=0, a_max=9), x], axis=1),
        (64, 1),
        "int16",
    ),
    "factors of an axis that is not the last": (
        lambda x: op.fixed_point_multiply_per_axis(
            op.clip(x, a_min=-(1 << 20), a_max=1 << 20),
            const([5 << 28, 3 << 29, 7 << 28]),
            const([-3, 2, -1]),
            axis=1,
        ),
        (2, 3, 4, 5),
        "int32",
    ),
    "factors of large numbers": (
        lambda x: scaled(op.clip(x, a_min=-(1 << 30), a_max=1 << 30), 3 << 29, 0),
        (1, 64),
        "int32",
    ),
    "products of fifteen bits": (
        lambda x: op.nn.batch_matmul(
            op.clip(x, a_min=-(1 << 14), a_max=(1 << 14) - 1),
            op.clip(x, a_min=-(1 << 14), a_max=(1 << 14) - 1),
            out_dtype="int32",
        ),
        (1, 3, 20),
        "int16",
    ),
    "products of sixteen bits, positive": (
        lambda x: op.nn.batch_matmul(
            op.clip(x, a_min=0, a_max=(1 << 15) - 1),
            op.clip(x, a_min=0, a_max=(1 << 15) - 1),
            out_dtype="int32",
        ),
        (1, 3, 20),
        "int16",
    ),
    "products of sixteen bits, negative": (
        lambda x: op.nn.batch_matmul(
            op.clip(x, a_min=-(1 << 15), a_max=0),
            op.clip(x, a_min=-(1 << 15), a_max=0),
            out_dtype="int32",
        ),
        (1, 3, 20),
        "int16",
    ),
    "less of equal ends": (
        lambda x: op.cast(op.less(op.minimum(x, const(5, "int8")), const(5, "int8")), dtype="int8"),
        (1, 256),
        "int8",
    ),
    "a table of a constant": (
        lambda x: op.lookup(op.clip(x, a_min=3, a_max=3), const(np.arange(256) - 300)),
        (1, 8),
        "int8",
    ),
    # Limits, addends and halves that int32 or int64 does not hold.
    "limits above int32": (
        lambda x: op.clip(wide(x), a_min=float(1 << 40), a_max=float(1 << 41)),
        (1, 40),
        "int8",
    ),
    "limits below int32": (
        lambda x: op.clip(wide(x), a_min=-float(1 << 41), a_max=-float(1 << 40)),
        (1, 40),
        "int8",
    ),
    "crossed limits of a sum that wraps": (
        lambda x: op.clip(op.add(x, x), a_min=9, a_max=-3),
        (1, 64),
        "int8",
    ),
    "addends beyond 64 bits when shifted": (
        lambda x: op.add(
            scaled(op.add(wide(dense(x)), const(1 << 29, "int64")), (1 << 31) - 3, -22),
            const(4096, "int64"),
        ),
        (1, 40),
        "int8",
    ),
    "addends beside a factor that gives 0": (
        lambda x: op.add(scaled(wide(dense(x)), (1 << 31) - 3, -40), const(-(1 << 31), "int64")),
        (1, 40),
        "int8",
    ),
    "shifts by 25": (lambda x: to_int8(op.right_shift(dense(x), const(25))), (1, 40), "int8"),
    "shifts by 31": (lambda x: to_int8(op.right_shift(dense(x), const(31))), (1, 40), "int8"),
    "shifts of a sum near the end of int32": (
        lambda x: to_int8(op.right_shift(op.add(dense(x), const((1 << 31) - (1 << 20))), const(7))),
        (1, 40),
        "int8",
    ),
    "clips of a sum near the end of int32": (
        lambda x: to_int8(
            op.add(op.clip(dense(x), a_min=-9, a_max=20), const((1 << 31) - (1 << 5)))
        ),
        (1, 40),
        "int8",
    ),
    "negative factors behind a relu": (
        lambda x: op.fixed_point_multiply_per_axis(
            wide(op.nn.relu(dense(x))),
            const([-(1 << 30) - 5, 1 << 30, -(1 << 31)]),
            const([-3, -4, -5]),
            axis=1,
        ),
        (4, 40),
        "int8",
    ),
    "negative factors behind a relu, int32": (
        lambda x: op.fixed_point_multiply_per_axis(
            op.nn.relu(dense(x)),
            const([-(1 << 30) - 5, (1 << 30) + 3, -(1 << 30) - 77]),
            const([-3, -4, -5]),
            axis=1,
        ),
        (4, 40),
        "int8",
    ),
    # Windows, axes, and tensors without elements.
    "windows of padding only": (
        lambda x: largest(op.nn.relu(x), padding=(2, 2, 2, 2)),
        (1, 2, 3, 3),
        "int8",
    ),
    "windows of padding only, wide": (
        lambda x: largest(op.cast(x, dtype="int32"), padding=(0, 0, 3, 0)),
        (1, 2, 3, 3),
        "uint8",
    ),
    "windows of a constant": (
        lambda x: largest(op.clip(x, a_min=3, a_max=3)),
        (1, 2, 3, 3),
        "int8",
    ),
    "windows beside narrow data": (
        lambda x: op.nn.max_pool2d(
            op.nn.relu(x), pool_size=(2, 1), dilation=(3, 1), padding=(1, 0, 2, 0)
        ),
        (1, 2, 1, 3),
        "int8",
    ),
    "eight axes": (
        lambda x: op.reshape(op.transpose(x, axes=[7, 6, 5, 4, 3, 2, 1, 0]), newshape=(256,)),
        (2,) * 8,
        "int8",
    ),
    "no elements": (lambda x: op.add(x, x), (0, 5), "int8"),
    "no images": (
        lambda x: op.nn.conv2d(x, relay.const(anything((3, 4, 3, 3))), out_dtype="int32"),
        (0, 4, 5, 5),
        "int8",
    ),
}

WITHOUT_KERNEL = {
    "half of the last place wraps, int8",
    "half of the last place wraps, uint8",
    "products of sixteen bits, positive",
    "products of sixteen bits, negative",
    "a table of a constant",
    "windows of padding only",
    "windows of padding only, wide",
    "windows of a constant",
    "windows beside narrow data",
    "no elements",
    "no images",
}
"""Cases with an operator that runs on numpy."""


@pytest.mark.parametrize("what", RESULTS)
def test_the_result_is_that_of_the_reference(what: str) -> None:
    build, shape, dtype = RESULTS[what]
    engine = agree(relay.module(build(relay.var("x", shape, dtype))), anything(shape, dtype))
    assert bool(engine.host_operators) == (what in WITHOUT_KERNEL)


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
@pytest.mark.parametrize("name", CLASSES)
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
    [(_relus, 2500), (_casts, 3000), (_joined, 2000)],
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


def test_strides_beyond_64_bits_are_refused() -> None:
    x = relay.var("x", (1, 4, 5, 5), "int8")
    weight = relay.const(anything((3, 4, 1, 1)))
    mod = relay.module(op.nn.conv2d(x, weight, strides=(1 << 62, 1 << 62), out_dtype="int32"))
    with pytest.raises(CodegenError):
        EngineExecutor(mod)


def test_sizes_that_no_kernel_has_are_refused_before_a_run() -> None:
    x = relay.var("x", (1, 1 << 24), "int8")
    table = const(np.arange(9))
    with pytest.raises(CodegenError, match="no such sizes"):
        EngineExecutor(relay.module(op.nn.integer_softmax(x, table)))


def test_a_batch_that_does_not_fit_is_refused() -> None:
    x = relay.var("x", (1, 4), "int8")
    engine = EngineExecutor(relay.module(op.add(x, x)))
    for given in (anything((3, 5)), anything((2, 4)), anything((3, 4), "int16")):
        with pytest.raises(EvaluationError, match="an input of 3 runs"):
            engine.run_batch([given], 3)


def test_an_instruction_set_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "avx3")
    with pytest.raises(CodegenError, match="avx3"):
        detected_isa()
