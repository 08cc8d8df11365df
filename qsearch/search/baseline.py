"""The float model's outputs and score: what every candidate is compared with, once per study.

A score is looked at before anything is compared with it: is it better than guessing, and would the
model score more on the same samples with another preparation or other labels? Source of the test of
two answers to the same samples: McNemar, "Note on the sampling error of the difference between
correlated proportions or percentages", Psychometrika 1947 (here exact: binomial).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from qsearch.data.prepared_data import PreparedData, judged_output
from qsearch.report.build import wilson
from qsearch.run.progress import Progress
from qsearch.search.context import PreparedStudy, StudyArtifacts, StudyContext
from qsearch.search.running_trials import await_workers, run_requests
from qsearch.search.scoring import baseline_score
from qsearch.settings.launch_settings import is_import_path
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.datasets.variant import VARIANTS, channel_axis, fitting_variants
from workers.messages import Build, DatasetRef, EvaluationRequest, EvaluationResult
from workers.metrics.registry import merge_sums
from workers.metrics.top_k import answers
from workers.pool.queued_pool import WorkerPool

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


def shards(samples: range) -> list[range]:
    """Consecutive ranges of at most ``SHARD`` samples."""
    return [samples[place : place + SHARD] for place in range(0, len(samples), SHARD)]


def evaluate_split(
    pool: WorkerPool,
    whole: EvaluationRequest,
    progress: Progress,
    tag: str,
    parts: Sequence[range] | None = None,
    reference: Sequence[NDArray[Any]] = (),
) -> SplitEvaluation:
    """Run parts of a request on all workers and join the answers in order.

    Args:
        parts: of the samples; None is all of them in shards.
        reference: outputs of the float model for all samples; none where they are not compared.
    Raises:
        Exception: the first error of a part, after the others were cancelled.
    """
    requests = []
    for part in shards(whole.samples) if parts is None else parts:
        rows = tuple(output[part.start : part.stop] for output in reference)
        requests.append(replace(whole, samples=part, reference=rows or None))
    results: list[EvaluationResult] = run_requests(
        pool, requests, tag, lambda result: progress.advance(result.samples)
    )
    columns = zip(*(result.outputs or () for result in results), strict=True)
    return SplitEvaluation(
        sums=merge_sums(result.sums for result in results),
        outputs=tuple(np.concatenate(parts) for parts in columns),
        cpu_s=sum(result.compile_cpu_s + result.run_cpu_s for result in results),
    )


def float_request(
    blob: Any, dataset: DatasetRef, samples: range, metrics: tuple[str, ...] = (), head: Any = None
) -> EvaluationRequest:
    """Return the request for the outputs of the float model."""
    build = Build(blob, {}, None, "float")
    return EvaluationRequest(build, dataset, samples, metrics, return_outputs=True, head=head)


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
        decides: its answers are compared.
        head: the float parts around the module, or the pool's handle of them.
    """

    context: StudyContext
    artifacts: StudyArtifacts
    blob: Any
    data: PreparedData
    metrics: tuple[str, ...]
    decides: bool
    head: Any = None
    cpu_s: float = 0.0
    """CPU seconds this run spent on it."""

    def outputs(self) -> tuple[NDArray[Any], ...]:
        """One array per output of the model, samples on axis 0."""
        arrays = self.artifacts.arrays(OUTPUTS, self.data.sha256)
        stored = () if arrays is None else tuple(arrays[name] for name in sorted(arrays))
        return stored or self._run()

    def _run(self) -> tuple[NDArray[Any], ...]:
        pool = self.context.pool
        progress = self.context.progress
        await_workers(pool, progress)
        progress.phase("baseline", self.data.count)
        samples = self.data.samples
        metrics = self.metrics
        request = float_request(self.blob, self.data.ref, samples, metrics, self.head)
        found = evaluate_split(pool, request, progress, "baseline")
        self.cpu_s += found.cpu_s
        score = baseline_score(found.sums, self.decides)
        self.context.repository.save_baseline(self.context.study.id, score)
        outputs = {f"output_{place:04d}": array for place, array in enumerate(found.outputs)}
        self.artifacts.keep(OUTPUTS, self.data.sha256, outputs, found.cpu_s)
        return found.outputs


# Is the score of the float model plausible? -------------------------------------------------------

EXAMINED: Final = 256
"""Samples, at most, on which other preparations and labels are tried."""
_GIVEN_UP: Final = ((8, 4), (16, 4), (32, 2), (64, 0))
"""Samples, and how many fewer right answers on them end the trial of another preparation."""
_SIGNIFICANT: Final = 0.01
_FEWEST: Final = 16
_NAMED: Final = 4
"""Renamed classes that a warning names."""
_WIDE: Final = 0.05
"""Half an interval of 95 % that is worth a word."""

_FEW_SAMPLES: Final = 16
_OTHER_SCALE: Final = 3.0
"""Ratio of the ranges of two data sets from which on they are not scaled alike."""


