"""Kernels of pools, reductions, tables and orders give the integers of the reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from compiler import relay
from compiler.ir.expr import Expr
from compiler.targets.engine.lines import as_lines
from tests.compiler.targets.engine.kernel_cases import agree, drawn, requantized
from tests.needs import NEEDS_C

Array = NDArray[Any]

pytestmark = NEEDS_C


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 90), st.integers(1, 200)),
    bits=st.tuples(st.integers(0, 12), st.integers(1, 14)),
    epsilon=st.integers(1, 1000),
    centred=st.booleans(),
    dtype=st.sampled_from(["int8", "int16"]),
    values=st.sampled_from(["any", "extreme", "equal"]),
)
def test_standardized_rows_agree(
    seed: int,
    shape: tuple[int, int],
    bits: tuple[int, int],
    epsilon: int,
    centred: bool,
    dtype: str,
    values: str,
) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    # The operator's contract: of what leaves 62 bits nothing is said.
    reach = shape[1] * -int(info.min)
    assume((reach**2 + epsilon) << (2 * bits[0]) < 1 << 62)
    assume(2 * reach << (sum(bits) + 1) < 1 << 62)
    x = relay.var("x", shape, dtype)
    made = relay.op.nn.integer_standardize(
        x, epsilon=epsilon, root_bits=bits[0], out_bits=bits[1], centred=centred
    )
    given = drawn(rng, shape, dtype, values == "extreme")
    if values == "equal":  # but for one element of the last row
        given[:] = drawn(rng, (shape[0], 1), dtype, True)
        given[-1, 0] = 1
    agree(relay.module(made), given)


def test_rows_longer_than_32_bits_hold_the_squares_of_are_standardized() -> None:
    shape = (2, 70001)
    x = relay.var("x", shape, "int8")
    made = relay.op.nn.integer_standardize(x, epsilon=7, root_bits=3, out_bits=9)
    agree(relay.module(made), drawn(np.random.default_rng(3), shape, "int8", True))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 70), st.integers(1, 150)),
    most=st.sampled_from([1, 250, 70_000, (1 << 22) + 1, 1 << 23]),
    entries=st.sampled_from([1, 40, 255, 256, 700]),
    out_bits=st.integers(1, 20),
    dtype=st.sampled_from(["int8", "int16"]),
    extreme=st.booleans(),
)
def test_softmax_rows_agree(
    seed: int,
    shape: tuple[int, int],
    most: int,
    entries: int,
    out_bits: int,
    dtype: str,
    extreme: bool,
) -> None:
    rng = np.random.default_rng(seed)
    table = np.exp(-np.arange(entries) * rng.uniform(0.001, 0.5)) * most
    x = relay.var("x", shape, dtype)
    entries_of = relay.const(table.round().astype("int32"))
    made = relay.op.nn.integer_softmax(x, entries_of, out_bits=out_bits)
    agree(relay.module(made), drawn(rng, shape, dtype, extreme))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.lists(st.integers(1, 40), min_size=2, max_size=4),
    dtype=st.sampled_from(["int8", "uint8", "int16", "int32"]),
)
def test_elements_are_copied_in_any_order_of_axes(seed: int, shape: list[int], dtype: str) -> None:
    rng = np.random.default_rng(seed)
    given_of = rng.integers(-100 if dtype != "uint8" else 0, 100, shape).astype(dtype)
    x = relay.var("x", tuple(shape), dtype)
    turned = relay.op.transpose(x, axes=tuple(int(a) for a in rng.permutation(len(shape))))
    agree(relay.module(relay.op.reshape(turned, newshape=(-1,))), given_of)


@pytest.mark.parametrize("channels", [3, 12, 16, 24, 32, 65, 530])
def test_short_rows_with_factors_of_their_columns_agree(channels: int) -> None:
    """As many rows as fit run together; the last ones are fewer."""
    rng, op, shape = np.random.default_rng(channels), relay.op, (1, 9, 11, channels)
    x, y = relay.var("x", shape, "int8"), relay.var("y", shape, "int16")
    weight = relay.const(rng.integers(-99, 99, (1, 1, 1, channels)).astype("int32"))
    total = op.add(op.multiply(op.cast(x, dtype="int32"), weight), op.cast(y, dtype="int32"))
    made = requantized(total, channels, 3, rng)
    both = op.add(op.cast(made, dtype="int32"), op.cast(x, dtype="int32"))
    inputs = [drawn(rng, shape, dtype, False) for dtype in ("int8", "int16")]
    agree(relay.module(both), *inputs)


@pytest.mark.parametrize("wide", ["nn.global_avg_pool2d", "mean"])
def test_int32_of_a_kernel_is_read_as_bytes(wide: str) -> None:
    op, rng = relay.op, np.random.default_rng(1)
    x = relay.var("x", (1, 8, 4, 4), "uint8")
    data = op.cast(x, dtype="int32")
    pooled = op.nn.global_avg_pool2d(data) if "pool" in wide else op.mean(data, axis=(2, 3))
    narrow = op.reshape(op.cast(pooled, dtype="uint8"), newshape=(1, 8))
    weight = relay.const(rng.integers(-128, 128, (5, 8)).astype("int8"))
    agree(
        relay.module(op.nn.dense(narrow, weight, out_dtype="int32")),
        drawn(rng, (1, 8, 4, 4), "uint8", False),
    )


def _orders(x: Expr) -> list[Expr]:
    op = relay.op
    places = relay.const(np.array([[2, 0], [3, 3]], np.int64))
    return [
        op.take(x, places, axis=1),
        op.tile(x, reps=(1, 2, 1, 3)),
        op.repeat(x, repeats=2, axis=2),
        op.reverse(x, axis=3),
        op.nn.upsampling(x, scale_h=2, scale_w=3, method="nearest_neighbor"),
        op.nn.pad(
            x,
            relay.const(np.int8(0)),
            pad_width=((0, 0), (0, 0), (1, 1), (0, 2)),
            pad_mode="edge",
        ),
        op.nn.depth_to_space(x, block_size=2),
        op.strided_slice(x, begin=(0, 3), end=(2, 0), strides=(1, -2)),
        op.stack([x, x], axis=2),
        op.broadcast_to(op.strided_slice(x, begin=(0, 0), end=(2, 1)), shape=(2, 4, 4, 6)),
        op.nn.pad(x, relay.const(np.int8(7)), pad_width=((1, 0), (0, 2), (1, 1), (0, 3))),
        op.argmax(x, axis=(1, 3)),
        op.min(x, axis=2, keepdims=True),
        op.cast(op.sum(op.cast(x, dtype="int32"), axis=(0, 2)), dtype="int8"),
    ]


@pytest.mark.parametrize("number", range(14))
@pytest.mark.parametrize("in_front", ["input", "pool"])
def test_orders_and_reductions_have_kernels(number: int, in_front: str) -> None:
    x = relay.var("x", (2, 4, 4, 6), "int8")
    data = x
    if in_front == "pool":
        data = relay.op.nn.max_pool2d(x, pool_size=(3, 3), padding=(1, 1, 1, 1))
    mod = relay.module(_orders(data)[number])
    agree(mod, drawn(np.random.default_rng(number), (2, 4, 4, 6), "int8", False))


@pytest.mark.parametrize("axis", [1, 3])
@pytest.mark.parametrize("places", [-1, 2, [1], [1, 2, 3], [[0, 1], [2, 3]], [2, 2], [3, 1]])
def test_places_that_are_equally_far_apart_are_the_same_memory(places: Any, axis: int) -> None:
    x = relay.var("x", (2, 4, 3, 5), "int8")
    taken = relay.op.take(x, relay.const(np.array(places, np.int64)), axis=axis, mode="wrap")
    made = relay.op.multiply(relay.op.cast(taken, dtype="int32"), relay.const(np.int32(3)))
    engine = agree(relay.module(made), drawn(np.random.default_rng(2), (2, 4, 3, 5), "int8", False))
    moved = places in ([2, 2], [3, 1])
    assert ("gather" in [step.kind for step in engine.steps]) is moved


@pytest.mark.parametrize("index", ["int64", "uint8"])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_rows_are_taken_by_computed_places(index: str, mode: str, axis: int | None) -> None:
    rng = np.random.default_rng(6)
    table = relay.const(rng.integers(-900, 900, (5, 6, 3)).astype("int16"))
    places = relay.var("i", (2, 7), index)
    mod = relay.module(relay.op.take(table, places, axis=axis, mode=mode))
    low = 0 if index == "uint8" else -9
    agree(mod, rng.integers(low, 12, (2, 7)).astype(index))


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("entries", ["int8", "int16"])
@pytest.mark.parametrize("size", [1, 31, 64, 65, 300])
def test_tables_of_256_entries_agree(dtype: str, entries: str, size: int) -> None:
    rng = np.random.default_rng(size)
    table = rng.integers(-128, 128, 256) * (1 if entries == "int8" else 200)
    x = np.resize(rng.permutation(256), (2, size)).astype(dtype)
    looked = relay.op.lookup(relay.var("x", x.shape, dtype), relay.const(table.astype(entries)))
    agree(relay.module(looked), x)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 9), st.integers(1, 9)),
    ends=st.tuples(*[st.integers(-32768, 32767)] * 2),
    dtype=st.sampled_from(["int16", "uint16"]),
    size=st.sampled_from([1, 5, 256, 4096, 65536]),
    entries=st.sampled_from(["int8", "uint8", "int16", "int32"]),
    reader=st.sampled_from(["none", "turned", "border"]),
)
def test_tables_over_sixteen_bits_agree(
    seed: int,
    shape: tuple[int, ...],
    ends: tuple[int, int],
    dtype: str,
    size: int,
    entries: str,
    reader: str,
) -> None:
    """Of any length, over all values or those between two ends, with a border or without."""
    rng, op = np.random.default_rng(seed), relay.op
    low, high = sorted(ends) if seed % 4 else (-32768, 32767)
    data = op.clip(relay.var("x", shape, "int16"), a_min=low, a_max=high)
    if dtype == "uint16":
        offset = relay.const(np.int32(32768 if seed % 3 else -low))
        data = op.cast(op.add(op.cast(data, dtype="int32"), offset), dtype=dtype)
    data = op.transpose(data, axes=(0, 2, 3, 1)) if reader == "turned" else data
    info = np.iinfo(entries)
    table = rng.integers(info.min, info.max, size, endpoint=True).astype(entries)
    looked = op.lookup(data, relay.const(table))
    if reader == "border" and entries != "int32":
        weight = relay.const(drawn(rng, (shape[1], 1, 3, 3), "int8", False))
        looked = op.nn.conv2d(looked, weight, padding=1, groups=shape[1], out_dtype="int32")
    executor = agree(relay.module(looked), drawn(rng, shape, "int16", seed % 5 == 0))
    assert "take" not in [step.kind for step in executor.steps]


FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "random": lambda x: np.random.default_rng(len(x)).normal(size=len(x)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("bits", [9, 10, 11, 12])
def test_tables_of_functions_agree(name: str, bits: int) -> None:
    """Over a whole number of bits, and over somewhat less; the index counts from below zero."""
    rng, op, looked, inputs = np.random.default_rng(bits), relay.op, [], []
    for unused, ends in product([0, 3, 70], [(-2, 2), (-8, 8), (-3.1, 14.3), (-20, 20)]):
        first = -(1 << bits - 1) + unused // 2
        reals = FUNCTIONS[name](np.linspace(*ends, (1 << bits) - unused))
        entries = np.rint((reals - reals.min()) * 255 / np.ptp(reals)).astype("int32")
        x = np.concatenate((np.arange(len(entries)), rng.integers(0, len(entries), 200)))
        x = (x[: len(x) // 3 * 3].reshape(3, -1) + first).astype("int16")
        data, last = relay.var(f"x{len(inputs)}", x.shape, "int16"), first + len(entries) - 1
        wide = op.cast(op.clip(data, a_min=first, a_max=last), dtype="int32")
        moved = op.cast(op.subtract(wide, relay.const(np.int32(first))), dtype="uint16")
        looked.append(op.lookup(moved, relay.const(entries)))
        inputs.append(x)
    agree(relay.module(relay.Tuple(looked)), *inputs)


@pytest.mark.parametrize("name", ["silu", "hard_swish", "gelu"])
@pytest.mark.parametrize("bits", [9, 10, 11, 12])
@pytest.mark.parametrize("most", [4, 9, 16])
def test_tables_of_functions_are_lines(name: str, bits: int, most: int) -> None:
    reals = FUNCTIONS[name](np.linspace(-most, most, 1 << bits))
    entries = np.rint((reals - reals.min()) * 255 / np.ptp(reals)).astype(int)
    made = as_lines(entries)
    assert made is not None
    bases, starts, slopes = made[:768].reshape(3, 256).astype(int)
    slopes = (slopes + 128) % 256 - 128
    rest_bits, place, last, more = made[768:].astype(int)
    index = np.arange(1 << bits)
    places, rests = index >> rest_bits, (index << 4 - rest_bits) & 15
    found = bases[places] + (starts[places] + slopes[places] * rests >> 8)
    found += more * ((places == place) & (rests > last))
    np.testing.assert_array_equal(found % 256, entries)


@pytest.mark.parametrize("size", [2, 128, 256, 300, 8192])
def test_tables_of_other_sizes_and_of_no_function_are_no_lines(size: int) -> None:
    assert as_lines(np.zeros(size, int)) is None
    assert as_lines(np.random.default_rng(0).integers(0, 256, 4096)) is None


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("clips_again", [False, True])
def test_a_table_over_twelve_bits_lies_between_two_products(images: int, clips_again: bool) -> None:
    """The sum and the clip in front of it are part of the table, the border of its result."""
    rng, op = np.random.default_rng(5), relay.op
    x = relay.var("x", (images, 8, 9, 11), "int8")
    made = op.nn.conv2d(x, relay.const(drawn(rng, (24, 8, 1, 1), "int8", False)), out_dtype="int32")
    wide = op.fixed_point_multiply(op.cast(made, dtype="int64"), multiplier=3 << 29, shift=-3)
    narrow = op.cast(op.clip(wide, a_min=-2047, a_max=2047), dtype="int16")
    moved = op.subtract(op.cast(narrow, dtype="int32"), relay.const(np.int32(-1900)))
    moved = (
        op.clip(moved, a_min=0, a_max=3900) if clips_again else op.maximum(moved, relay.const(0))
    )
    table = relay.const(rng.integers(-128, 128, 3500).astype("int8"))
    looked = op.lookup(op.cast(moved, dtype="uint16"), table)
    weight = relay.const(drawn(rng, (24, 1, 3, 3), "int8", False))
    sums = op.nn.conv2d(looked, weight, padding=1, groups=24, out_dtype="int32")
    executor = agree(relay.module(sums), drawn(rng, (images, 8, 9, 11), "int8", False))
    kinds = [step.kind for step in executor.steps]
    assert [kinds.count(kind) for kind in ("lookup", "elementwise")] == [1, 0]
    assert kinds.count("copy") <= 1  # of the output


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    channels=st.integers(1, 70),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 1)] * 4),
    included=st.booleans(),
    dtype=st.sampled_from(["uint8", "int8"]),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_pools_of_any_geometry_agree(
    seed: int,
    channels: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    included: bool,
    dtype: str,
    layout: str,
) -> None:
    rng, op = np.random.default_rng(seed), relay.op
    pads = tuple(min(p, kernel[i % 2] - 1) for i, p in enumerate(pads))
    shape = [1, channels, 6, 7] if layout == "NCHW" else [1, 6, 7, channels]
    x = relay.var("x", tuple(shape), dtype)
    window = {"pool_size": kernel, "strides": strides, "padding": pads, "layout": layout}
    most = op.nn.max_pool2d(x, **window)
    wide = op.cast(x, dtype="int32")
    mean = op.nn.avg_pool2d(wide, count_include_pad=included, **window)
    results = relay.Tuple((most, mean, op.nn.max_pool2d(op.multiply(wide, wide), **window)))
    agree(relay.module(results), drawn(rng, tuple(shape), dtype, seed % 3 == 0))


def test_means_of_more_taps_than_sixteen_bits_hold() -> None:
    x = relay.var("x", (1, 33, 17, 16), "uint8")
    mean = relay.op.nn.global_avg_pool2d(relay.op.cast(x, dtype="int32"))
    agree(relay.module(mean), np.full((1, 33, 17, 16), 255, np.uint8))


@pytest.mark.parametrize("groups", [2, 5])
def test_channels_are_shuffled_in_the_order_of_images(groups: int) -> None:
    op, rng = relay.op, np.random.default_rng(groups)
    x = relay.var("x", (1, 10, 6, 7), "int8")
    weight = relay.const(drawn(rng, (10, 10, 3, 3), "int8", False))
    made = requantized(op.nn.conv2d(x, weight, padding=1, out_dtype="int32"), 10, 1, rng)
    apart = op.reshape(made, newshape=(1, groups, 10 // groups, 6, 7))
    mixed = op.reshape(op.transpose(apart, axes=(0, 2, 1, 3, 4)), newshape=(1, 10, 6, 7))
    last = op.nn.conv2d(op.cast(mixed, dtype="int8"), weight, padding=1, out_dtype="int32")
    executor = agree(relay.module(last), drawn(rng, (1, 10, 6, 7), "int8", False))
    assert sum(step.kind == "copy" for step in executor.steps) <= 2  # the shuffle, the output


@pytest.mark.parametrize("name", ["sum", "mean", "max"])
@pytest.mark.parametrize("axes", [(1,), (2,), (3,), (2, 3), (1, 3), (1, 2, 3)])
@pytest.mark.parametrize("dtype", ["uint8", "int16"])
def test_reductions_of_any_axes_are_pools(name: str, axes: tuple[int, ...], dtype: str) -> None:
    rng, op, shape = np.random.default_rng(sum(axes)), relay.op, (1, 12, 9, 21)
    x = relay.var("x", shape, dtype)
    made = getattr(op, name)(op.cast(x, dtype="int32"), axis=axes)
    engine = agree(relay.module(made), drawn(rng, shape, dtype, False))
    assert "reduce" not in [step.kind for step in engine.steps]
