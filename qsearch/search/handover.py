"""The end of a run: summary, report.json, exit code, SearchResult."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from qsearch.errors import NoModuleError, SearchFailedError
from qsearch.exit_codes import EXIT_INTERRUPTED, EXIT_OK, EXIT_TARGET_MISSED
from qsearch.report.build import Costs, full_report, summary
from qsearch.report.pareto import front_of, hypervolume_of
from qsearch.result import SearchResult
from qsearch.run_folder import RunFolder
from qsearch.search.objectives import Objective, accuracy_of, keeps_accuracy
from qsearch.search.preparation import PreparedStudy
from qsearch.settings import Settings
from qsearch.store.artifacts import write_atomically
from qsearch.store.records import Study, Trial
from qsearch.store.repository import Repository


def hand_over(
    repository: Repository,
    study: Study,
    prepared: PreparedStudy,
    settings: Settings,
    folder: RunFolder,
    *,
    costs: Costs,
    emitted: Mapping[str, Any] | None,
    float_ops: Sequence[str],
    clipped: Sequence[str],
    interrupted: bool,
) -> SearchResult:
    """Write ``report.json`` and say how the study stands.

    Args:
        emitted: what the final check of the winner found; None if it did not take place.
        clipped: what the winner's ranges cut off, in sentences.
    Raises:
        SearchFailedError: no trial was completed (the report is written all the same).
    """
    trials = repository.trials_of(study.id)
    warnings = (*prepared.warnings, *clipped)
    objective = Objective.of(prepared.spec)
    best = objective.best(trials)
    score = emitted or (best.outcome.score if best is not None else None) or {}
    baseline = study.baseline or {}
    kept = best is not None and keeps_accuracy(score, baseline, settings.max_drop)
    fits = best is not None and objective.fits(best.outcome.score or {})
    short = summary(
        study,
        best,
        repository.count_trials(study.id),
        costs,
        str(folder.module) if best is not None else None,
        emitted,
    )
    if objective.minimize:
        short["front"] = front_of(trials, objective)
        short["hypervolume"] = hypervolume_of(trials, objective)
    name, value = accuracy_of(score)
    before = float(baseline.get(name) or 0.0)
    report = full_report(
        short,
        study,
        trials,
        costs,
        settings=settings.to_dict(),
        data={"calib": prepared.calib.described, "eval": prepared.evaluation.described},
        warnings=warnings,
        target={
            "measure": name,
            "max_drop": str(settings.max_drop),
            "drop": before - value,
            "relative_drop": (before - value) / before if before else None,
            "kept": kept,
            "max_size": objective.max_size,
            "at_most": dict(objective.at_most),
            "fits": fits,
        },
        float_ops=float_ops,
    )
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    write_atomically(folder.report, text.encode())
    if best is None and not interrupted:
        repository.set_study_state(study.id, "failed", "no trial was completed")
        raise _nothing_found(trials, folder)
    code = EXIT_INTERRUPTED if interrupted else EXIT_OK if kept and fits else EXIT_TARGET_MISSED
    return SearchResult(
        summary=short,
        folder=folder.path,
        exit_code=code,
        trials=tuple(trials),
        space=prepared.space,
        objective=objective,
        warnings=warnings,
    )


def _nothing_found(trials: Sequence[Trial], folder: RunFolder) -> SearchFailedError:
    reasons = {t.outcome.failure.what for t in trials if t.outcome.failure is not None}
    states = sorted({t.state for t in trials})
    kind = SearchFailedError if "failed" in states else NoModuleError
    return kind(
        f"none of {len(trials)} trials was completed ({', '.join(states)})",
        where="; ".join(sorted(reasons)[:3]) or str(folder.report),
        fix="see `qsearch trials` for each one's reason; --allow-float admits modules with "
        "float parts",
    )
