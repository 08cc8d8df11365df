"""The kernels of every instruction set at hand give the integers of the reference."""

from __future__ import annotations

import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas, load_library, shipped_library
from compiler.targets.engine.steps import layout
from compiler.targets.engine.views import NoProgramError
from compiler.targets.reference.executor import ReferenceExecutor

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")

Array = np.ndarray[Any, Any]
EXTREMES = {"uint8": [0, 255], "int8": [-128, 127]}


def agree(mod: IRModule, *inputs: Array) -> EngineExecutor:
    """Every instruction set gives the reference's integers; the last executor."""
    wanted = ReferenceExecutor(mod).run(list(inputs))
    executor = None
    for isa in available_isas():
        executor = EngineExecutor(mod, isa=isa)
        for left, right in zip(wanted, executor.run(list(inputs)), strict=True):
            np.testing.assert_array_equal(left, right, err_msg=isa)
    assert executor is not None
    return executor


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, extreme: bool) -> Array:
    if extreme:
        return rng.choice(EXTREMES[dtype], shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max + 1, shape).astype(dtype)


def requantized(product: Expr, channels: int, axis: int, rng: np.random.Generator) -> Expr:
    """Bias, factor a channel, clip and cast, as the quantizer writes them."""
    op = relay.op
    shape = [1] * 4
    shape[axis] = channels
    bias = rng.integers(-5000, 5000, shape[axis:] if axis else shape).astype("int32")
    wide = op.cast(op.add(product, relay.const(bias)), dtype="int64")
    powers = rng.random() < 0.2
    factor = np.where(powers, 1 << 30, rng.integers(1 << 30, (1 << 31) - 1, channels))
    shift = rng.integers(-14, -1, channels)
    scaled = op.fixed_point_multiply_per_axis(
        wide, relay.const(factor.astype("int32")), relay.const(shift.astype("int32")), axis=axis
    )
    signed = bool(rng.random() < 0.5)
    low, high, dtype = (-128, 127, "int8") if signed else (0, 255, "uint8")
    return op.cast(op.clip(scaled, a_min=low, a_max=high), dtype=dtype)


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
    dtype=st.sampled_from(["uint8", "int8"]),
    extreme=st.booleans(),
    layout=st.sampled_from(["NCHW", "NHWC"]),
)
def test_convolutions_of_any_geometry(
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
    dtype=st.sampled_from(["uint8", "int8"]),
    how=st.sampled_from(["operator", "zeros", "cut"]),
)
def test_transposed_convolutions(
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
def test_depthwise_rows_longer_than_a_pass(
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
    rows=st.integers(1, 60),
    length=st.integers(1, 300),
    columns=st.integers(1, 150),
    dtype=st.sampled_from(["uint8", "int8"]),
    extreme=st.booleans(),
)
def test_products_of_any_size(
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
def test_products_of_seven_bit_weights(
    seed: int, rows: int, length: int, columns: int, extreme: bool
) -> None:
    rng = np.random.default_rng(seed)
    size = (columns, length)
    weight = rng.choice([-64, 63], size) if extreme else rng.integers(-64, 64, size)
    x = relay.var("x", (rows, length), "uint8")
    made = relay.op.nn.dense(x, relay.const(weight.astype("int8")), out_dtype="int32")
    agree(relay.module(made), drawn(rng, (rows, length), "uint8", extreme))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 200)),
    bits=st.tuples(st.integers(0, 12), st.integers(1, 14)),
    epsilon=st.integers(1, 1000),
    centred=st.booleans(),
    dtype=st.sampled_from(["int8", "int16"]),
    extreme=st.booleans(),
)
def test_standardized_rows(
    seed: int,
    shape: tuple[int, int],
    bits: tuple[int, int],
    epsilon: int,
    centred: bool,
    dtype: str,
    extreme: bool,
) -> None:
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    x = relay.var("x", shape, dtype)
    made = relay.op.nn.integer_standardize(
        x, epsilon=epsilon, root_bits=bits[0], out_bits=bits[1], centred=centred
    )
    ends = rng.choice([info.min, info.max], shape)
    agree(relay.module(made), ends.astype(dtype) if extreme else drawn(rng, shape, dtype, False))


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(1, 40), st.integers(1, 40)),
    transposed=st.booleans(),
    dtype=st.sampled_from(["uint8", "int8"]),
    extreme=st.booleans(),
)
def test_products_of_two_activations(
    seed: int, sizes: tuple[int, int, int, int], transposed: bool, dtype: str, extreme: bool
) -> None:
    rng = np.random.default_rng(seed)
    batch, rows, length, columns = sizes
    right = (batch, columns, length) if transposed else (batch, length, columns)
    x, y = relay.var("x", (batch, rows, length), dtype), relay.var("y", right, "int8")
    product = relay.op.nn.batch_matmul(x, y, out_dtype="int32", transpose_b=transposed)
    wide = relay.op.cast(product, dtype="int64")
    scaled = relay.op.fixed_point_multiply(wide, multiplier=1518500250, shift=-11)
    mod = relay.module(relay.op.clip(scaled, a_min=-128, a_max=127))
    agree(mod, drawn(rng, x_shape(x), dtype, extreme), drawn(rng, right, "int8", extreme))


