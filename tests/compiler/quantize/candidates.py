"""From a float module and batches to a candidate, and what its integers promise in every form."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from compiler import evaluate, relay
from compiler.ir.module import IRModule
from compiler.proof.derive import derive_static
from compiler.quantize import (
    Candidate,
    ChannelStats,
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    mark,
)
from compiler.runtime.executor import Executor
from compiler.targets.ort.integer_executor import IntegerExecutor

Batch = dict[str, Any]


def const(rng: np.random.Generator, *shape: int) -> Any:
    """A weight or bias, drawn from a normal distribution."""
    return relay.const(rng.normal(0, 0.4, shape).astype(np.float32))


def calibrated(
    mod: IRModule,
    config: QConfig,
    data: Sequence[Batch],
    channels: ChannelStats | None = None,
    **options: Any,
) -> Candidate:
    """The candidate of the ranges measured on ``data``; ``options``: of ``calibration_stats``."""
    annotated, _ = mark(mod, config, channels)
    stats = calibration_stats(annotated, data, (config.percentile,), **options)
    return build_candidate(mod, config, activation_scales(stats, config), channels)


def assert_same_integers(module: IRModule | None, data: Iterable[Batch], far: float = 50.0) -> None:
    """Proved; reference and exact ONNX agree, ``far`` times outside the ranges as well."""
    assert module is not None
    assert [str(finding) for finding in derive_static(module).findings] == []
    others: list[Executor] = [IntegerExecutor(module)]
    for batch in data:
        for reach in (1.0, far):
            inputs = {**batch, "x": batch["x"] * np.float32(reach)}
            wanted = evaluate(module, inputs)
            for other in others:
                for found, right in zip(other.run(inputs), wanted, strict=True):
                    assert found.dtype == right.dtype
                    np.testing.assert_array_equal(found, right)


def sqnr_db(mod: IRModule, integers: IRModule | None, data: Iterable[Batch]) -> float:
    """Power of the first output over that of what the integers change in it."""
    assert integers is not None
    pairs = [[evaluate(m, batch)[0].ravel() for m in (mod, integers)] for batch in data]
    wanted, found = (np.concatenate(side).astype(np.float64) for side in zip(*pairs))
    return float(10 * np.log10((wanted**2).sum() / ((wanted - found) ** 2).sum()))
