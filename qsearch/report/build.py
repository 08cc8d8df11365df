"""A finished or interrupted search as plain values: the ``--json`` summary and ``report.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from compiler.text_output import abbreviated
from qsearch.search.objectives import UNCERTAIN, accuracies_in
from qsearch.search.space import canonical_fields
from qsearch.store.records import Counts, Study, Trial
from workers.metrics.registry import known_measures

_OF_OUTCOME: Final = ("samples", "from_store", "attempts", "seconds", "outputs_sha256")
_NAMED: Final = 3
"""Layers of one setting that are named."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Costs of a run.

    Attributes:
        wall_s: of this run.
        cpu_s: of this run, the driver and what the workers report.
        calibration_cpu_s: of the whole study; calibration is done once.
        trials_here: trials that this run finished.
        trials_wall_s: how long they took.
        worker_peak_rss_bytes: largest resident set of a worker.
    """

    wall_s: float
    cpu_s: float
    calibration_cpu_s: float
    trials_here: int
    trials_wall_s: float
    worker_peak_rss_bytes: int

    @property
    def prepared_s(self) -> float:
        """Seconds of this run beside those of its trials."""
        return self.wall_s - self.trials_wall_s

    @property
    def trials_per_min(self) -> float:
        """Trials of this run by the minutes of the whole command."""
        if self.wall_s > 0:
            return 60 * self.trials_here / self.wall_s
        return 0.0


def summary(
    study: Study,
    best: Trial | None,
    counts: Counts,
    costs: Costs,
    module_path: str | None,
    emitted: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The object that ``--json`` prints; accuracies are fractions, absent or infinite is None."""
    return {
        "study": study.name,
        "model": study.model_name,
        "baseline": dict(study.baseline) if study.baseline else None,
        "best": None if best is None else _best(best),
        "emitted": None if emitted is None else dict(emitted),
        "module": module_path,
        "trials": counts.report(),
        "stopped": study.stopped,
        "wall_s": round(costs.wall_s, 3),
        "cpu_s": round(costs.cpu_s, 3),
        "calibration_cpu_s": round(costs.calibration_cpu_s, 3),
        "trials_per_min": round(costs.trials_per_min, 2),
    }


def saved_by_stopping(trials: Sequence[Trial], samples: int) -> float:
    """Share of the evaluations of this study's own trials that early stopping left out.

    Args:
        samples: that a trial is evaluated on when it is not stopped.
    """
    own = [t for t in trials if t.state in ("complete", "pruned") and not t.outcome.from_store]
    run = sum(t.outcome.samples or 0 for t in own)
    if own:
        return round(1.0 - run / (samples * len(own)), 6)
    return 0.0


def _best(trial: Trial) -> dict[str, Any]:
    score = trial.score
    return {
        "trial": trial.number,
        "qconfig": dict(trial.qconfig),
        **_scored(score),
        "intervals": intervals(score, trial.outcome.samples),
    }


def _scored(score: Mapping[str, float | None]) -> dict[str, float | None]:
    """Accuracies, what the user's own metrics gave, and the costs that are known."""
    known = known_measures()
    costs = {m.name: score[m.name] for m in known if m.smaller_is_better and m.name in score}
    return {**accuracies_in(score), **costs}


def trial_row(trial: Trial) -> dict[str, Any]:
    """One trial as a flat row."""
    outcome = trial.outcome
    score = outcome.score or {}
    return {
        "number": trial.number,
        "state": outcome.state,
        "stage": trial.stage,
        **_scored(score),
        "params": dict(trial.params),
        **{name: getattr(outcome, name) for name in _OF_OUTCOME},
        "error": outcome.failure.what if outcome.failure else None,
    }


def layers_told(qconfig: Mapping[str, Any]) -> str:
    """List the settings of single layers, setting by setting; empty where none has its own."""
    named: dict[str, list[str]] = {}
    for layer, own in qconfig.get("layers", {}).items():
        for field, value in own.items():
            named.setdefault(f"{field}={value}", []).append(layer)
    return "; ".join(
        f"{setting} in {abbreviated(layers, _NAMED)}" for setting, layers in named.items()
    )