def x_shape(x: Any) -> tuple[int, ...]:
    return tuple(x.type_annotation.concrete_shape)


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
def test_chains_of_elementwise_operators(
    chain: Callable[[Expr, Expr], Expr], shape: tuple[int, ...], extreme: bool
) -> None:
    rng = np.random.default_rng(len(shape))
    x, y = relay.var("x", shape, "int8"), relay.var("y", shape, "uint8")
    inputs = [drawn(rng, shape, dtype, extreme) for dtype in ("int8", "uint8")]
    assert agree(relay.module(chain(x, y)), *inputs).host_steps == 0


def test_an_operator_without_a_kernel_runs_on_numpy() -> None:
    x = relay.var("x", (1, 4, 3), "int8")
    total = relay.op.cumsum(relay.op.cast(x, dtype="int32"), axis=1)
    mod = relay.module(relay.op.clip(total, a_min=-50, a_max=50))
    executor = agree(mod, drawn(np.random.default_rng(0), (1, 4, 3), "int8", False))
    assert executor.host_operators == ("cumsum",)


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


@pytest.mark.parametrize("out", ["int8", "int16"])
def test_sums_of_products_wrap_in_a_narrow_dtype(out: str) -> None:
    rng = np.random.default_rng(4)
    x = relay.var("x", (1, 8, 5, 5), "int8")
    weight = relay.const(drawn(rng, (4, 8, 3, 3), "int8", False))
    made = relay.op.nn.conv2d(x, weight, padding=1, out_dtype=out)
    mod = relay.module(relay.op.cast(made, dtype="int32"))
    agree(mod, drawn(rng, (1, 8, 5, 5), "int8", False))


@pytest.mark.parametrize("rounding", ["away", "even"])
@pytest.mark.parametrize("factor", [1234567891, 1 << 30, 3 << 29])
@pytest.mark.parametrize("bits", [6, 31, 36, 40])
def test_rounded_products_of_64_bits(rounding: str, factor: int, bits: int) -> None:
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
    assert agree(relay.module(shifted), data.astype("int32")).host_steps == 0


def shifted_to_even(x: Expr, bits: Array, axis_size: tuple[int, ...]) -> Expr:
    op, shifts = relay.op, relay.const(bits.astype("int32").reshape(axis_size))
    below = np.maximum((1 << bits.astype("int32") >> 1) - 1, 0).reshape(axis_size).astype("int32")
    mask = relay.const((bits > 0).astype("int32").reshape(axis_size))
    odd = op.bitwise_and(op.right_shift(x, shifts), mask)
    return op.right_shift(op.add(op.add(x, relay.const(below)), odd), shifts)


