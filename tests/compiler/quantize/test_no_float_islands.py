"""Operators that integers go through: reference, exact ONNX and grid, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.quantize import (
    Candidate,
    QConfig,
    prerequisite_optimize,
)
from tests.compiler.quantize.candidates import assert_same_integers, calibrated, sqnr_db

op = relay.op
Batches = list[dict[str, Any]]


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Expr:
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return relay.const(values.astype(np.float32))


def network(build: Callable[[Expr], Expr], shape: tuple[int, ...]) -> IRModule:
    x = relay.var("x", shape)
    mod = infer_module(IRModule.from_expr(relay.Function((x,), build(x))))
    return prerequisite_optimize(mod, None, 3)


def batches(shape: tuple[int, ...], count: int = 4, seed: int = 1) -> Batches:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal(shape).astype(np.float32)} for _ in range(count)]


def quantized(mod: IRModule, data: Batches, **fields: Any) -> Candidate:
    config = QConfig.recommended(**{"calibrate_mode": "max", **fields})
    return calibrated(mod, config, data)


def conv(x: Expr, reads: int, channels: int, size: int = 3, seed: int = 0) -> Expr:
    weight = normal(channels, reads, size, size, seed=seed, scale=(reads * size**2) ** -0.5)
    return op.nn.conv2d(x, weight, padding=(size // 2,) * 4)


POOLS: dict[str, Callable[[Expr], Expr]] = {
    "windows": lambda x: op.nn.avg_pool2d(x, pool_size=(3, 3), strides=(2, 2), padding=(1,) * 4),
    "image": op.nn.global_avg_pool2d,
    "mean": lambda x: op.mean(x, axis=(2, 3)),
}


@pytest.mark.parametrize("rounding", [True, False])
@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("channels", [8, 1024])
def test_an_average_of_accumulators_is_never_refused(
    pool: str, rounding: bool, channels: int
) -> None:
    """1024 channels make accumulators whose sum over a window leaves 32 bits."""
    shape = (1, channels, 8, 8)
    mod = network(lambda x: POOLS[pool](conv(x, channels, 16)), shape)
    data = batches(shape)
    made = quantized(mod, data, avg_pool_round=rounding)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > (22 if rounding else 14)


def test_a_mean_over_a_large_image_is_still_rounded() -> None:
    """The common multiple of the counts, 66 x 66, would leave 32 bits."""
    shape = (1, 3, 66, 66)
    mod = network(lambda x: op.nn.global_avg_pool2d(op.nn.relu(conv(x, 3, 8))), shape)
    data = batches(shape)
    made = quantized(mod, data)
    assert_same_integers(made.partitioned, data)
    truncated = quantized(mod, data, avg_pool_round=False)
    assert sqnr_db(mod, made.partitioned, data) > sqnr_db(mod, truncated.partitioned, data) + 3


def test_a_sum_that_32_bits_do_not_hold_is_made_in_64() -> None:
    """16 bit data: 2^15 times 2^17 terms."""
    shape = (1, 2, 256, 256)
    mod = network(lambda x: op.sum(op.nn.relu(conv(x, 2, 2, 1)), axis=(1, 2, 3)), shape)
    data = batches(shape, 2)
    wide = {"dtype_input": "int16", "nbit_input": 16, "nbit_weight": 8}
    made = quantized(mod, data, **wide)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > 35


def bias(channels: int) -> Expr:
    return normal(channels, 1, 1, seed=5, scale=0.2)


def transposed(x: Expr, channels: int, weight: tuple[int, ...], **attrs: Any) -> Expr:
    fan = weight[0] // attrs.get("groups", 1) * weight[2] * weight[3]
    made = op.nn.conv2d_transpose(
        x,
        normal(*weight, seed=3, scale=(2 / fan) ** 0.5),
        channels=channels,
        kernel_size=weight[2:],
        **attrs,
    )
    return op.add(made, bias(channels))


def resized(method: str, size: tuple[int, int], mode: str) -> Callable[[Expr], Expr]:
    return lambda x: op.image.resize2d(
        x, size=size, method=method, coordinate_transformation_mode=mode
    )


ISLANDS: dict[str, Callable[[Expr], Expr]] = {
    "bilinear, twice": resized("linear", (14, 14), "half_pixel"),
    "bilinear, odd": resized("linear", (11, 5), "align_corners"),
    "bilinear, one axis": resized("linear", (7, 19), "asymmetric"),
    "bicubic": resized("cubic", (10, 14), "half_pixel"),
    "upsampling": lambda x: op.nn.upsampling(x, scale_h=3, scale_w=2, method="bilinear"),
    "adaptive, even": lambda x: op.nn.adaptive_avg_pool2d(x, output_size=(7, 1)),
    "adaptive, uneven": lambda x: op.nn.adaptive_avg_pool2d(x, output_size=(3, 5)),
    "transposed, 2 x 2": lambda x: transposed(x, 6, (8, 6, 2, 2), strides=(2, 2)),
    "transposed, 4 x 4": lambda x: transposed(
        x, 6, (8, 6, 4, 4), strides=(2, 2), padding=(1, 1, 1, 1)
    ),
    "transposed, cut": lambda x: transposed(
        x, 6, (8, 6, 3, 3), strides=(3, 2), padding=(2, 3, 3, 2), output_padding=(2, 1)
    ),
    "transposed, groups": lambda x: transposed(
        x, 4, (8, 2, 3, 3), strides=(2, 1), padding=(1, 1, 1, 1), groups=2, dilation=(1, 2)
    ),
    "transposed, depthwise": lambda x: transposed(x, 8, (8, 1, 3, 3), strides=(2, 2), groups=8),
}


@cache
def between_convolutions(middle: Callable[[Expr], Expr]) -> IRModule:
    """conv, bias, relu, the operator, conv: 3 channels in, 8 into the operator."""
    probe = network(lambda x: middle(op.nn.relu(conv(x, 3, 8))), (1, 3, 7, 7))
    shape = probe["main"].body.tensor_type.concrete_shape

    def build(x: Expr) -> Expr:
        y = middle(op.add(conv(x, 3, 8), bias(8)))
        return conv(y, shape[1], 4, seed=9) if len(shape) == 4 else y

    return network(build, (1, 3, 7, 7))


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
@pytest.mark.parametrize("name", ISLANDS)
def test_operator_between_convolutions_is_an_integer_one(name: str, granularity: str) -> None:
    mod = between_convolutions(ISLANDS[name])
    data = batches((1, 3, 7, 7))
    made = quantized(mod, data, weight_granularity=granularity)
    assert made.report.float_ops == []
    assert_same_integers(made.partitioned, data[:2])
    assert sqnr_db(mod, made.partitioned, data) > (28 if granularity == "channel" else 24)


def l2_norm(x: Expr) -> Expr:
    return op.nn.l2_normalize(x, eps=1e-12, axis=(1,))


def root_mean_square(x: Expr) -> Expr:
    mean = op.mean(op.multiply(x, x), axis=(3,), keepdims=True)
    return op.multiply(x, op.rsqrt(op.add(mean, relay.const(np.float32(1e-5)))))


def normalized_by_its_length(x: Expr) -> Expr:
    length = op.sqrt(op.sum(op.power(x, relay.const(np.float32(2))), axis=(1,), keepdims=True))
    return op.divide(x, op.maximum(length, relay.const(np.float32(1e-12))))


def prelu(*slopes: float) -> Callable[[Expr], Expr]:
    alpha = np.resize(np.asarray(slopes, np.float32), 8)
    return lambda x: op.nn.prelu(x, relay.const(alpha))


def log_sum_exp(x: Expr) -> Expr:
    top = op.max(x, axis=(3,), keepdims=True)
    total = op.sum(op.exp(op.subtract(x, top)), axis=(3,), keepdims=True)
    return op.add(op.log(total), top)


def above_one(x: Expr) -> Expr:
    return op.add(op.nn.relu(x), relay.const(np.float32(1)))


PLACES = np.stack([np.zeros(20, np.int64), np.arange(20) % 8, np.arange(20) % 7])
MASK = np.random.default_rng(4).random((7, 7)) > 0.4
ISLANDS |= {
    "prelu": prelu(0.25, 0.1, 0.0, 0.7),
    "prelu, one slope": prelu(0.2),
    "prelu, any sign": prelu(0.3, -0.5, 1.5),
    "prelu of narrow data": lambda x: prelu(0.25, 0.01)(op.nn.max_pool2d(x, pool_size=(2, 2))),
    "leaky relu": lambda x: op.nn.leaky_relu(x, alpha=0.1),
    "log softmax": lambda x: op.nn.log_softmax(x, axis=1),
    "where": lambda x: op.where(relay.const(MASK), x, conv(x, 8, 8, seed=6)),
    "where, a number": lambda x: op.where(relay.const(MASK), x, relay.const(np.float32(-1.5))),
    "stack": lambda x: op.reshape(
        op.stack(relay.Tuple((x, conv(x, 8, 8, seed=6))), axis=2), newshape=(1, 16, 7, 7)
    ),
    "negative": op.negative,
    "instance norm": lambda x: op.nn.instance_norm(x, normal(8, seed=2), normal(8, seed=3)),
    "group norm": lambda x: op.nn.group_norm(x, normal(8, seed=2), normal(8, seed=3), num_groups=4),
    "l2 norm": l2_norm,
    "rms norm": root_mean_square,
    "length": normalized_by_its_length,
    "log sum exp": log_sum_exp,
    "quotient": lambda x: op.divide(x, above_one(conv(x, 8, 8, seed=6))),
    "quotient, one divisor": lambda x: op.divide(
        x, above_one(op.mean(op.nn.relu(x), axis=(2, 3), keepdims=True))
    ),
    "gather_nd": lambda x: op.reshape(op.gather_nd(x, relay.const(PLACES)), newshape=(1, 4, 5, 7)),
    "picked where a mean is largest": lambda x: op.take(
        x, op.argmax(op.mean(x, axis=(2, 3)), axis=1), axis=1
    ),
}


def test_a_norm_over_a_whole_image_fits_exact_sums() -> None:
    """96 x 96 values of 16 bits would not: their point gets 8."""
    shape = (1, 3, 96, 96)
    mod = network(
        lambda x: op.nn.instance_norm(conv(x, 3, 4), normal(4, seed=2), normal(4, seed=3)), shape
    )
    data = batches(shape, 2)
    made = quantized(mod, data)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > 30


@pytest.mark.parametrize("classes", [2, 10, 1000])
def test_log_softmax_at_the_end_follows_the_float_one(classes: int) -> None:
    mod = network(
        lambda x: op.nn.log_softmax(op.nn.dense(x, normal(classes, 16, scale=0.5))), (2, 16)
    )
    data = batches((2, 16))
    made = quantized(mod, data)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > 33


def test_a_choice_between_data_and_a_huge_number_is_made_on_integers() -> None:
    mod = between_convolutions(
        lambda x: op.where(relay.const(MASK), x, relay.const(np.float32(-1e9)))
    )
    data = batches((1, 3, 7, 7))
    made = quantized(mod, data)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > 30


def test_a_bias_may_have_an_axis_for_the_batch() -> None:
    """As the state that a recurrent cell begins with leaves it, which is constant."""
    shape = (1, 8)

    def gate(x: Expr) -> Expr:
        summed = op.add(op.nn.dense(x, normal(16, 8)), normal(1, 16, seed=1))
        found: Expr = op.nn.dense(op.sigmoid(summed), normal(4, 16, seed=2))
        return found

    mod = network(gate, shape)
    data = batches(shape)
    made = quantized(mod, data)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > 30


def test_zeros_do_not_coarsen_what_they_are_joined_with() -> None:
    def joined(x: Expr) -> Expr:
        root = op.sqrt(x * x + relay.const(np.float32(0.01)))
        return op.concatenate(relay.Tuple((root - root, root)), axis=1)

    mod = network(joined, (1, 3, 7, 7))
    data = batches((1, 3, 7, 7))
    made = quantized(mod, data)
    assert_same_integers(made.partitioned, data)
    assert sqnr_db(mod, made.partitioned, data) > 40


@pytest.mark.parametrize("name", ["less", "less_equal", "greater", "greater_equal"])
@pytest.mark.parametrize("function", ["abs", "sin"])
def test_a_choice_by_a_function_of_the_data_is_made_on_integers(name: str, function: str) -> None:
    def chosen(x: Expr) -> Expr:
        scores = op.nn.dense(x, normal(8, 8, scale=0.5))
        inside = getattr(op, name)(getattr(op, function)(scores), relay.const(np.float32(0.6)))
        return op.where(inside, op.nn.dense(scores, normal(8, 8, seed=1, scale=0.5)), scores)

    data = batches((1, 8))
    candidate = quantized(network(chosen, (1, 8)), data)
    assert candidate.partitioned is not None
    assert_same_integers(candidate.module, data)
