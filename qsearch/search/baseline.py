"""The float model's outputs and score: what every candidate is compared with, once per study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qsearch.progress import Progress
from workers.messages import EvaluationRequest, EvaluationResult, Range
from workers.metrics.registry import merge_sums
from workers.pool.protocol import WorkerPool

_POLL_S: Final = 1.0
SHARD: Final = 20
"""Samples a request of a split evaluation. Fixed, so that sums do not depend on the workers."""


@dataclass(frozen=True, slots=True)
class SplitEvaluation:
    """Shards of one evaluation, put together.

    Attributes:
        sums: merged metric sums.
        outputs: one array per model output, samples on axis 0.
        cpu_s: CPU seconds of all shards.
    """

    sums: dict[str, dict[str, float]]
    outputs: tuple[NDArray[Any], ...]
    cpu_s: float


def shards(samples: Range) -> list[Range]:
    """Consecutive ranges of at most ``SHARD`` samples."""
    starts = range(samples.start, samples.stop, SHARD)
    return [Range(start, min(start + SHARD, samples.stop)) for start in starts]


def evaluate_split(
    pool: WorkerPool, requests: Sequence[EvaluationRequest], progress: Progress, tag: str
) -> SplitEvaluation:
    """Run requests for consecutive shards on all workers and join the answers in order.

    Raises:
        Exception: the first error of a request, after the others were cancelled.
    """
    for index, request in enumerate(requests):
        pool.submit((tag, index), request)
    results: dict[int, EvaluationResult] = {}
    while len(results) < len(requests):
        finished = pool.next_finished(timeout_s=_POLL_S)
        if finished is None:
            continue
        if finished.error is not None:
            pool.cancel_all()
            raise finished.error
        result: EvaluationResult = finished.result
        results[finished.tag[1]] = result  # type: ignore[index]  # our own tag
        progress.advance(result.samples)
    ordered = [results[index] for index in range(len(requests))]
    return SplitEvaluation(
        sums=merge_sums(result.sums for result in ordered),
        outputs=tuple(_joined(ordered)),
        cpu_s=sum(result.compile_cpu_s + result.run_cpu_s for result in ordered),
    )


def _joined(results: Sequence[EvaluationResult]) -> Iterator[NDArray[Any]]:
    columns = zip(*(result.outputs or () for result in results), strict=True)
    for parts in columns:
        yield np.concatenate(parts)


def outputs_to_arrays(outputs: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Outputs as named arrays, for the artefact store."""
    return {f"output_{index:04d}": array for index, array in enumerate(outputs)}


def outputs_from_arrays(arrays: dict[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
    """Inverse of ``outputs_to_arrays``."""
    return tuple(arrays[name] for name in sorted(arrays))