@pytest.mark.parametrize("bits", [[0, 1, 5, 9], [7], [0]])
@pytest.mark.parametrize("in_front", ["conv2d", "depthwise", "batch_matmul", "add", "shared"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32"])
def test_shifts_that_round_to_even(bits: list[int], in_front: str, dtype: str) -> None:
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
    assert executor.host_steps == 0
    if in_front in ("conv2d", "depthwise") and bits != [0]:
        assert not {"elementwise", "wide"} & set(kinds)


@pytest.mark.parametrize("name", ["less", "greater_equal", "equal", "not_equal", "greater"])
@pytest.mark.parametrize("dtype", ["int8", "int64"])
def test_choices_by_comparisons(name: str, dtype: str) -> None:
    op, rng = relay.op, np.random.default_rng(5)
    x, y = relay.var("x", (3, 1, 7), dtype), relay.var("y", (3, 4, 7), dtype)
    chosen = op.where(getattr(op, name)(x, y), op.negative(op.add(y, y)), op.abs(x))
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    drawn_x = rng.choice([low, -1, 0, 1, high], (3, 1, 7)).astype(dtype)
    drawn_y = rng.choice([low, -1, 0, 1, high], (3, 4, 7)).astype(dtype)
    assert agree(relay.module(chosen), drawn_x, drawn_y).host_steps == 0


def _orders(x: Expr) -> list[Expr]:
    op = relay.op
    places = relay.const(np.array([[2, 0], [3, 3]], np.int64))
    return [
        op.take(x, places, axis=1),
        op.tile(x, reps=(1, 2, 1, 3)),
        op.repeat(x, repeats=2, axis=2),
        op.reverse(x, axis=3),
        op.nn.upsampling(x, scale_h=2, scale_w=3, method="nearest_neighbor"),
        op.nn.mirror_pad(x, pad_width=((0, 0), (0, 0), (1, 1), (0, 2))),
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
    executor = agree(mod, drawn(np.random.default_rng(number), (2, 4, 4, 6), "int8", False))
    assert executor.host_steps == 0


@pytest.mark.parametrize("index", ["int64", "uint8"])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("axis", [0, 1, None])
def test_rows_are_taken_by_computed_places(index: str, mode: str, axis: int | None) -> None:
    rng = np.random.default_rng(6)
    table = relay.const(rng.integers(-900, 900, (5, 6, 3)).astype("int16"))
    places = relay.var("i", (2, 7), index)
    mod = relay.module(relay.op.take(table, places, axis=axis, mode=mode))
    low = 0 if index == "uint8" else -9
    found = agree(mod, rng.integers(low, 12, (2, 7)).astype(index))
    assert found.host_steps == 0


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_products_of_16_bits_are_sums_of_products_of_bytes(dtype: str, groups: int) -> None:
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


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("entries", ["int8", "int16"])
@pytest.mark.parametrize("size", [1, 31, 64, 65, 300])
def test_tables_of_256_entries(dtype: str, entries: str, size: int) -> None:
    rng = np.random.default_rng(size)
    table = rng.integers(-128, 128, 256) * (1 if entries == "int8" else 200)
    x = np.resize(rng.permutation(256), (2, size)).astype(dtype)
    looked = relay.op.lookup(relay.var("x", x.shape, dtype), relay.const(table.astype(entries)))
    assert agree(relay.module(looked), x).host_steps == 0


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
def test_pools_of_any_geometry(
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


def test_an_input_that_is_reshaped_before_it_is_quantized() -> None:
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


def test_many_inputs_and_outputs() -> None:
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


@pytest.mark.parametrize("isa", available_isas())
def test_accumulators_stay_in_registers(isa: str) -> None:
    """No instruction of the innermost loop of a product or of taps touches the stack."""
    dump = shutil.which("objdump")
    if dump is None or isa == "generic":
        return
    path = shipped_library(isa) or load_library(isa).path
    text = subprocess.run([dump, "-d", str(path)], capture_output=True, text=True, check=True)
    multiply = {"vnni": "vpdpbusd", "avx2": "vpmadd", "neon": "sdot"}[isa]
    pattern = r"<(qk_tile_\w+|qk_taps_\d)>:\n(.*?)\n\n"
    functions = re.findall(pattern, text.stdout + "\n\n", flags=re.S)
    assert len(functions) >= 10
    for name, body in functions:
        loop = _innermost_loop(body, multiply)
        assert sum(multiply in line for line in loop) >= 1, name
        assert not [line for line in loop if "rsp" in line or "rbp" in line or "[sp" in line], name


def _innermost_loop(body: str, multiply: str) -> list[str]:
    """The shortest run of instructions between a backward jump and its target that multiplies."""
    lines = [line.split("\t") for line in body.splitlines()]
    places = {int(parts[0].strip(" :"), 16): n for n, parts in enumerate(lines) if len(parts) > 1}
    loops = []
    for number, parts in enumerate(lines):
        jump = re.search(r"\b(j\w+|b\.\w+|cbn?z)\s.*?([0-9a-f]+) <", parts[-1])
        if jump and places.get(int(jump[2], 16), number + 1) <= number:
            loop = [p[-1] for p in lines[places[int(jump[2], 16)] : number]]
            if any(multiply in line for line in loop):
                loops.append(loop)
    return min(loops, key=len, default=[])