def doubtful_data(
    calib: PreparedData, evaluation: PreparedData, preprocess: str | None = None
) -> tuple[str, ...]:
    """Name the doubts about the data before the model runs: scales that differ, few samples.

    Args:
        preprocess: the file of ``--preprocess``, of which arrays take nothing.
    """
    found = []
    if preprocess is not None and {calib.kind, evaluation.kind} <= {"npz", "synthetic"}:
        found.append(f"{preprocess} is not used: --preprocess is not for arrays")
    if not calib.synthetic and calib.count < _FEW_SAMPLES:
        found.append(
            f"{calib.count} calibration samples: the ranges will not fit other inputs; give a "
            "hundred"
        )
    for name, ours in {} if calib is evaluation else calib.ranges.items():
        theirs = evaluation.ranges.get(name, ours)
        spans = sorted(high - low for low, high in (ours, theirs))
        signs = sorted(low / max(high, 1e-30) for low, high in (ours, theirs))
        other_sign = signs[0] < -0.3 and signs[1] >= 0
        if spans[1] > _OTHER_SCALE * spans[0] or (other_sign and calib.count >= _FEW_SAMPLES):
            told = " and ".join(
                f"{low:.4g} to {high:.4g} in the {data} data"
                for data, (low, high) in (("calibration", ours), ("evaluation", theirs))
            )
            found.append(f"{name!r} has values from {told}: prepare both alike, as in training")
    return tuple(found)


Answers = NDArray[np.int64]
Right = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Plausibility:
    """Plausibility of the data, by the float model's answers.

    Attributes:
        summary: top-1, its interval and the number of samples.
        warnings: likely mistakes, each with its figures, in sentences.
    """

    summary: str
    warnings: tuple[str, ...] = ()


def _summary(right: Right) -> str:
    share = float(right.mean())
    count = len(right)
    low, high = wilson(share, count)
    return f"top1 {share:.1%} on {count} samples (95 %: {low:.1%} to {high:.1%})"


