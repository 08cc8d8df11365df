"""Programs of elementwise operators give the integers of the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.ir.expr import Expr
from compiler.targets.engine.values import Item, chain_bounds, rescaled
from compiler.targets.engine.views import NoProgramError
from tests.compiler.targets.engine.kernel_cases import agree, all_agree, drawn, shifted_to_even
from tests.needs import NEEDS_C

pytestmark = NEEDS_C


def _elementwise(x: Expr, y: Expr) -> Expr:
    op = relay.op
    left = op.fixed_point_multiply(op.cast(x, dtype="int32"), multiplier=1268764032, shift=2)
    total = op.cast(op.add(left, op.cast(y, dtype="int32")), dtype="int64")
    scaled = op.fixed_point_multiply(total, multiplier=1856257792, shift=-1)
    return op.cast(op.clip(scaled, a_min=-127, a_max=127), dtype="int8")


def _power_of_two(x: Expr, y: Expr) -> Expr:
    op = relay.op
    product = op.multiply(op.cast(x, dtype="int32"), op.cast(y, dtype="int32"))
    half = op.add(product, relay.const(np.int32(64)))
    return op.clip(op.right_shift(half, relay.const(np.int32(7))), a_min=-100, a_max=100)


@pytest.mark.parametrize("chain", [_elementwise, _power_of_two])
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (1, 300), (2, 1, 33), (1, 1)])
@pytest.mark.parametrize("extreme", [False, True])
def test_chains_of_elementwise_operators_agree(
    chain: Callable[[Expr, Expr], Expr], shape: tuple[int, ...], extreme: bool
) -> None:
    rng = np.random.default_rng(len(shape))
    x, y = relay.var("x", shape, "int8"), relay.var("y", shape, "uint8")
    inputs = [drawn(rng, shape, dtype, extreme) for dtype in ("int8", "uint8")]
    agree(relay.module(chain(x, y)), *inputs)


_REAL = st.integers(1 << 23, (1 << 24) - 1).map(lambda digits: digits << 7)
"""Multipliers of 24 bits, as float32 scales have them."""
_LINKS = st.one_of(
    st.tuples(st.just("factor"), _REAL, st.integers(-4, 2)),
    st.tuples(st.just("factor"), _REAL | st.integers(1 << 30, (1 << 31) - 1), st.integers(-4, 2)),
    st.tuples(st.just("clip"), st.integers(-300, 0), st.integers(0, 300)),
    st.tuples(st.sampled_from(["add", "multiply", "maximum"]), st.integers(-9, 9), st.booleans()),
)


@pytest.mark.slow
@given(st.lists(_LINKS, min_size=2, max_size=6), st.sampled_from(["int8", "int16", "int64"]))
@settings(max_examples=60, deadline=None)
def test_links_in_any_order_agree(links: list[tuple[str, int, int]], dtype: str) -> None:
    """Factors behind factors, clips between them, and operands that are read twice."""
    op, shape = relay.op, (2, 37)
    x, y = relay.var("x", shape, "int8"), relay.var("y", shape, "uint8")
    total, other = op.cast(x, dtype="int64"), op.cast(y, dtype="int64")
    for name, first, second in links:
        if name == "factor":
            total = op.fixed_point_multiply(total, multiplier=first, shift=second)
        elif name == "clip":
            total = op.clip(total, a_min=first, a_max=second)
        else:
            total = getattr(op, name)(total, other if second else relay.const(np.int64(first)))
    ends = np.iinfo("int16" if dtype == "int64" else dtype)
    total = op.clip(total, a_min=int(ends.min), a_max=int(ends.max))
    rng = np.random.default_rng(len(links))
    inputs = [drawn(rng, shape, dtype, False) for dtype in ("int8", "uint8")]
    results = relay.Tuple((op.cast(total, dtype=dtype), y))
    agree(relay.module(results), *inputs)


def test_chains_without_a_fast_program_run_in_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise NoProgramError("no program")

    monkeypatch.setattr("compiler.targets.engine.elementwise._emit_fast", refused)
    op, rng = relay.op, np.random.default_rng(2)
    x = relay.var("x", (2, 3, 5), "int8")
    row = relay.const(rng.integers(-30, 30, (5,)).astype("int32"))
    one = relay.const(np.array(-22, "int32"))
    scaled = op.fixed_point_multiply(
        op.cast(op.multiply(op.cast(x, dtype="int32"), row), dtype="int64"),
        multiplier=1899375104,
        shift=-5,
    )
    clipped = op.cast(op.clip(scaled, a_min=-106, a_max=149), dtype="int32")
    executor = agree(
        relay.module(op.cast(op.add(op.add(clipped, one), row), dtype="int16")),
        drawn(rng, (2, 3, 5), "int8", False),
    )
    assert {step.kind for step in executor.steps} == {"quantize", "wide", "dequantize"}


@pytest.mark.parametrize("name", ["add", "subtract", "multiply", "left_shift"])
def test_narrow_results_wrap_before_they_are_widened(name: str) -> None:
    op, rng = relay.op, np.random.default_rng(3)
    x, y = relay.var("x", (1, 40), "int8"), relay.var("y", (1, 40), "int8")
    right = relay.const(np.int8(3)) if name == "left_shift" else y
    narrow = getattr(op, name)(x, right)
    mod = relay.module(relay.Tuple((op.cast(narrow, dtype="int32"), y)))
    agree(mod, *(drawn(rng, (1, 40), "int8", False) for _ in "xy"))


@pytest.mark.parametrize("rounding", ["away", "even"])
@pytest.mark.parametrize("factor", [1234567891, 1 << 30, 3 << 29])
@pytest.mark.parametrize("bits", [6, 31, 36, 40])
def test_rounded_products_of_64_bits_agree(rounding: str, factor: int, bits: int) -> None:
    """Halves are hit where the factor is a power of two, and where sums are large."""
    op, rng = relay.op, np.random.default_rng(bits)

    def wide(value: int) -> Expr:
        return relay.const(np.full((4, 1, 1), value, np.int64))

    x = relay.var("x", (1, 4, 3, 5), "int32")
    narrow = op.clip(x, a_min=-(1 << 24), a_max=1 << 24)
    product = op.multiply(op.cast(narrow, dtype="int64"), wide(factor))
    if rounding == "away":
        half = op.where(
            op.greater_equal(product, relay.const(np.int64(0))),
            wide(1 << (bits - 1)),
            wide((1 << (bits - 1)) - 1),
        )
        total = op.add(product, half)
    else:
        odd = op.bitwise_and(op.right_shift(product, wide(bits)), wide(1))
        total = op.add(op.add(product, wide((1 << (bits - 1)) - 1)), odd)
    shifted = op.cast(op.right_shift(total, wide(bits)), dtype="int32")
    data = rng.integers(-(1 << 24), 1 << 24, (1, 4, 3, 5)) << (bits % 7)
    agree(relay.module(shifted), data.astype("int32"))


@pytest.mark.parametrize("bits", [[0, 1, 5, 9], [7], [0]])
@pytest.mark.parametrize("in_front", ["conv2d", "depthwise", "batch_matmul", "add", "shared"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_shifts_that_round_to_even_agree(bits: list[int], in_front: str, dtype: str) -> None:
    op, rng, channels = relay.op, np.random.default_rng(len(bits)), 20
    x = relay.var("x", (1, channels, 5, 6), "int8")
    wide = op.cast(x, dtype="int32")
    if in_front == "batch_matmul":
        rows = op.reshape(x, newshape=(channels, 5, 6))
        square = op.nn.batch_matmul(rows, rows, out_dtype="int32")
        total = op.reshape(square, newshape=(1, channels, 5, 5)) if len(bits) > 1 else square
    elif in_front in ("add", "shared"):
        total = op.multiply(op.add(wide, op.cast(op.nn.relu(x), dtype="int32")), wide)
    else:
        groups = channels if in_front == "depthwise" else 1
        weight = drawn(rng, (channels, channels // groups, 3, 3), "int8", False)
        total = op.nn.conv2d(x, relay.const(weight), padding=1, groups=groups, out_dtype="int32")
    along = (channels, 1, 1) if len(bits) > 1 else (1, 1, 1)
    made = shifted_to_even(total, np.resize(bits, along[0]), along)
    if dtype != "int32":
        info = np.iinfo(dtype)
        made = op.cast(op.clip(made, a_min=int(info.min), a_max=int(info.max)), dtype=dtype)
    results = relay.Tuple((made, total)) if in_front == "shared" else made
    data = drawn(rng, (1, channels, 5, 6), "int8", False)
    executor = agree(relay.module(results), data)
    kinds = [step.kind for step in executor.steps]
    if in_front in ("conv2d", "depthwise") and bits != [0]:
        assert not {"elementwise", "wide"} & set(kinds)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32"])
def test_numbers_added_around_clips_and_factors_agree_up_to_the_ends(seed: int, dtype: str) -> None:
    op, rng = relay.op, np.random.default_rng(seed)
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    x, y = relay.var("x", (3, 5, 7), dtype), relay.var("y", (5, 7), dtype)
    at: Expr = op.cast(x, dtype="int32")

    def number() -> Expr:
        return relay.const(
            np.int32(rng.choice([0, 1, -1, low, high, int(rng.integers(low, high))]))
        )

    for kind in rng.integers(0, 9, 9):
        if kind == 8:
            times = op.multiply(op.cast(y, dtype="int32"), relay.const(np.int32(256)))
            at = op.add(at, times)
        elif kind < 3:
            at = (op.add, op.subtract)[rng.integers(2)](at, number())
        elif kind < 5:
            ends = sorted(int(n) for n in rng.integers(low, high, 2, endpoint=True))
            at = op.clip(at, a_min=ends[0], a_max=ends[1])
        elif kind == 5:
            at = (op.maximum, op.minimum)[rng.integers(2)](number(), at)
        elif kind == 6:
            factor = int(rng.integers(1 << 30, (1 << 31) - 1)) & ~127
            at = op.fixed_point_multiply(at, multiplier=factor, shift=int(rng.integers(-9, 0)))
        else:
            at = (op.add, op.subtract, op.maximum)[rng.integers(3)](at, op.cast(y, dtype="int32"))
    results = (at, op.cast(op.clip(at, a_min=-128, a_max=127), dtype="int8"), y)
    data = [rng.integers(low, high, (3, 5, 7), endpoint=True), rng.choice([low, high], (5, 7))]
    ends = [rng.choice([low, high], a.shape) for a in data]
    samples = ([a.astype(dtype) for a in sample] for sample in (data, ends))
    all_agree(relay.module(relay.Tuple(results)), *samples)


@pytest.mark.parametrize("name", ["less", "greater_equal", "equal", "not_equal", "greater"])
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_choices_by_comparisons_agree(name: str, dtype: str) -> None:
    op, rng = relay.op, np.random.default_rng(5)
    x, y = relay.var("x", (3, 1, 7), dtype), relay.var("y", (3, 4, 7), dtype)
    chosen = op.where(getattr(op, name)(x, y), op.negative(op.add(y, y)), op.abs(x))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    drawn_x = rng.choice([low, -1, 0, 1, high], (3, 1, 7)).astype(dtype)
    drawn_y = rng.choice([low, -1, 0, 1, high], (3, 4, 7)).astype(dtype)
    agree(relay.module(chosen), drawn_x, drawn_y)


def test_a_number_that_bounds_decide_is_spread_where_it_lies_already() -> None:
    op = relay.op
    x = relay.var("x", (1, 6, 1), "int32")
    number = op.clip(x, a_min=262215678.0, a_max=262215678.0)
    always = op.less(op.nn.batch_flatten(op.negative(number)), relay.const(np.int32(2147483646)))
    agree(relay.module(op.where(always, number, x)), np.arange(6, dtype=np.int32).reshape(1, 6, 1))


def test_a_table_is_an_output_of_64_bits() -> None:
    op, rng = relay.op, np.random.default_rng(0)
    x = relay.var("x", (70,), "uint16")
    table = relay.const(rng.integers(-(1 << 31), 1 << 31, 1000))
    place = op.clip(op.add(x, relay.const(np.uint16(128))), a_min=256.0, a_max=24798.0)
    agree(relay.module(op.lookup(place, table)), drawn(rng, (70,), "uint16", False))


def test_operands_in_another_order_than_a_result_that_follows_none_of_them_are_copied() -> None:
    op, rng = relay.op, np.random.default_rng(4)
    shapes = (1, 16, 5, 1), (1, 1, 5, 8)
    x, y = (relay.var(name, shape, "int8") for name, shape in zip("xy", shapes))
    product = op.multiply(op.cast(x, dtype="int32"), op.cast(y, dtype="int32"))
    image = op.cast(op.clip(product, a_min=-99, a_max=99), dtype="int8")
    weight = relay.const(rng.integers(-9, 9, (4, 16, 1, 1)).astype("int8"))
    made = op.nn.conv2d(image, weight, out_dtype="int32")
    engine = agree(relay.module(made), *(drawn(rng, shape, "int8", False) for shape in shapes))
    assert "wide" not in [step.kind for step in engine.steps]


@pytest.mark.parametrize("largest", [1 << 6, 1 << 31, 1 << 33])
def test_bounds_of_rescaled_values_are_those_of_python_integers(largest: int) -> None:
    rng = np.random.default_rng(largest)
    for _ in range(200):
        low, high = sorted(map(int, rng.integers(-largest, largest, 2)))
        multiplier = rng.integers(0, 1 << 31, 3).astype(np.int32)
        shift = rng.integers(-34, 32, 3).astype(np.int32)
        pairs = list(zip(multiplier.tolist(), shift.tolist(), strict=True))
        ends = [rescaled(x, m, s) for x in (low, high) for m, s in pairs]
        found = chain_bounds("RESCALE", (Item((), low, high),), (multiplier, shift, None))
        assert found == (min(ends), max(ends))


def test_an_operand_that_is_loaded_last_may_be_multiplied_by_a_number() -> None:
    op, shape = relay.op, (1, 40)
    x, y = relay.var("x", shape, "int8"), relay.var("y", shape, "int8")
    fine = op.fixed_point_multiply(op.cast(x, dtype="int32"), multiplier=1162657664, shift=12)
    coarse = op.left_shift(op.cast(y, dtype="int32"), relay.const(np.int32(8)))
    total = op.cast(op.add(fine, coarse), dtype="int64")
    scaled = op.fixed_point_multiply(total, multiplier=1402613632, shift=-11)
    result = op.cast(op.clip(scaled, a_min=-127, a_max=127), dtype="int8")
    rng = np.random.default_rng(0)
    agree(relay.module(result), drawn(rng, shape, "int8", False), drawn(rng, shape, "int8", False))


@pytest.mark.parametrize("name", ["add", "subtract"])
@pytest.mark.parametrize("times", [1, 2])
def test_the_lowest_int64_is_a_number_as_others(name: str, times: int) -> None:
    x = relay.var("x", (1, 5), "int16")
    total = relay.op.cast(x, dtype="int64")
    for _ in range(times):
        total = getattr(relay.op, name)(total, relay.const(np.int64(-(2**63))))
    agree(relay.module(total), drawn(np.random.default_rng(0), (1, 5), "int16", True))
