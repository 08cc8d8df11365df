"""Kernels of convolutions and matrix products give the integers of the reference."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas, load_library, shipped_library
from compiler.targets.engine.packing import as_real, make_factor
from compiler.targets.engine.steps import layout
from tests.compiler.targets.engine.kernel_cases import agree, drawn, requantized, shifted_to_even

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 9), st.integers(1, 11)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    groups=st.sampled_from([1, 1, 1, 2, 3, "depthwise"]),
    channels=st.tuples(st.integers(1, 21), st.integers(1, 70)),
    dtype=st.sampled_from(["uint8", "int8", "int16"]),
    extreme=st.booleans(),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_convolutions_of_any_geometry_agree(
    seed: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    groups: Any,
    channels: tuple[int, int],
    dtype: str,
    extreme: bool,
    layout: str,
) -> None:
    rng = np.random.default_rng(seed)
    inner, outer = channels
    if groups == "depthwise":
        groups, inner_total, outer = outer, outer, outer
        inner = 1
    else:
        inner_total, outer = inner * groups, outer * groups
    height, width = (
        max(n, (k - 1) * d + 1 - before - after)
        for n, k, d, before, after in zip(size, kernel, dilation, padding[:2], padding[2:])
    )
    shape = (1, inner_total, height, width)
    weight = drawn(rng, (outer, inner, *kernel), "int8", extreme)
    axes = ["NCHW".index(letter) for letter in layout]
    x = relay.var("x", tuple(shape[a] for a in axes), dtype)
    made = relay.op.nn.conv2d(
        x,
        relay.const(weight),
        strides=strides,
        padding=padding,
        dilation=dilation,
        groups=groups,
        data_layout=layout,
        out_dtype="int32",
    )
    if layout == "NCHW":
        made = requantized(made, outer, 1, rng)
    agree(relay.module(made), drawn(rng, shape, dtype, extreme).transpose(axes))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.tuples(st.integers(1, 6), st.integers(1, 7)),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 4)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    padding=st.tuples(*[st.integers(0, 3)] * 4),
    extra=st.integers(0, 2),
    groups=st.sampled_from([1, 1, 2, "depthwise"]),
    dtype=st.sampled_from(["uint8", "int8", "int16"]),
    how=st.sampled_from(["operator", "zeros", "cut"]),
)
@example(  # a phase that no tap belongs to is longer than the data
    seed=0, size=(1, 3), kernel=(1, 1), strides=(2, 1), dilation=(1, 1), padding=(1, 1, 0, 3),
    extra=0, groups="depthwise", dtype="uint8", how="zeros",
)  # fmt: skip
def test_transposed_convolutions_agree(
    seed: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    extra: int,
    groups: Any,
    dtype: str,
    how: str,
) -> None:
    rng, op = np.random.default_rng(seed), relay.op
    groups, inner, outer = (5, 1, 1) if groups == "depthwise" else (groups, 3, 17)
    shape = (1, inner * groups, *size)
    x, weight = relay.var("x", shape, dtype), drawn(rng, (inner, outer, *kernel), "int8", False)
    spans = [
        (n - 1) * s + (k - 1) * d + 1 + extra for n, s, k, d in zip(size, strides, kernel, dilation)
    ]
    if how == "operator":
        padding = tuple(min(p, (spans[i % 2] - 1) // 2) for i, p in enumerate(padding))
        weights = relay.const(np.concatenate([weight] * groups))
        made = op.nn.conv2d_transpose(
            x, weights, strides=strides, padding=padding, dilation=dilation, groups=groups,
            output_padding=(extra, extra), out_dtype="int32",
        )  # fmt: skip
    else:
        n, c, (h, w), (sy, sx) = 1, shape[1], size, strides
        zeros = ((0, 0), (0, 0), (0, 0), (0, sy - 1), (0, 0), (0, sx - 1))
        apart = op.reshape(x, newshape=(n, c, h, 1, w, 1))
        spread = op.nn.pad(apart, relay.const(np.array(0, dtype)), pad_width=zeros)
        data = op.reshape(spread, newshape=(n, c, h * sy, w * sx))
        if how == "cut":
            top, right = min(extra, h * sy - 1), max(w * sx - extra, 1)
            data = op.strided_slice(
                data, begin=(0, 0, top, 0), end=(n, c, h * sy, right), strides=(1, 1, 1, 1)
            )
        reach = [(k - 1) * d for k, d in zip(kernel, dilation)]
        padding = tuple(
            max(p, reach[i % 2]) * (i != 0 or how != "cut") for i, p in enumerate(padding)
        )
        if how == "cut" and (h * sy - top + padding[2] <= reach[0] or seed % 2):
            padding = (reach[0], *padding[1:])
        weights = relay.const(np.concatenate([weight.transpose(1, 0, 2, 3)] * groups))
        made = op.nn.conv2d(
            data, weights, padding=padding, dilation=dilation, groups=groups, out_dtype="int32"
        )
    made = requantized(made, outer * groups, 1, rng)
    assert agree(relay.module(made), drawn(rng, shape, dtype, seed % 3 == 0)).host_steps == 0


def test_transposed_convolutions_multiply_no_zeros() -> None:
    x, weight = relay.var("x", (1, 3, 5, 5), "uint8"), np.ones((3, 7, 4, 4), np.int8)
    made = relay.op.nn.conv2d_transpose(
        x, relay.const(weight), strides=(2, 2), padding=1, out_dtype="int32"
    )
    executor = agree(
        relay.module(made), drawn(np.random.default_rng(0), (1, 3, 5, 5), "uint8", False)
    )
    assert [step.macs for step in executor.steps if step.kind == "gemm"] == [25 * 3 * 7 * 4] * 4


@pytest.mark.parametrize("width", [31, 32, 33, 70])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation"), [(3, 1, 1), (5, 2, 1), (5, 1, 1), (3, 1, 2)]
)
def test_depthwise_rows_longer_than_a_pass_agree(
    width: int, kernel: int, stride: int, dilation: int
) -> None:
    rng = np.random.default_rng(width)
    x = relay.var("x", (1, 19, 11, width), "int8")
    made = relay.op.nn.conv2d(
        x,
        relay.const(drawn(rng, (19, 1, kernel, kernel), "int8", False)),
        strides=(stride, stride),
        padding=kernel // 2,
        dilation=(dilation, dilation),
        groups=19,
        out_dtype="int32",
    )
    data = drawn(rng, (1, 19, 11, width), "int8", False)
    agree(relay.module(requantized(made, 19, 1, rng)), data)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.integers(2, 150),
    size=st.tuples(st.integers(1, 10), st.one_of(st.integers(1, 24), st.integers(25, 90))),
    kernel=st.sampled_from([3, 5]),
    stride=st.sampled_from([1, 2]),
    padding=st.integers(1, 2),
    dtype=st.sampled_from(["uint8", "int8"]),
    extreme=st.booleans(),
)
def test_depthwise_windows_that_fill_registers_agree(
    seed: int,
    channels: int,
    size: tuple[int, int],
    kernel: int,
    stride: int,
    padding: int,
    dtype: str,
    extreme: bool,
) -> None:
    rng, shape = np.random.default_rng(seed), (1, channels, *(max(n, kernel - 2) for n in size))
    made = relay.op.nn.conv2d(
        relay.var("x", shape, dtype),
        relay.const(drawn(rng, (channels, 1, kernel, kernel), "int8", extreme)),
        strides=(stride, stride),
        padding=padding,
        groups=channels,
        out_dtype="int32",
    )
    agree(relay.module(requantized(made, channels, 1, rng)), drawn(rng, shape, dtype, extreme))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.integers(2, 150),
    size=st.tuples(st.integers(1, 10), st.one_of(st.integers(1, 24), st.integers(25, 90))),
    kernel=st.one_of(st.sampled_from([3, 5]), st.integers(1, 6)),
    stride=st.sampled_from([1, 1, 2, 3]),
    dilation=st.sampled_from([1, 1, 1, 2]),
    padding=st.integers(0, 2),
    bits=st.tuples(st.integers(9, 16), st.integers(3, 8)),
    extreme=st.booleans(),
)
def test_depthwise_windows_of_int16_agree(
    seed: int,
    channels: int,
    size: tuple[int, int],
    kernel: int,
    stride: int,
    dilation: int,
    padding: int,
    bits: tuple[int, int],
    extreme: bool,
) -> None:
    rng, op = np.random.default_rng(seed), relay.op
    shape = (1, channels, *(max(n, (kernel - 1) * dilation + 1 - 2 * padding, 1) for n in size))
    most = (1 << (bits[0] - 1)) - 1
    weight = drawn(rng, (channels, 1, kernel, kernel), "int8", extreme) >> np.int8(8 - bits[1])
    made = op.nn.conv2d(
        op.clip(relay.var("x", shape, "int16"), a_min=-most * (seed % 2), a_max=most),
        relay.const(weight),
        strides=(stride, stride),
        padding=padding,
        dilation=(dilation, dilation),
        groups=channels,
        out_dtype="int32",
    )
    made = requantized(made, channels, 1, rng) if seed % 3 else made
    executor = agree(relay.module(made), drawn(rng, shape, "int16", extreme))
    kinds = [step.kind for step in executor.steps]
    assert kinds.count("depthwise") <= 1  # one, unless the bounds decide the result
    assert executor.host_steps == 0


@pytest.mark.parametrize("strides", [(1, 1), (2, 2)])
def test_int16_goes_from_a_product_to_depthwise_windows(strides: tuple[int, int]) -> None:
    """With a clip whose end differs by channel, as a relu6 has it; nothing is done in between."""
    rng, op = np.random.default_rng(5), relay.op
    x = relay.var("x", (1, 8, 9, 11), "int8")

    def scaled(sums: Any, shifts: int, ends: tuple[int, int], dtype: str) -> Any:
        tops = rng.integers(9000, 9100, (40, 1, 1)).astype("int32")
        clipped = op.maximum(op.minimum(sums, relay.const(tops)), relay.const(np.int32(0)))
        factor = rng.integers(1 << 23, 1 << 24, 40).astype("int32") << 7
        wide = op.fixed_point_multiply_per_axis(
            op.cast(clipped, dtype="int64"),
            relay.const(factor),
            relay.const(np.full(40, -shifts, "int32")),
            axis=1,
        )
        return op.cast(op.clip(wide, a_min=ends[0], a_max=ends[1]), dtype=dtype)

    first = relay.const(drawn(rng, (40, 8, 1, 1), "int8", False))
    middle = scaled(op.nn.conv2d(x, first, out_dtype="int32"), 0, (-32767, 32767), "int16")
    window = relay.const(drawn(rng, (40, 1, 3, 3), "int8", False) >> np.int8(2))
    sums = op.nn.conv2d(middle, window, strides=strides, padding=1, groups=40, out_dtype="int32")
    executor = agree(
        relay.module(scaled(sums, 2, (0, 255), "uint8")), drawn(rng, (1, 8, 9, 11), "int8", False)
    )
    kinds = [step.kind for step in executor.steps]
    assert [kinds.count(kind) for kind in ("gemm", "depthwise", "elementwise")] == [1, 1, 0]


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
    for data in (
        np.full((1, inner, 6, 7), info.max, dtype),
        drawn(rng, (1, inner, 6, 7), dtype, True),
    ):
        agree(mod, data)
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


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.tuples(st.integers(1, 40), st.integers(1, 150)),
    size=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    groups=st.sampled_from([1, 1, 3]),
    bits=st.tuples(st.integers(9, 16), st.integers(3, 8)),
    extreme=st.booleans(),
)
def test_convolutions_of_int16_are_one_product(
    seed: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    kernel: int,
    stride: int,
    groups: int,
    bits: tuple[int, int],
    extreme: bool,
) -> None:
    """From int16 or, of few bits, with factors of float32; with a border or without."""
    rng, op = np.random.default_rng(seed), relay.op
    inner, outer = channels[0], channels[1] * groups
    padding = kernel // 2
    shape = (1, inner * groups, *(max(n, kernel - 2 * padding) for n in size))
    most = (1 << (bits[0] - 1)) - 1
    weight = drawn(rng, (outer, inner, kernel, kernel), "int8", extreme) >> np.int8(8 - bits[1])
    made = op.nn.conv2d(
        op.clip(relay.var("x", shape, "int16"), a_min=-most * (seed % 2), a_max=most),
        relay.const(weight),
        strides=(stride, stride),
        padding=padding,
        groups=groups,
        out_dtype="int32",
    )
    made = requantized(made, outer, 1, rng) if seed % 3 else made
    executor = agree(relay.module(made), drawn(rng, shape, "int16", extreme))
    kinds = [step.kind for step in executor.steps]
    assert kinds.count("gemm") + kinds.count("depthwise") <= 1
    assert executor.host_steps == 0


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


def test_int16_goes_from_a_product_to_a_convolution() -> None:
    """The border of the convolution is part of the memory, and nothing is done in between."""
    rng, op = np.random.default_rng(5), relay.op
    x = relay.var("x", (1, 8, 9, 11), "int8")
    made = op.nn.conv2d(x, relay.const(drawn(rng, (24, 8, 1, 1), "int8", False)), out_dtype="int32")
    wide = op.fixed_point_multiply(op.cast(made, dtype="int64"), multiplier=3 << 29, shift=-3)
    middle = op.cast(op.clip(wide, a_min=-32768, a_max=32767), dtype="int16")
    weight = relay.const(drawn(rng, (40, 24, 3, 3), "int8", False))
    made = requantized(op.nn.conv2d(middle, weight, padding=1, out_dtype="int32"), 40, 1, rng)
    executor = agree(relay.module(made), drawn(rng, (1, 8, 9, 11), "int8", False))
    kinds = [step.kind for step in executor.steps]
    assert kinds == ["quantize", "fill", "gemm", "gemm", "copy", "dequantize"]


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
    executor = agree(relay.module(relay.Tuple((conv, dense, square))), data)
    assert executor.host_steps == 0


@pytest.mark.parametrize("isa", available_isas())
def test_accumulators_stay_in_registers(isa: str) -> None:
    """No instruction of the innermost loop of a product or of taps touches the stack."""
    dump = shutil.which("objdump")
    if dump is None or isa == "generic":
        return
    path = shipped_library(isa) or load_library(isa).path
    text = subprocess.run([dump, "-d", str(path)], capture_output=True, text=True, check=True)
    multiply = {"vnni": "vpdp", "avx2": "vpmadd", "neon": "s(dot|mull)"}[isa]
    pattern = r"<(qk_tile_\w+|qk_taps_(?:pairs_)?\d)>:\n(.*?)\n\n"
    functions = re.findall(pattern, text.stdout + "\n\n", flags=re.S)
    assert len(functions) >= 10
    for name, body in functions:
        loop = _innermost_loop(body, multiply)
        assert any(re.search(multiply, line) for line in loop), name
        assert not [line for line in loop if "rsp" in line or "rbp" in line or "[sp" in line], name
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