@dataclass(slots=True)
class Examination:
    """Compares the float model's score with its scores on other preparations and other labels.

    Args:
        pool: its workers run the float model; idle.
        blob: the float module, or the pool's handle of it.
        data: evaluation data.
        inputs: the model's inputs.
        classes: how many the model tells apart.
    """

    pool: WorkerPool
    blob: Any
    data: PreparedData
    inputs: Sequence[InputSpec]
    classes: int | None

    def examine(self, outputs: Sequence[NDArray[Any]] | None = None) -> Plausibility | None:
        """Examine the answers; None where there is no single label per sample.

        Args:
            outputs: of the float model for all samples; without them it runs on some.
        """
        if not self.data.has_labels or self.classes is None:
            return None
        rng = np.random.default_rng(0)
        chosen = [int(place) for place in rng.permutation(self.data.count)[:EXAMINED]]
        dataset = open_dataset(self.data.ref, self.inputs)
        rows = [dataset.labels(range(place, place + 1)) for place in chosen]
        labels = np.concatenate([row for row in rows if row is not None]).astype(np.int64)
        if labels.ndim != 1 or (labels < 0).all():
            return None
        chosen = [place for place, label in zip(chosen, labels.tolist()) if label >= 0]
        labels = labels[labels >= 0]
        if outputs is None:
            given = self._answers("as_given", chosen)
        else:
            given = answers(outputs[0][chosen])
        if given.shape != labels.shape:
            return None
        right = given == labels
        count = len(chosen)
        share = float(right.mean())
        low, high = wilson(share, count)
        summary = _summary(right)
        if outputs is not None and count < self.data.count:
            every = np.asarray(dataset.labels(range(self.data.count)))
            summary = _summary((answers(outputs[0]) == every)[every >= 0])
        better = [*self._other_labels(given, labels), *self._other_inputs(chosen, labels, right)]
        chance = 1 / self.classes
        found = [
            _told(other, words, fix, right)
            for words, fix, other in better
            if _binomial_tail(int(other.sum()), count, chance) < _SIGNIFICANT
        ]
        told = [text for _, text in sorted(found, reverse=True) if text][:1]
        if not told and count >= _FEWEST:
            told = self._classes_renamed(given, labels) or self._like_guessing(given, labels, share)
        if count >= _FEWEST and len(np.unique(labels)) == 1:
            told.append(f"all {count} samples have the label {labels[0]}: top1 is of one class")
        if (high - low) / 2 > _WIDE and count == self.data.count:
            told.append(
                f"few evaluation samples: {summary}; smaller differences than that are chance"
            )
        return Plausibility(summary, tuple(told))

    def _other_labels(self, given: Answers, labels: Answers) -> Iterator[tuple[str, str, Right]]:
        assert self.classes is not None
        minus = "the labels seem to count from 1: subtract 1"
        yield "with 1 subtracted from the labels", minus, given == labels - 1
        plus = "the labels seem to leave out class 0 of the model: add 1"
        yield "with 1 added to the labels", plus, given == labels + 1
        if self.classes > 10:
            order = np.asarray(sorted(range(self.classes), key=str))
            fix = "the classes seem to be in the order of their names as text (0, 1, 10, 11 …)"
            yield "with classes sorted as text", fix, given == order[labels]

    def _other_inputs(
        self, chosen: list[int], labels: Answers, right: Right
    ) -> Iterator[tuple[str, str, Right]]:
        images = [spec for spec in self.inputs if channel_axis(spec) is not None]
        if len(images) != 1 or images[0].name not in self.data.ranges:
            return
        low, high = self.data.ranges[images[0].name]
        fix = f"values lie from {low:.4g} to {high:.4g}; prepare the data as in training "
        fix += "(mean, std and channel_order of --preprocess, or the arrays themselves)"
        for name in fitting_variants(images[0], low, high):
            found: Right = np.zeros(0, np.bool_)
            for stop, fewer in (*_GIVEN_UP, (EXAMINED, None)):
                part = slice(len(found), stop)
                if chosen[part]:
                    more = self._answers(name, chosen[part]) == labels[part]
                    found = np.concatenate([found, more])
                lost = right[: len(found)].sum() - found.sum()
                if fewer is not None and lost >= fewer:
                    break  # what is given is as good
            else:
                yield f"{VARIANTS[name].words}", fix, found

    def _classes_renamed(self, given: Answers, labels: Answers) -> list[str]:
        """A warning where labels count some classes in another order than the model.

        The order is chosen on one half of the samples and tried on the other.
        """
        half = len(labels) // 2
        if self.classes is None or self.classes > half:
            return []
        counts = np.zeros((self.classes, self.classes), np.int64)
        np.add.at(counts, (labels[:half], given[:half]), 1)
        if (counts.diagonal() == counts.max(axis=1)).all():
            return []
        from scipy.optimize import linear_sum_assignment

        renamed = linear_sum_assignment(counts, maximize=True)[1]
        right, other = (named == given[half:] for named in (labels[half:], renamed[labels[half:]]))
        others = [f"{n} is {m}" for n, m in enumerate(renamed) if n != m and n in labels]
        fix = "the labels count the classes in another order than the model: label "
        fix += ", ".join(others[:_NAMED]) + (", …" if len(others) > _NAMED else "")
        _, told = _told(other, "with the classes in another order", fix, right)
        if told:
            return [told]
        return []

    def _like_guessing(self, given: Answers, labels: Answers, share: float) -> list[str]:
        assert self.classes is not None
        count = len(labels)
        told = f"the float model scores top1 {share:.1%} on {count} samples"
        if len(np.unique(given)) == 1 < len(np.unique(labels)):
            return [
                f"{told}: it gives the answer {given[0]} for every sample; check how the inputs "
                "are prepared"
            ]
        if _binomial_tail(int((given == labels).sum()), count, 1 / self.classes) <= _SIGNIFICANT:
            return []
        return [
            f"{told}, no better than guessing among {self.classes} classes: labels that belong to "
            "other samples, or inputs that are not prepared as in training (layout, mean and std); "
            "every trial is compared with this score"
        ]

    def _answers(self, variant: str, chosen: Sequence[int]) -> Answers:
        options = {
            "of": {"kind": self.data.ref.kind, "options": dict(self.data.ref.options)},
            "samples": list(chosen),
            "variant": variant,
        }
        request = float_request(self.blob, DatasetRef("variant", options), range(len(chosen)))
        tag = f"float {variant} {chosen[0]}"
        found = evaluate_split(self.pool, request, Progress(), tag)
        return answers(found.outputs[0])


def examination(prepared: PreparedStudy, pool: WorkerPool, blob: Any) -> Examination:
    """The examination of the float model on the evaluation data; none for a metric of the user."""
    own = is_import_path(prepared.metric) or prepared.source.pipeline is not None
    if own:
        judged = None
    else:
        judged = judged_output(prepared.module, None, "")
    classes = None if judged is None else judged.classes
    data = prepared.evaluation
    return Examination(pool, blob, data, prepared.inputs, classes)


def _told(other: Right, words: str, fix: str, right: Right) -> tuple[float, str]:
    """Share of right answers, and a warning if it is significantly better."""
    p = _better_by_chance(other, right)
    share = float(other.mean())
    if p >= _SIGNIFICANT or share <= right.mean():
        return share, ""
    return share, (
        f"the float model scores top1 {right.mean():.1%} on {len(right)} samples, and {share:.1%} "
        f"on the same samples {words} (McNemar's test, p = {p:.1g}): {fix}"
    )


def _better_by_chance(one: Right, other: Right) -> float:
    """Two-sided p-value of McNemar's exact test where ``one`` has more right answers, else 1."""
    gained = int((one & ~other).sum())
    lost = int((other & ~one).sum())
    if gained <= lost:
        return 1.0
    return min(1.0, 2 * _binomial_tail(gained, gained + lost, 0.5))


def _binomial_tail(least: int, count: int, p: float) -> float:
    """Probability of at least so many successes."""
    terms = (math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(least, count + 1))
    return math.fsum(terms)
