"""Sums of products as dot products and taps: every shape gives the integers of the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import evaluate, lower, relay
from compiler.ir.inference.infer_type import infer_module
from compiler.lir.nodes import PrimFunc
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.kernel_library import kernels_text
from compiler.targets.c.package import c_package
from compiler.targets.c.product_form import with_scratch
from compiler.targets.c.toolchain import EXACT_FLAGS, Command, cpu_features
from tests.each import each

op = relay.op
EXTREMES = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767)}


DSP = ("-O2", "-D__ARM_FEATURE_DSP=1", f"-I{Path(__file__).parent / 'dsp'}")
BUILDS = [
    # Plain C, the form for DSP instructions, and every instruction set that this processor runs.
    ("-O2",),
    DSP,
    *(
        ("-O2", *(f"-m{flag}" for flag in needed))
        for needed in (("avx2",), ("avx512bw",), ("avx512bw", "avx512vnni"))
        if {flag.replace("512v", "512_v") for flag in needed} <= set(cpu_features().split())
    ),
]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Any:
    """Values of a dtype; one in two is an extreme."""
    low, high = EXTREMES[dtype]
    extreme = rng.choice([low, high], shape)
    return np.where(rng.random(shape) < 0.5, extreme, rng.integers(low, high + 1, shape)).astype(
        dtype
    )


def requantized(sums: Any, channels: int, rng: np.random.Generator, rank: int) -> Any:
    """A bias, a scale per channel and a clip, as quantized networks have them."""
    bias = rng.integers(
        -(1 << 20), 1 << 20, (channels, *(1,) * (rank - 2)) if rank > 2 else channels
    )
    multiplier = rng.integers(1 << 30, (1 << 31) - 1, channels)
    multiplier[0] = 1 << 30
    shift = rng.integers(-12, 0, channels)
    wide = op.cast(op.nn.relu(op.add(sums, relay.const(bias.astype("int32")))), dtype="int64")
    scaled = op.fixed_point_multiply_per_axis(
        wide, relay.const(multiplier.astype("int32")), relay.const(shift.astype("int32")), axis=1
    )
    return op.cast(op.clip(scaled, a_min=0.0, a_max=255.0), dtype="uint8")


SHAPES = [
    # channels, filters, groups, size, kernel, stride, padding, dilation
    (8, 4, 1, 9, 1, 1, 0, 1),
    (3, 7, 1, 11, 3, 2, 1, 1),
    (16, 16, 16, 10, 3, 1, 1, 1),
    (8, 8, 8, 13, 5, 2, 2, 1),
    (6, 6, 6, 12, 3, 1, 2, 2),
    (4, 4, 4, 9, 3, 3, 0, 1),
    (8, 12, 4, 8, 3, 1, 1, 1),
    (40, 5, 1, 5, 1, 1, 0, 1),
    (5, 33, 1, 7, 2, 1, 1, 2),
    (12, 12, 12, 4, 1, 1, 0, 1),
    (64, 130, 1, 20, 1, 1, 0, 1),
]


def build_name(flags: tuple[str, ...]) -> str:
    return "dsp" if flags == DSP else " ".join(flags)


PRODUCTS = [
    # rows, depth, columns
    (9, 24, 5, "int8"), (4, 8, 4, "uint8"), (50, 17, 31, "int8"), (12, 40, 9, "int16"),
    # A single row, and a few.
    (1, 64, 10, "int8"), (1, 19, 7, "uint8"), (1, 30, 4, "int16"), (3, 16, 6, "int8"),
]  # fmt: skip


@pytest.mark.parametrize("flags", BUILDS, ids=build_name)
def test_convolutions_of_all_shapes_are_exact(cc: Command, flags: tuple[str, ...]) -> None:
    rng = np.random.default_rng(5)
    params, bodies, given = [], [], []
    for n, (c, o, groups, size, kernel, stride, padding, dilation) in enumerate(SHAPES):
        dtype = ("int8", "uint8")[n % 2]
        shape = (1 + n % 2, c, size, size + 1)
        x = relay.var(f"x{n}", shape, dtype)
        weight = relay.const(numbers(rng, (o, c // groups, kernel, kernel), "int8"))
        conv = op.nn.conv2d(
            x,
            weight,
            strides=(stride, stride),
            padding=(padding, padding),
            dilation=(dilation, dilation),
            groups=groups,
            out_dtype="int32",
        )
        params.append(x)
        bodies.append(requantized(conv, o, rng, 4) if n % 3 else conv)
        given.append(numbers(rng, shape, dtype))
    agree(params, bodies, given, flags)


@pytest.mark.parametrize("flags", [("-O2",), DSP], ids=build_name)
def test_matrix_products_of_all_shapes_are_exact(cc: Command, flags: tuple[str, ...]) -> None:
    rng = np.random.default_rng(6)
    params, bodies, given = [], [], []
    for n, (rows, depth, columns, dtype) in enumerate(PRODUCTS):
        x = relay.var(f"x{n}", (rows, depth), dtype)
        dense = op.nn.dense(
            x, relay.const(numbers(rng, (columns, depth), "int8")), out_dtype="int32"
        )
        params.append(x)
        bodies.append(requantized(dense, columns, rng, 2))
        given.append(numbers(rng, (rows, depth), dtype))
    for transposed in (True, False):
        a = relay.var(f"a{transposed}", (3, 10, 16), "int8")
        b = relay.var(f"b{transposed}", (3, 9, 16) if transposed else (3, 16, 9), "uint8")
        bodies.append(op.nn.batch_matmul(a, b, out_dtype="int32", transpose_b=transposed))
        params += [a, b]
        given += [
            numbers(rng, v.type_annotation.concrete_shape, v.type_annotation.dtype) for v in (a, b)
        ]  # type: ignore[attr-defined]
    agree(params, bodies, given, flags)


def agree(
    params: list[Any], bodies: list[Any], given: list[Any], flags: tuple[str, ...] = EXACT_FLAGS
) -> None:
    mod = infer_module(relay.module(relay.Function(tuple(params), relay.Tuple(bodies))))
    for a, b in zip(CExecutor(mod, flags=flags).run(given), evaluate(mod, given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def text_of(body: Any) -> str:
    mod = lower(relay.module(body)).mod
    functions = [with_scratch(f) for f in mod.functions.values() if isinstance(f, PrimFunc)]
    return kernels_text(functions)[1]


@pytest.mark.parametrize("kernel", [1, 3])
def test_the_innermost_loop_has_eight_dot_products(kernel: int) -> None:
    weight = relay.const(np.ones((8, 16, kernel, kernel), "int8"))
    x = relay.var("x", (1, 16, 9, 9), "int8")
    text = text_of(op.nn.conv2d(x, weight, padding=kernel // 2, out_dtype="int32"))
    assert text.count("+= (int32_t)a") == 8


def test_a_depthwise_convolution_is_one_expression_of_its_taps() -> None:
    weight = relay.const(np.ones((16, 1, 3, 3), "int8"))
    x = relay.var("x", (1, 16, 9, 9), "int8")
    text = text_of(op.nn.conv2d(x, weight, padding=(1, 1), groups=16, out_dtype="int32"))
    assert text.count("+ (int32_t)rows0[") == 8


@pytest.mark.parametrize(
    ("budget", "most"), [(0, 12 * 1408), (1 << 15, 1 << 15), (1 << 20, 1 << 16)]
)
@pytest.mark.parametrize("size", [512, 10])
def test_scratch_memory_keeps_to_its_budget(size: int, budget: int, most: int) -> None:
    weight = relay.const(np.ones((64, 64, 3, 3), "int8"))
    x = relay.var("x", (1, 64, size, size), "int8")
    mod = lower(relay.module(op.nn.conv2d(x, weight, out_dtype="int32"))).mod
    for func in each(func for func in mod.functions.values() if isinstance(func, PrimFunc)):
        temps = with_scratch(func, budget).temps
        assert sum(temp.nbytes for temp in temps) <= most + 4 * 2 * 576


def test_a_tensor_that_only_a_sum_reads_needs_no_memory(cc: Command) -> None:
    x = relay.var("x", (1, 64, 25, 5), "uint8")
    pooled = op.nn.global_avg_pool2d(op.multiply(op.cast(x, dtype="int32"), relay.const(125)))
    mod = relay.module(relay.Function((x,), pooled))
    package = c_package(lower(mod, target="c").mod, "pooled")
    assert package.kernels == 1
    assert package.arena_bytes == 0
    rng = np.random.default_rng(7)
    agree([x], [pooled], [numbers(rng, (1, 64, 25, 5), "uint8")])
