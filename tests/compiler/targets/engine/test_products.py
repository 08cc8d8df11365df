"""Kernels of convolutions and matrix products give the integers of the reference."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas, load_library, shipped_library
from compiler.targets.engine.packing import as_real, make_factor
from compiler.targets.engine.steps import layout
from tests.compiler.targets.engine.kernel_cases import (
    agree,
    all_agree,
    drawn,
    requantized,
    shifted_to_even,
)
from tests.needs import NEEDS_C

pytestmark = NEEDS_C


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    length=st.integers(1, 300),
    columns=st.integers(1, 150),
    dtype=st.sampled_from(["uint8", "int8", "int16"]),
    extreme=st.booleans(),
)
def test_products_of_any_size_agree(
    seed: int, rows: int, length: int, columns: int, dtype: str, extreme: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (rows, length), dtype)
    weight = relay.const(drawn(rng, (columns, length), "int8", extreme))
    mod = relay.module(relay.op.nn.dense(x, weight, out_dtype="int32"))
    agree(mod, drawn(rng, (rows, length), dtype, extreme))


@pytest.mark.parametrize("columns", [48, 50, 56, 57])
@pytest.mark.parametrize("length", [16, 17, 18, 19, 52])
def test_dot_steps_that_are_crossed(columns: int, length: int) -> None:
    """Sums of x * y of a row and of weights are taken back, also of what fills a step up."""
    rng = np.random.default_rng(length)
    x = relay.var("x", (1, length, 6, 5), "int8")
    weight = relay.const(drawn(rng, (columns, length, 1, 1), "int8", True))
    conv = relay.op.nn.conv2d(x, weight, out_dtype="int32")
    mod = relay.module(requantized(conv, columns, 1, rng))
    all_agree(mod, *([drawn(rng, (1, length, 6, 5), "int8", extreme)] for extreme in (True, False)))
    if "avx2" in available_isas():
        engine = EngineExecutor(mod, isa="avx2")
        (row,) = (r for r, step in zip(engine.plan.rows, engine.steps) if step.kind == "gemm")
        assert row[layout()[0]["gemm"].index("crossed")] == 1


NARROW = [
    ([-64, 63], True),
    ([-64, 64, -64, 64], True),
    ([127, 1], True),
    ([-128, 0], True),
    ([127, 2], False),
    ([-128, -1], False),
    ([1, 1, 1, 1, 127, 3], False),
]


@pytest.mark.parametrize(("pattern", "is_narrow"), NARROW)
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_weights_whose_pairs_fit_in_sixteen_bits(
    pattern: list[int], is_narrow: bool, kernel: tuple[int, int], dtype: str
) -> None:
    rng = np.random.default_rng(0)
    inner = 18
    weight = np.resize(np.array(pattern, np.int8), (37, *kernel, inner))
    weight[5] = 0
    x = relay.var("x", (1, inner, 6, 7), dtype)
    product = relay.op.nn.conv2d(
        x, relay.const(weight.transpose(0, 3, 1, 2).copy()), padding=1, out_dtype="int32"
    )
    mod = relay.module(product)
    info = np.iinfo(dtype)
    extremes = drawn(rng, (1, inner, 6, 7), dtype, True)
    all_agree(mod, [np.full((1, inner, 6, 7), info.max, dtype)], [extremes])
    if "avx2" in available_isas():
        engine = EngineExecutor(mod, isa="avx2")
        place = layout()[0]["gemm"].index("narrow")
        kinds = [step.kind for step in engine.steps]
        assert engine.plan.rows[kinds.index("gemm")][place] == is_narrow


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    length=st.integers(1, 300),
    columns=st.integers(1, 150),
    extreme=st.booleans(),
)
def test_products_of_seven_bit_weights_agree(
    seed: int, rows: int, length: int, columns: int, extreme: bool
) -> None:
    rng = np.random.default_rng(seed)
    size = (columns, length)
    weight = rng.choice([-64, 63], size) if extreme else rng.integers(-64, 64, size)
    x = relay.var("x", (rows, length), "uint8")
    made = relay.op.nn.dense(x, relay.const(weight.astype("int8")), out_dtype="int32")
    agree(relay.module(made), drawn(rng, (rows, length), "uint8", extreme))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(2, 700),
    columns=st.integers(2, 150),
    groups=st.integers(1, 3),
    dtype=st.sampled_from(["uint8", "int8"]),
    extreme=st.booleans(),
    plain=st.booleans(),
)
def test_products_of_one_row_by_weights_of_four_bits_agree(
    seed: int, length: int, columns: int, groups: int, dtype: str, extreme: bool, plain: bool
) -> None:
    """Rows of weights reach from -8 to 7, from -7 to 8, or lie elsewhere."""
    rng = np.random.default_rng(seed)
    size = (groups * columns, length, 1, 1)
    least = rng.choice([-8, -7, rng.integers(-128, 113)], (size[0], 1, 1, 1))
    weight = least + (rng.choice([0, 15], size) if extreme else rng.integers(0, 16, size))
    x = relay.var("x", (1, groups * length, 1, 1), dtype)
    product = relay.op.nn.conv2d(
        x, relay.const(weight.astype("int8")), groups=groups, out_dtype="int32"
    )
    mod = relay.module(product if plain else requantized(product, size[0], 1, rng))
    data = drawn(rng, (1, groups * length, 1, 1), dtype, extreme)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "compiler.targets.engine.executor.load_library",
            lambda isa: replace(load_library(isa), nibbles=load_library(isa).nibbles and 1),
        )
        agree(mod, data)
        engine = EngineExecutor(mod)
    if engine.isa in ("vnni", "avx2") and min(length, columns) > 32:
        place = layout()[0]["gemm"].index("narrow")
        kinds = [step.kind for step in engine.steps]
        assert engine.plan.rows[kinds.index("gemm")][place] == layout()[1]["FOUR_BITS"]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    length=st.integers(1, 300),
    columns=st.integers(1, 150),
    dtype=st.sampled_from(["uint8", "int8"]),
    extreme=st.booleans(),
    plain=st.booleans(),
)
def test_products_of_one_row_that_widen_weights_agree(
    seed: int, length: int, columns: int, dtype: str, extreme: bool, plain: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (1, length, 1, 1), dtype)
    weight = relay.const(drawn(rng, (columns, length, 1, 1), "int8", extreme))
    product = relay.op.nn.conv2d(x, weight, out_dtype="int32")
    mod = relay.module(product if plain else requantized(product, columns, 1, rng))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compiler.targets.engine.products._LEAST_OF_ROW", 1)
        agree(mod, drawn(rng, (1, length, 1, 1), dtype, extreme))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 40), st.integers(1, 40)),
    transposed=st.booleans(),
    dtype=st.sampled_from(["uint8", "int8"]),
    extreme=st.booleans(),
    known=st.sampled_from(["", "x", "y"]),
)
def test_products_of_batches_agree(
    seed: int,
    sizes: tuple[int, int, int, int],
    transposed: bool,
    dtype: str,
    extreme: bool,
    known: str,
) -> None:
    rng = np.random.default_rng(seed)
    batch, rows, length, columns = sizes
    right = (batch, columns, length) if transposed else (batch, length, columns)
    values = {
        "x": drawn(rng, (batch, rows, length), dtype, extreme),
        "y": drawn(rng, right, "int8", extreme),
    }
    x, y = (
        relay.const(array) if name == known else relay.var(name, array.shape, str(array.dtype))
        for name, array in values.items()
    )
    product = relay.op.nn.batch_matmul(x, y, out_dtype="int32", transpose_b=transposed)
    wide = relay.op.cast(product, dtype="int64")
    scaled = relay.op.fixed_point_multiply(wide, multiplier=1518500250, shift=-11)
    mod = relay.module(relay.op.clip(scaled, a_min=-128, a_max=127))
    agree(mod, *(array for name, array in values.items() if name != known))


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), bits=st.integers(1, 31), shift=st.integers(-30, 3))
def test_every_sum_is_scaled_as_its_factor_says(seed: int, bits: int, shift: int) -> None:
    """All pairs of bytes, so all sums of 15 bits, with factors of so many bits and their ties."""
    rng, op = np.random.default_rng(seed), relay.op
    x = relay.var("x", (1 << 16, 2), "int8")
    weight = np.array([[127, 1], [-127, -1], [126, 1], [1, 0]] * 5, np.int8)
    factor = rng.integers(1 << bits - 1, 1 << bits, len(weight)) << 31 - bits
    wide = op.cast(op.nn.dense(x, relay.const(weight), out_dtype="int32"), dtype="int64")
    scaled = op.fixed_point_multiply_per_axis(
        wide,
        relay.const(factor.astype("int32")),
        relay.const(rng.integers(shift - 1, shift + 1, len(weight)).astype("int32")),
        axis=1,
    )
    low, high = sorted(rng.integers(-128, 128, 2).tolist())
    made = op.cast(op.clip(scaled, a_min=low, a_max=high), dtype="int8")
    pairs = np.arange(1 << 16, dtype=np.uint16).view(np.int8).reshape(-1, 2)
    agree(relay.module(made), pairs)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    ends=st.tuples(st.integers(-40000, 40000), st.integers(-40000, 40000)),
    how=st.sampled_from(["one factor", "a factor a channel", "a power of two"]),
    shift=st.integers(-16, 2),
)
def test_sums_are_clipped_before_they_are_scaled(
    seed: int, ends: tuple[int, int], how: str, shift: int
) -> None:
    rng, op = np.random.default_rng(seed), relay.op
    x = relay.var("x", (60, 3), "int8")
    weight = relay.const(drawn(rng, (20, 3), "int8", False))
    low, high = sorted(ends)
    clipped = op.clip(op.nn.dense(x, weight, out_dtype="int32"), a_min=low, a_max=high)
    wide = op.cast(clipped, dtype="int64")
    if how == "a factor a channel":
        factor = relay.const(rng.integers(1 << 30, (1 << 31) - 1, 20).astype("int32"))
        places = relay.const(rng.integers(shift - 1, shift + 1, 20).astype("int32"))
        scaled = op.fixed_point_multiply_per_axis(wide, factor, places, axis=1)
    elif how == "one factor":
        factor = int(rng.integers(1 << 30, (1 << 31) - 1))
        scaled = op.fixed_point_multiply(wide, multiplier=factor, shift=shift)
    else:
        scaled = shifted_to_even(clipped, np.full(20, max(-shift, 0)), (20,))
    made = op.cast(op.clip(scaled, a_min=-128, a_max=127), dtype="int8")
    agree(relay.module(made), drawn(rng, (60, 3), "int8", False))


def test_a_clip_in_front_of_one_factor_is_part_of_the_product() -> None:
    x, op = relay.var("x", (1, 16), "int8"), relay.op
    total = op.nn.dense(x, relay.const(np.ones((32, 16), np.int8)), out_dtype="int32")
    clipped = op.clip(total, a_min=0, a_max=1000)
    wide = op.cast(clipped, dtype="int64")
    scaled = op.fixed_point_multiply(wide, multiplier=(1 << 30) + (1 << 20), shift=-2)
    mod = relay.module(op.cast(op.clip(scaled, a_min=-128, a_max=127), dtype="int8"))
    assert [step.kind for step in EngineExecutor(mod).steps].count("gemm") == 1
    assert "elementwise" not in {step.kind for step in EngineExecutor(mod).steps}


@pytest.mark.parametrize("added", [13, -77, "channel"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_a_zero_point_behind_the_clip_is_part_of_the_product(added: int | str, dtype: str) -> None:
    op, rng = relay.op, np.random.default_rng(3)
    x = relay.var("x", (9, 40), "int8")
    weight = relay.const(drawn(rng, (21, 40), "int8", False))
    sums = op.nn.dense(x, weight, out_dtype="int32")
    along = rng.integers(-90, 90, 21) if added == "channel" else np.array(added)
    if added == "channel":
        scaled = op.clip(sums, a_min=-9000, a_max=9000)
    else:
        scaled = op.fixed_point_multiply(sums, multiplier=1431655808, shift=-9)
        scaled = op.clip(scaled, a_min=-100, a_max=155)
    moved = op.add(scaled, relay.const(along.astype("int32")))
    info = np.iinfo(dtype)
    made = op.cast(op.clip(moved, a_min=int(info.min), a_max=int(info.max)), dtype=dtype)
    for extreme in (False, True):
        executor = agree(relay.module(made), drawn(rng, (9, 40), "int8", extreme))
    kinds = {step.kind for step in executor.steps}
    assert not kinds & {"elementwise", "wide"} or added == "channel"


def test_a_factor_too_small_for_the_zero_of_bytes_is_planned() -> None:
    """Channels without weights whose bias takes half of the accumulator have such factors."""
    op, rng = relay.op, np.random.default_rng(0)
    weight = np.concatenate([rng.integers(-127, 128, (2, 9)), np.zeros((2, 9))]).astype("int8")
    bias = np.array([4096, -23680, 1 << 30, -(1 << 30)], "int32")
    dense = op.nn.dense(relay.var("x", (5, 9), "int8"), relay.const(weight), out_dtype="int32")
    scaled = op.fixed_point_multiply_per_axis(
        op.cast(op.add(dense, relay.const(bias)), dtype="int64"),
        relay.const(np.array([1 << 30, 1 << 30, 1228 << 20, 1228 << 20], "int32")),
        relay.const(np.array([-7, -7, -25, -24], "int32")),
        axis=1,
    )
    clipped = op.cast(op.clip(scaled, a_min=-127, a_max=127), dtype="int8")
    agree(relay.module(clipped), drawn(rng, (5, 9), "int8", False))


def test_factors_of_24_bits_without_ties_are_float32() -> None:
    low, high = np.array([-(1 << 20)]), np.array([1 << 20])
    factor = (3 << 29) + 128

    def real(multiplier: int, shift: int) -> object:
        made = make_factor(np.array([multiplier]), np.array([shift]), low, high, 0)
        assert made is not None
        return as_real(made, low, high)

    assert real(factor, -8) == np.float32(factor * 2.0**-39)
    assert real(factor + 1, -8) is None  # 31 bits
    assert real(1 << 30, -8) is None  # 256 times an odd number ends in a half
    assert real(1 << 30, -21) is not None  # no sum of 20 bits does
    assert real(factor, 2) is None  # results of more than 21 bits


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("shift", [0, 5])
def test_sums_with_a_bias_that_leave_int32_do_not_wrap(sign: int, shift: int) -> None:
    x, op = relay.var("x", (1, 8), "int8"), relay.op
    made = op.nn.dense(x, relay.const(np.full((16, 8), 127, np.int8)), out_dtype="int32")
    bias = relay.const(np.full(16, sign * ((1 << 31) - 1), np.int64))
    total = op.add(op.cast(made, dtype="int64"), bias)
    total = op.right_shift(total, relay.const(np.int64(shift))) if shift else total
    clipped = op.clip(total, a_min=-(1 << 31), a_max=(1 << 31) - 1)
    mod = relay.module(op.cast(clipped, dtype="int32"))
    for value in (-128, 127):
        agree(mod, np.full((1, 8), value, np.int8))


@pytest.mark.parametrize("out", ["int8", "int16"])
def test_sums_of_products_wrap_in_a_narrow_dtype(out: str) -> None:
    rng = np.random.default_rng(4)
    x = relay.var("x", (1, 8, 5, 5), "int8")
    weight = relay.const(drawn(rng, (4, 8, 3, 3), "int8", False))
    made = relay.op.nn.conv2d(x, weight, padding=1, out_dtype=out)
    mod = relay.module(relay.op.cast(made, dtype="int32"))
    agree(mod, drawn(rng, (1, 8, 5, 5), "int8", False))


@pytest.mark.parametrize("rest", [4, 5])
def test_sums_of_int16_that_leave_int32_are_sums_of_bytes(rest: int) -> None:
    """-2^15 times weights that add up to 2^16 is the least int32."""
    weight = np.full((18, 517), 127, np.int8)
    weight[:, -1] = rest
    x = relay.var("x", (2, 517), "int16")
    made = relay.op.nn.dense(x, relay.const(weight), out_dtype="int32")
    data = np.full((2, 517), -32768, np.int16)
    data[1] = 32767
    executor = agree(relay.module(made), data)
    assert [step.kind for step in executor.steps].count("gemm") == rest - 3


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_operands_of_16_bits_need_no_numpy(dtype: str, groups: int) -> None:
    op, rng = relay.op, np.random.default_rng(7)
    x = relay.var("x", (1, 8, 6, 5), dtype)
    weight = relay.const(drawn(rng, (8, 8 // groups, 3, 3), "int8", True))
    conv = op.nn.conv2d(x, weight, padding=1, strides=2, groups=groups, out_dtype="int32")
    rows = op.reshape(x, newshape=(8, 30))
    dense = op.nn.dense(rows, relay.const(drawn(rng, (9, 30), "int8", False)), out_dtype="int32")
    narrow = op.cast(op.clip(rows, a_min=-1023, a_max=1023), dtype="int16")
    cube = op.reshape(narrow, newshape=(2, 4, 30))
    square = op.nn.batch_matmul(cube, cube, out_dtype="int32", transpose_b=True)
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max + 1, (1, 8, 6, 5)).astype(dtype)
    agree(relay.module(relay.Tuple((conv, dense, square))), data)


@pytest.mark.parametrize("isa", available_isas())
def test_accumulators_stay_in_registers(isa: str) -> None:
    """No instruction of the innermost loop of a product or of taps touches the stack; none of a
    full tile of AVX2 copies a register."""
    dump = shutil.which("objdump")
    if dump is None or isa == "generic":
        return
    path = shipped_library(isa) or load_library(isa).path
    text = subprocess.run([dump, "-d", str(path)], capture_output=True, text=True, check=True)
    multiply = {
        "amx": "vpdp",
        "vnni": "vpdp",
        "avxvnni": "vpdp",
        "avx2": "vpmadd",
        "i8mm": "(s|us)(dot|mull)",
        "neon": "s(dot|mull)",
    }[isa]
    pattern = r"<(qk_tile_\w+|qk_taps_(?:pairs_)?\d)>:\n(.*?)\n\n"
    functions = re.findall(pattern, text.stdout + "\n\n", flags=re.S)
    assert len(functions) >= 10
    for name, body in functions:
        loop = _innermost_loop(body, multiply)
        assert any(re.search(multiply, line) for line in loop), name
        assert not [line for line in loop if "rsp" in line or "rbp" in line or "[sp" in line], name
        copies = [line for line in loop if re.search(r"vmov\w+ +%ymm\d+,%ymm\d+", line)]
        assert not copies or not re.search(r"(_6_1|narrow\w*_5)$", name), name
    fills = re.findall(r"<(qk_fill_\w+)>:\n(.*?)\n\n", text.stdout + "\n\n", flags=re.S)
    assert bool(fills) == (isa != "neon")
    for name, body in fills:
        moves = [line for line in body.splitlines() if re.search(r"%[yz]mm", line)]
        assert not [line for line in moves if "rsp" in line or "rbp" in line], name


def _innermost_loop(body: str, multiply: str) -> list[str]:
    """The shortest run of instructions between a backward jump and its target that multiplies."""
    lines = [line.split("\t") for line in body.splitlines()]
    places = {int(parts[0].strip(" :"), 16): n for n, parts in enumerate(lines) if len(parts) > 1}
    loops = []
    for number, parts in enumerate(lines):
        jump = re.search(r"\b(j\w+|b\.\w+|cbn?z)\s.*?([0-9a-f]+) <", parts[-1])
        if jump and places.get(int(jump[2], 16), number + 1) <= number:
            loop = [p[-1] for p in lines[places[int(jump[2], 16)] : number]]
            if any(re.search(multiply, line) for line in loop):
                loops.append(loop)
    return min(loops, key=len, default=[])


@pytest.mark.parametrize("shape", [(1, 6, 9, 11), (2, 3, 9, 11), (54, 11), (1, 2, 27, 11)])
def test_a_product_takes_the_epilogue_behind_its_reshape(shape: tuple[int, ...]) -> None:
    rng, op = np.random.default_rng(0), relay.op
    sizes = (6, 9, 20), (6, 20, 11)
    x, y = (relay.var(n, s, "int8") for n, s in zip("xy", sizes))
    product = op.nn.batch_matmul(x, y, transpose_b=False, out_dtype="int32")
    wide = op.cast(op.reshape(product, newshape=shape), dtype="int64")
    scaled = op.fixed_point_multiply(wide, multiplier=1518500250, shift=-7)
    made = op.cast(op.clip(scaled, a_min=-127, a_max=127), dtype="int8")
    engine = agree(relay.module(made), *(drawn(rng, s, "int8", False) for s in sizes))
    assert "elementwise" not in [step.kind for step in engine.steps]


@pytest.mark.parametrize("turned", [False, True])
def test_two_computed_matrices_are_a_batch_of_one(turned: bool) -> None:
    """So the fast kernel serves them, as in the decoder of a graph from its rows."""
    rng = np.random.default_rng(0)
    shapes = (40, 24), (56, 24) if turned else (24, 56)
    x, y = (relay.var(name, shape, "int8") for name, shape in zip("xy", shapes))
    mod = relay.module(relay.op.nn.matmul(x, y, transpose_b=turned, out_dtype="int32"))
    kinds = {step.kind for step in EngineExecutor(mod).steps}
    assert "gemm" in kinds
    assert "reduce" not in kinds
    agree(mod, *(drawn(rng, shape, "int8", True) for shape in shapes))