def trial_details(trial: Trial) -> dict[str, Any]:
    """The row with the 95 % interval of every score."""
    return {
        **trial_row(trial),
        "intervals": intervals(trial.score, trial.outcome.samples),
    }


def full_report(
    short: Mapping[str, Any],
    study: Study,
    trials: Sequence[Trial],
    costs: Costs,
    told: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the content of ``report.json``: the summary, every trial, the costs and how to read
    them.

    Args:
        told: what the run knows beside the study: settings, data, warnings, target.
    """
    cpu = [
        (t.outcome.compile_cpu_s or 0.0) + (t.outcome.run_cpu_s or 0.0)
        for t in trials
        if t.outcome.run_cpu_s is not None and not t.outcome.from_store
    ]
    best = short["best"]
    return {
        **short,
        **told,
        "spec": dict(study.spec),
        "code_version": study.code_version,
        "canonical_best": canonical_fields(best["qconfig"]) if best else None,
        "costs": {
            "cpu_s_per_trial": round(sum(cpu) / len(cpu), 4) if cpu else None,
            "worker_peak_rss_mb": round(costs.worker_peak_rss_bytes / 2**20, 1),
        },
        "definitions": {
            "equal_outputs": "fraction of evaluation samples all of whose outputs, computed from "
            "the written file, equal those of the evaluator bit for bit",
            "reference_samples, reference_equal": "of so many of these samples, spread over all, "
            "the fraction whose outputs the exact integer reference computes bit for bit; for all "
            "other inputs the proof shows it (`qsearch verify`)",
            "steps, findings": "what single operators of the written module were tested on, in "
            "every form, and where one gives other integers than the reference",
            "wall_s, cpu_s, trials_per_min": "of the last run of the command, from its beginning "
            "to its end; cpu_s is the driver's and what the workers report",
            "intervals": "95 %, were the samples drawn anew: Wilson's for accuracies, the delta "
            "method's for SQNR and for metrics of one's own; of a pruned trial on the samples it "
            "was stopped after, which are spread over all of them at equal distances",
            "calibration_cpu_s": "of the whole study",
            "evaluations_saved": "share of samples on which trials were not run, since they were "
            "stopped before; a trial as good as the best is stopped with a chance of at most "
            "--prune, if what it loses and gains on parts of the samples is spread alike",
        },
        "all_trials": [trial_details(trial) for trial in trials],
    }


# 95 % intervals ---------------------------------------------------------------------------------


Z: Final = 1.959963984540054
"""Standard normal deviate of 95 %."""

Interval = tuple[float, float]


def wilson(fraction: float, count: float) -> Interval:
    """Return the interval of a fraction (0..1) of ``count`` > 0 decisions."""
    shrunk = 1.0 + Z * Z / count
    centre = (fraction + Z * Z / (2.0 * count)) / shrunk
    spread = fraction * (1.0 - fraction) / count + Z * Z / (4.0 * count * count)
    half = Z / shrunk * math.sqrt(max(spread, 0.0))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def intervals(score: Mapping[str, float | None], samples: int | None) -> dict[str, Interval]:
    """Low and high end by the name of the metric; metrics without one are left out.

    Args:
        score: of a trial or of the float model.
        samples: that were scored. A model with several decisions a sample (a segmentation) has
            wider intervals here than it needs.
    """
    found: dict[str, Interval] = {}
    for each in known_measures():
        value = score.get(each.name)
        if each.interval == "wilson" and value is not None and samples:
            found[each.name] = wilson(value, samples)
    for name, value in score.items():
        error = score.get(f"{name}{UNCERTAIN}")
        if value is not None and error is not None:
            found[name] = (value - Z * error, value + Z * error)
    return found
