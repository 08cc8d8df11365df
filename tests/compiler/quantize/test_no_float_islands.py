"""Operators that a network of integers goes through: reference, exact ONNX and grid, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from compiler import evaluate, relay
from compiler.export.to_onnx.grid import GRID_DISABLED_OPTIMIZERS, to_grid_onnx
from compiler.export.to_onnx.integer import to_integer_onnx
from compiler.ir.expr import Expr
from compiler.ir.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.proof.derive import derive_static
from compiler.quantize import (
    Candidate,
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    mark,
    prerequisite_optimize,
)
from compiler.targets.ort.session import OrtExecutor

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
    annotated, _ = mark(mod, config)
    return build_candidate(
        mod, config, activation_scales(calibration_stats(annotated, data), config)
    )


def assert_same_integers(made: Candidate, data: Iterable[dict[str, Any]]) -> None:
    """No float inside, proved, and three executors that agree, far outside the ranges as well."""
    module = made.partitioned
    assert module is not None
    assert [str(finding) for finding in derive_static(module).findings] == []
    grid = OrtExecutor(to_grid_onnx(module), disabled_optimizers=GRID_DISABLED_OPTIMIZERS)
    exact = OrtExecutor(to_integer_onnx(module))
    for batch in data:
        for reach in (1.0, 50.0):
            inputs = {"x": batch["x"] * np.float32(reach)}
            (wanted,) = evaluate(module, inputs)
            np.testing.assert_array_equal(exact.run(inputs)[0], wanted)
            np.testing.assert_array_equal(grid.run(inputs)[0], wanted)


def sqnr_db(mod: IRModule, made: Candidate, data: Batches) -> float:
    wanted, found = (
        np.concatenate([evaluate(m, batch)[0].ravel() for batch in data]).astype(np.float64)
        for m in (mod, made.partitioned)
    )
    return float(10 * np.log10((wanted**2).sum() / ((wanted - found) ** 2).sum()))


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
    assert_same_integers(made, data)
    assert sqnr_db(mod, made, data) > (22 if rounding else 14)


def test_a_mean_over_a_large_image_is_still_rounded() -> None:
    """The common multiple of the counts, 66 x 66, would leave 32 bits."""
    shape = (1, 3, 66, 66)
    mod = network(lambda x: op.nn.global_avg_pool2d(op.nn.relu(conv(x, 3, 8))), shape)
    data = batches(shape)
    made = quantized(mod, data)
    assert_same_integers(made, data)
    truncated = quantized(mod, data, avg_pool_round=False)
    assert sqnr_db(mod, made, data) > sqnr_db(mod, truncated, data) + 3


def test_a_sum_that_32_bits_do_not_hold_is_made_in_64() -> None:
    """16 bit data: 2^15 times 2^17 terms."""
    shape = (1, 2, 256, 256)
    mod = network(lambda x: op.sum(op.nn.relu(conv(x, 2, 2, 1)), axis=(1, 2, 3)), shape)
    data = batches(shape, 2)
    wide = {"dtype_input": "int16", "nbit_input": 16, "nbit_weight": 8}
    made = quantized(mod, data, **wide)
    assert_same_integers(made, data)
    assert sqnr_db(mod, made, data) > 35
