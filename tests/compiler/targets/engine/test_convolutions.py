"""Kernels of convolutions give the integers of the reference."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler import relay
from tests.compiler.targets.engine.kernel_cases import agree, drawn, requantized
from tests.needs import NEEDS_C

pytestmark = NEEDS_C


@pytest.mark.slow
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
    wide=st.booleans(),
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
    wide: bool,
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
        made = requantized(made, outer, 1, rng, wide)
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
    outer=st.sampled_from([1, 3, 17]),
    groups=st.sampled_from([1, 1, 2, "depthwise"]),
    dtype=st.sampled_from(["uint8", "int8", "int16"]),
    how=st.sampled_from(["operator", "zeros", "cut"]),
)
@example(  # a phase that no tap belongs to is longer than the data
    seed=0, size=(1, 3), kernel=(1, 1), strides=(2, 1), dilation=(1, 1), padding=(1, 1, 0, 3),
    extra=0, outer=1, groups="depthwise", dtype="uint8", how="zeros",
)  # fmt: skip
def test_transposed_convolutions_agree(
    seed: int,
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    padding: tuple[int, int, int, int],
    extra: int,
    outer: int,
    groups: Any,
    dtype: str,
    how: str,
) -> None:
    rng, op = np.random.default_rng(seed), relay.op
    groups, inner, outer = (5, 1, 1) if groups == "depthwise" else (groups, 3, outer)
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
    agree(relay.module(made), drawn(rng, shape, dtype, seed % 3 == 0))


def test_transposed_convolutions_multiply_no_zeros() -> None:
    x, weight = relay.var("x", (1, 3, 5, 5), "uint8"), np.ones((3, 17, 4, 4), np.int8)
    made = relay.op.nn.conv2d_transpose(
        x, relay.const(weight), strides=(2, 2), padding=1, out_dtype="int32"
    )
    executor = agree(
        relay.module(made), drawn(np.random.default_rng(0), (1, 3, 5, 5), "uint8", False)
    )
    assert [step.macs for step in executor.steps if step.kind == "gemm"] == [25 * 3 * 17 * 4] * 4


@pytest.mark.parametrize("width", [24, 25, 7])
@pytest.mark.parametrize(
    ("kernel", "stride", "turned"), [(9, 1, False), (3, 2, False), (9, 2, True)]
)
def test_pixels_of_few_channels_share_a_vector(
    width: int, kernel: int, stride: int, turned: bool
) -> None:
    rng, shape, results = np.random.default_rng(width), (2, 6, 5, width), []
    how: dict[str, Any] = {"strides": (stride, stride), "padding": 3, "out_dtype": "int32"}
    for channels, wide in product([1, 2, 3, 5, 8, 9], [False, True]):
        x, sizes = relay.var("x", shape, "int8"), ((6, channels), (channels, 6))[not turned]
        weight = relay.const(drawn(rng, (*sizes, kernel, kernel), "int8", False))
        if turned:
            made = relay.op.nn.conv2d_transpose(x, weight, output_padding=(1, 1), **how)
        else:
            made = relay.op.nn.conv2d(x, weight, **how)
        results.append(requantized(made, channels, 1, rng, wide))
    agree(relay.module(relay.Tuple(results)), *(drawn(rng, shape, "int8", False) for _ in results))


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
    wide=st.booleans(),
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
    wide: bool,
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
    agree(
        relay.module(requantized(made, channels, 1, rng, wide)), drawn(rng, shape, dtype, extreme)
    )


@pytest.mark.slow
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
    wide=st.booleans(),
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
    wide: bool,
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
    made = requantized(made, channels, 1, rng, wide) if seed % 3 else made
    executor = agree(relay.module(made), drawn(rng, shape, "int16", extreme))
    kinds = [step.kind for step in executor.steps]
    assert kinds.count("depthwise") <= 1  # one, unless the bounds decide the result


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


@pytest.mark.slow
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
    wide=st.booleans(),
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
    wide: bool,
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
    made = requantized(made, outer, 1, rng, wide) if seed % 3 else made
    executor = agree(relay.module(made), drawn(rng, shape, "int16", extreme))
    kinds = [step.kind for step in executor.steps]
    assert kinds.count("gemm") + kinds.count("depthwise") <= 1


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


def test_wide_images_are_widened_in_bands_and_row_by_row() -> None:
    """Of a row of 600 windows a block of 240 is a band, which costs more where it crosses two."""
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 32, 3, 600), "uint8")
    weight = relay.const(drawn(rng, (16, 32, 3, 3), "int8", True))
    mod = relay.module(relay.op.nn.conv2d(x, weight, padding=1, out_dtype="int32"))
    agree(mod, drawn(rng, (1, 32, 3, 600), "uint8", False))
