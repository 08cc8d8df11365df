"""Evaluation of one candidate on a range of samples: outputs become sums of metrics."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.lru_cache import LRUCache
from compiler.runtime.pipeline import Pipeline
from compiler.targets.c.cores import CORES
from workers.batching import ModelBatch, batch_size, hash_outputs, model_batches, rows_of
from workers.candidates import Builder, Runnable
from workers.datasets.protocol import Dataset, padded, whole
from workers.datasets.registry import OpenDatasets
from workers.errors import DatasetError, DifferingOutputsError, WorkerError
from workers.messages import EvaluationRequest, EvaluationResult
from workers.metrics.costs import DEVICE, TIMED, device_figures, hardware_figures, latency_figures
from workers.metrics.protocol import Outputs
from workers.metrics.registry import MetricSums, of_answers
from workers.metrics.sqnr import relative_noise
from workers.object_store import ObjectStore
from workers.process import Stopwatch, peak_rss_bytes

Rows = tuple[NDArray[Any], ...]
"""One array per model output, samples on axis 0."""

_Given = tuple[Rows, Rows | None, NDArray[Any] | None]
"""Outputs, those of the float model, labels."""

_SUMMED_SAMPLES = 32
_SUMMED_BYTES = 1 << 20
"""Samples, and bytes of outputs, that are added to the sums together."""


class EvaluationActor:
    """Evaluates candidates in one process; the last few compiled ones stay in memory.

    Args:
        values: where handles of requests are looked up.
    """

    def __init__(self, values: ObjectStore) -> None:
        self._values = values
        self._builder = Builder(values)
        self._datasets = OpenDatasets()
        self._heads: LRUCache[Pipeline] = LRUCache(1)

    def run(self, request: EvaluationRequest) -> EvaluationResult:
        """Sums of all metrics over the samples, or over the first few of a collapsed candidate.

        Raises:
            CompilerError: the candidate cannot be built or run.
            DatasetError, MetricError: the data does not fit, or a metric lacks labels or reference.
        """
        runnable, compile_cpu_s = self._builder.runnable(request.build)
        watch = Stopwatch()
        dataset = self._datasets.open(request.dataset, runnable.inputs)
        if len(request.samples) == 0:
            raise DatasetError("no sample to evaluate", where=str(request.samples))
        part, parts = request.part
        size = batch_size(runnable.inputs, whole(dataset))
        if not 0 <= part < parts <= -(-len(request.samples) // size):
            raise WorkerError(
                f"part {part} of {parts} of {len(request.samples)} samples",
                fix="split into at most as many parts as the model takes runs",
            )
        reference = self._values.value(request.reference)
        if reference is not None and any(len(r) != len(request.samples) for r in reference):
            raise WorkerError(
                f"the reference has {[len(r) for r in reference]} samples, "
                f"{len(request.samples)} are scored",
                fix="give the float model's outputs for exactly the samples of the request",
            )
        head = None
        if (packed := request.head) is not None:
            key = self._values.key(packed)
            head = self._heads.get(key, lambda: Pipeline.unpack(self._values.value(packed)))
        run = _Evaluation(request, runnable, dataset, size, reference, head)
        collapsed = run.collapsed_early()
        if not collapsed:
            run.evaluate_all()
        if request.spot_check and not collapsed:
            run.spot_check()
        run_cpu_s = watch.cpu_s
        return EvaluationResult(
            sums={**run.sums.sums, **run.whole_sums.sums},
            samples=run.scored,
            collapsed=collapsed,
            outputs_sha256=run.digest.hexdigest(),
            outputs=run.outputs() if request.return_outputs else None,
            compile_cpu_s=compile_cpu_s,
            run_cpu_s=run_cpu_s,
            peak_rss_bytes=peak_rss_bytes(),
            run_samples=size,
            cost={**runnable.cost, **run.asked_costs(collapsed)},
            rounding=runnable.rounding if request.return_rounding else None,
        )


@dataclass(slots=True, eq=False)
class _Evaluation:
    """One request while it runs. Runs of the model are numbered from the first sample on."""

    request: EvaluationRequest
    runnable: Runnable
    dataset: Dataset
    size: int
    reference: Rows | None
    head: Pipeline | None
    sums: MetricSums = field(init=False)
    whole_sums: MetricSums = field(init=False)
    scored: int = 0
    digest: Any = field(default_factory=hashlib.sha256)
    _runs: range = field(init=False)
    _lifted: Sequence[bool] = ()
    """Outputs that rows_of gave an axis of samples."""
    _probed: dict[int, tuple[ModelBatch, Rows]] = field(default_factory=dict)
    _kept: list[Rows] = field(default_factory=list)

    def __post_init__(self) -> None:
        names, (part, parts) = self.request.metrics, self.request.part
        self._runs = range(-(-len(self.request.samples) // self.size))[part::parts]
        whole = tuple(name for name in names if self.head is not None and of_answers(name))
        self.sums = self._new_sums(tuple(name for name in names if name not in whole))
        self.whole_sums = self._new_sums(whole)

    @property
    def _alone(self) -> bool:
        return self.request.part[1] == 1

    def _new_sums(self, names: tuple[str, ...]) -> MetricSums:
        return MetricSums(
            names, has_labels=self.dataset.has_labels, has_reference=self.reference is not None
        )

    def collapsed_early(self) -> bool:
        """Look at samples spread over the range, since neighbours are often of one class."""
        after = self.request.collapse_after
        runs = len(self._runs)
        if after is None:
            probes = 0
        else:
            probes = min(-(-after // self.size), runs)
        # Where all there is would be probed, there is nothing to save.
        if self.reference is None or probes == 0 or (self._alone and probes == runs):
            return False
        indices = [self._runs[probe * runs // probes] for probe in range(probes)]
        self._probed = {index: self._run(self._batch(index)) for index in indices}
        outputs, reference, labels = _joined([self._given(*run) for run in self._probed.values()])
        candidate = self._new_sums(("agreement", "sqnr"))
        candidate.add(outputs, reference, labels)
        # Of waves or images the place of the highest value says little.
        signal = 1.0 - relative_noise(candidate.sums["sqnr"])
        kept = max(candidate.results()["agreement"] or 0.0, signal)
        if self.dataset.has_labels and "top1" in self.sums.sums:
            ours, base = (self._top1(rows, labels) for rows in (outputs, reference))
            kept = ours / base if base else kept
        finite = all(np.isfinite(out).all() for out in outputs)
        if finite and kept >= self.request.collapse_below:
            return False
        self.sums.add(outputs, reference, labels)
        for batch, rows in self._probed.values():
            self._add_whole(batch, rows)
            self.scored += batch.count
            self._record(rows)
        return True

    def _top1(self, outputs: Outputs | None, labels: NDArray[Any] | None) -> float:
        assert outputs is not None
        top = self._new_sums(("top1",))
        top.add(outputs, None, labels)
        return top.results()["top1"] or 0.0

    def evaluate_all(self) -> None:
        """Every sample of the part in order; what the probe computed is used again."""
        waiting: list[_Given] = []
        held = samples = 0
        for index, read in self._batches():
            probed = self._probed.pop(index, None)
            batch, outputs = probed or self._run(read)
            waiting.append(self._given(batch, outputs))
            self._add_whole(batch, outputs)
            self._record(outputs)
            self.scored += batch.count
            samples += batch.count
            held += sum(out.nbytes for out in outputs)
            if samples >= _SUMMED_SAMPLES or held >= _SUMMED_BYTES:
                self.sums.add(*_joined(waiting))
                waiting = []
                held = 0
                samples = 0
        if waiting:
            self.sums.add(*_joined(waiting))

    def spot_check(self) -> None:
        """Compare one run with the exact reference, where there are integers to compare.

        Raises:
            DifferingOutputsError: an output differs.
        """
        from compiler.targets.reference.executor import ReferenceExecutor

        integer = self.runnable.integer
        name = self.request.build.evaluator
        if integer is None:
            return
        batch, outputs = self._run(self._batch(self._runs[len(self._runs) // 2]))
        exact = ReferenceExecutor(integer).run(batch.inputs)
        for place, (ours, theirs) in enumerate(zip(outputs, exact, strict=True)):
            wanted = rows_of(theirs, batch.count, self.size)
            differ = int(np.count_nonzero((ours != wanted) & ~(np.isnan(ours) & np.isnan(wanted))))
            if differ:
                raise DifferingOutputsError(
                    f"{name} and reference differ: {differ} of {wanted.size} values of output "
                    f"{place}",
                    where=f"evaluation sample {batch.start}",
                    fix=f"the integers of {name} are wrong here, and scores of other trials may "
                    "be: search with --evaluator simulated, and report the model",
                )

    def asked_costs(self, collapsed: bool) -> dict[str, float]:
        """Measure what the request asks of the module: cost on an accelerator, memory, time.

        Args:
            collapsed: the candidate is not timed.
        Raises:
            CompilerError: the module cannot be timed as asked, or there is no compiler.
        """
        module = self.runnable.module
        request = self.request
        if module is None:
            return {}
        if request.hardware:
            found = hardware_figures(module, request.hardware)
        else:
            found = {}
        if set(DEVICE).intersection(request.asked):
            if request.build.form in CORES:
                core = request.build.form
            else:
                core = None
            found |= device_figures(module, core)
        timed = [name for name in TIMED if name in request.asked]
        if timed and not collapsed:
            inputs = self._batch(self._runs[0]).inputs
            found |= latency_figures(timed, module, inputs, self.size, request.board)
        return found

    def outputs(self) -> Rows:
        """Outputs of all scored samples."""
        return _concatenated(self._kept)

    def _run(self, batch: ModelBatch) -> tuple[ModelBatch, Rows]:
        outputs = self.runnable.run(batch.inputs)
        rows = tuple(rows_of(out, batch.count, self.size) for out in outputs)
        self._lifted = [one.ndim > out.ndim for one, out in zip(rows, outputs, strict=True)]
        return batch, rows

    def _batches(self) -> Iterator[tuple[int, ModelBatch]]:
        """Runs of the part in order; of a whole range, several small samples are read together."""
        if not self._alone:
            return ((index, self._batch(index)) for index in self._runs)
        inputs = self.runnable.inputs
        run_bytes = sum(np.dtype(spec.dtype).itemsize * math.prod(spec.shape) for spec in inputs)
        chunk = min(_SUMMED_BYTES // max(run_bytes, 1) * self.size, _SUMMED_SAMPLES)
        return enumerate(model_batches(self.dataset, self.request.samples, inputs, chunk))

    def _batch(self, index: int) -> ModelBatch:
        part = self.request.samples[index * self.size :][: self.size]
        (batch,) = model_batches(self.dataset, part, self.runnable.inputs, self.size)
        return batch

    def _given(self, batch: ModelBatch, outputs: Rows) -> _Given:
        """Arguments of metrics from one run."""
        first = batch.start - self.request.samples.start
        reference = self.reference and tuple(
            rows[first : first + batch.count] for rows in self.reference
        )
        return outputs, reference, batch.labels

    def _add_whole(self, batch: ModelBatch, outputs: Rows) -> None:
        """Metrics of the whole model on one run, whose outputs may have any sizes."""
        if self.head is None or not self.whole_sums.sums:
            return
        head = self.head
        count = batch.count
        rows, reference, labels = self._given(batch, outputs)
        values = {**batch.inputs, **batch.beside}

        def finished(core: Rows) -> Rows:
            pairs = zip(core, self._lifted, strict=True)
            whole = [out[0] if lifted else padded(out, self.size) for out, lifted in pairs]
            found = zip(head.finish(values, whole), head.sampled, strict=True)
            return tuple(out[:count] if sampled else out[None] for out, sampled in found)

        ours = finished(rows)
        self.whole_sums.add(ours, None if reference is None else finished(reference), labels)

    def _record(self, outputs: Rows) -> None:
        hash_outputs(self.digest, outputs)
        if self.request.return_outputs:
            self._kept.append(outputs)


def _joined(runs: Sequence[_Given]) -> _Given:
    """Arguments of metrics from several runs; their calls cost more than their sums."""
    if len(runs) == 1:
        return runs[0]
    outputs, references, labels = zip(*runs, strict=True)
    return (
        _concatenated(outputs),
        None if references[0] is None else _concatenated(references),
        None if labels[0] is None else np.concatenate(labels),
    )


def _concatenated(runs: Sequence[Rows]) -> Rows:
    return tuple(np.concatenate(parts) for parts in zip(*runs, strict=True))
