"""The float model's outputs and score: what every candidate is compared with, once per study."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qsearch.data import PreparedData
from qsearch.progress import Progress
from qsearch.search.context import StudyArtifacts, StudyContext
from qsearch.search.evaluations import await_workers, gather
from qsearch.search.evaluator import baseline_score
from workers.messages import EvaluationRequest, EvaluationResult, Range
from workers.metrics.registry import merge_sums
from workers.pool.protocol import WorkerPool

OUTPUTS: Final = "baseline_outputs"
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
    results: dict[Hashable, EvaluationResult] = {}
    for key, result in gather(pool, [(tag, index) for index in range(len(requests))]):
        results[key] = result
        progress.advance(result.samples)
    ordered = [results[tag, index] for index in range(len(requests))]
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


@dataclass(slots=True)
class Baseline:
    """The float model on the evaluation data, run once per study and kept.

    Args:
        context: the study; its pool must be idle.
        artifacts: where the outputs are kept.
        blob: the float module, or the pool's handle of it.
        data: evaluation data.
        metrics: names of the metrics that score the float model: ``top1`` where there are labels,
            and a metric of the user.
    """

    context: StudyContext
    artifacts: StudyArtifacts
    blob: Any
    data: PreparedData
    metrics: tuple[str, ...]
    cpu_s: float = 0.0
    """CPU seconds this run spent on it."""
    _outputs: tuple[NDArray[Any], ...] | None = None

    def outputs(self) -> tuple[NDArray[Any], ...]:
        """One array per output of the model, samples on axis 0."""
        if self._outputs is None:
            self._outputs = self._stored() or self._run()
        return self._outputs

    def _stored(self) -> tuple[NDArray[Any], ...] | None:
        arrays = self.artifacts.arrays(OUTPUTS, self.data.sha256)
        return None if arrays is None else outputs_from_arrays(arrays)

    def _run(self) -> tuple[NDArray[Any], ...]:
        pool, progress = self.context.pool, self.context.progress
        await_workers(pool, progress)
        progress.phase("baseline", self.data.count)
        requests = [
            EvaluationRequest(
                blob=self.blob,
                qconfig={},
                activation_scales=None,
                evaluator="float",
                dataset=self.data.ref,
                samples=part,
                metrics=self.metrics,
                return_outputs=True,
            )
            for part in shards(self.data.samples)
        ]
        found = evaluate_split(pool, requests, progress, "baseline")
        self.cpu_s += found.cpu_s
        self.context.repository.save_baseline(self.context.study_id, baseline_score(found.sums))
        outputs = outputs_to_arrays(found.outputs)
        self.artifacts.keep(OUTPUTS, self.data.sha256, outputs, found.cpu_s)
        return found.outputs
