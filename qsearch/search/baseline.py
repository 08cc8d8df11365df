"""The float model's outputs and score: what every candidate is compared with, once per study."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qsearch.data import PreparedData
from qsearch.import_path import is_import_path
from qsearch.progress import Progress
from qsearch.search.evaluations import await_workers, gather
from qsearch.search.evaluator import baseline_score
from qsearch.store.artifacts import ArtifactStore
from qsearch.store.records import StoredArtifact
from qsearch.store.repository import Repository
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
        repository, artifacts, study_id: where outputs and score are kept.
        pool: where it runs; must be idle.
        blob: the float module, or the pool's handle of it.
        data: evaluation data; ``has_labels`` says whether its labels are used.
        metric: what the study maximises; a metric of the user scores the float model too.
    """

    repository: Repository
    artifacts: ArtifactStore
    study_id: int
    pool: WorkerPool
    blob: Any
    data: PreparedData
    has_labels: bool
    progress: Progress
    metric: str = ""
    cpu_s: float = 0.0
    """CPU seconds this run spent on it."""
    _outputs: tuple[NDArray[Any], ...] | None = None

    def outputs(self) -> tuple[NDArray[Any], ...]:
        """One array per output of the model, samples on axis 0."""
        if self._outputs is None:
            self._outputs = self._stored() or self._run()
        return self._outputs

    def _stored(self) -> tuple[NDArray[Any], ...] | None:
        for kept in self.repository.artifacts_of(self.study_id, OUTPUTS):
            if kept.key == self.data.sha256 and self.artifacts.has(kept.sha256):
                return outputs_from_arrays(self.artifacts.get_arrays(kept.sha256))
        return None

    def _run(self) -> tuple[NDArray[Any], ...]:
        await_workers(self.pool, self.progress)
        self.progress.phase("baseline", self.data.count)
        metrics = ("top1",) if self.has_labels else ()
        if is_import_path(self.metric):
            metrics = (*metrics, self.metric)
        requests = [
            EvaluationRequest(
                blob=self.blob,
                qconfig={},
                activation_scales=None,
                evaluator="float",
                dataset=self.data.ref,
                samples=part,
                metrics=metrics,
                return_outputs=True,
            )
            for part in shards(self.data.samples)
        ]
        found = evaluate_split(self.pool, requests, self.progress, "baseline")
        self.cpu_s += found.cpu_s
        self.repository.save_baseline(self.study_id, baseline_score(found.sums))
        kept = self.artifacts.put_arrays(outputs_to_arrays(found.outputs))
        self.repository.save_artifact(
            self.study_id,
            StoredArtifact(OUTPUTS, self.data.sha256, kept.sha256, kept.bytes, found.cpu_s),
        )
        return found.outputs
