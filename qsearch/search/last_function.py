"""A last function in float, where a metric of ranks loses by the few integers of its results.

A probability near 0 or 1 has few integers, and metrics that rank samples need their order there:
a sigmoid on integers gives equal results to samples that its operand tells apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from compiler.errors import CompilerError
from compiler.frontend.cut import last_function
from compiler.frontend.cut_graph import Graph
from compiler.frontend.from_onnx.model_file import read_model
from compiler.quantize import Calibration
from compiler.runtime.artifact import QModule
from qsearch.data.prepared_data import Batches
from qsearch.run.progress import Progress
from qsearch.search.context import PreparedStudy
from qsearch.search.shipped import build_winner
from workers.batching import model_batches, rows_of
from workers.datasets.registry import open_dataset
from workers.metrics.library import LIBRARY, WORDS
from workers.metrics.protocol import State
from workers.metrics.registry import MetricSums, find_metric, merge_sums

RANKED: Final = frozenset(LIBRARY[word] for word in ("auc", "bits", "perplexity"))
"""Metrics that need the order, or the ratio, of small probabilities."""
_GROUPS: Final = 16
"""Number of groups of samples; each is left out once for the standard error."""
_RUNS: Final = 1024
"""Most runs of a module, spread over the data."""
_SURE: Final = 1.96
"""Standard errors of a difference that chance exceeds in 5 % of the cases."""


def with_last_in_float(
    study: PreparedStudy,
    prepare: Callable[[str, Sequence[str]], PreparedStudy],
    progress: Progress,
) -> PreparedStudy:
    """Leave the last function in float if the metric gains more than its 95 % interval.

    Both modules are what ``compile`` makes. The error of the difference is the jackknife's (Efron,
    "The Jackknife, the Bootstrap and Other Resampling Plans", 1982).

    Args:
        study: of the whole model, or of a core without a head.
        prepare: prepares the study of a core until a node and, unless the user says it, from nodes.
        progress: one step for each run of the two modules.
    Returns:
        the study, or that of the cut, which names the function and both scores.
    """
    parts = study.source.parts
    if study.metric not in RANKED or (parts is not None and parts.after is not None):
        return study
    found = last_function(Graph(read_model(study.source.content)))
    if found is None:
        return study
    function, until = found
    if parts is not None and parts.before is not None:
        begins = parts.first
    else:
        begins = ()
    try:
        other = prepare(until, begins)
        both = (study, other)
        progress.phase(f"{function}: in float?", sum(len(_runs(each)) for each in both))
        sums = [_sums(each, progress) for each in both]
        left = [_score(study.metric, sums, group) for group in range(_GROUPS)]
        scores = _score(study.metric, sums, None)
    except CompilerError:
        return study  # the search says what stands against its module
    if other.source.parts is None or None in (*scores, *(one for pair in left for one in pair)):
        return study
    gains = [float(theirs) - float(ours) for ours, theirs in left]
    mean = sum(gains) / _GROUPS
    error = math.sqrt((_GROUPS - 1) / _GROUPS * sum((gain - mean) ** 2 for gain in gains))
    if scores[1] - scores[0] <= _SURE * error:
        return study
    word = WORDS[study.metric]
    why = f"{function} (on integers {word} is {scores[0]:.4g}, in float {scores[1]:.4g})"
    parts = replace(other.source.parts, why=(why, *(() if parts is None else parts.why)))
    return replace(other, source=replace(other.source, parts=parts))


def _runs(study: PreparedStudy) -> range:
    """First samples of the runs of a module, spread over the evaluation data."""
    runs = range(0, study.evaluation.count, study.run_samples)
    return runs[:: max(-(-len(runs) // _RUNS), 1)]


def _sums(study: PreparedStudy, progress: Progress) -> list[State]:
    """Sums of the metric of what ``compile`` makes, by group of samples."""
    calibration = Calibration(study.module, Batches(study.calib, study.inputs))
    config = calibration.choose()[0]
    run = QModule(build_winner(calibration, config).module).run
    dataset = open_dataset(study.evaluation.ref, study.inputs)
    head = study.source.pipeline
    size = study.run_samples
    data = {"has_labels": True, "has_reference": False}
    sums = [MetricSums((study.metric,), **data) for _ in range(_GROUPS)]
    for place, start in enumerate(_runs(study)):
        samples = study.evaluation.samples[start : start + size]
        for batch in model_batches(dataset, samples, study.inputs, size):
            outputs: Sequence[Any] = run(batch.inputs)
            if head is not None:
                outputs = head.finish({**batch.inputs, **batch.beside}, outputs)
            rows = [rows_of(out, batch.count, size) for out in outputs]
            sums[place % _GROUPS].add(rows, None, batch.labels)
        progress.advance()
    return [group.sums[study.metric] for group in sums]


def _score(metric: str, sums: Sequence[Sequence[State]], without: int | None) -> list[Any]:
    """Both scores, without a group of samples."""
    kept = ([{metric: s} for n, s in enumerate(groups) if n != without] for groups in sums)
    return [find_metric(metric).result(merge_sums(groups)[metric]) for groups in kept]
