"""SearchResult: what ``qsearch.launch`` hands back, in Optuna's words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qsearch.errors import NoModuleError, SearchFailedError
from qsearch.process import EXIT_INTERRUPTED, EXIT_OK, EXIT_TARGET_MISSED
from qsearch.report.build import Costs, full_report, summary
from qsearch.report.pareto import front_of, hypervolume_of
from qsearch.run_folder import RunFolder
from qsearch.search.context import StudyContext
from qsearch.search.objectives import Objective, accuracy_of, keeps_accuracy, own_scores
from qsearch.search.optuna_study import replica
from qsearch.search.space import Params, Space
from qsearch.search.study import PreparedStudy
from qsearch.search.winner import Winner
from qsearch.store.artifacts import write_atomically
from qsearch.store.records import Trial
from workers.metrics.registry import Measure, by_option, known_measures

if TYPE_CHECKING:
    import optuna
    import pandas

    from compiler.runtime.artifact import QModule


_ALWAYS_TOLD: Final = ("hw_groups", "hw_traffic")


@dataclass(frozen=True)
class SearchResult:
    """A study after a run of ``launch``.

    Attributes:
        summary: the object that ``--json`` prints.
        folder: the run folder.
        exit_code: what the command would end with: 0, 1 (target missed) or 130 (interrupted).
        trials: every trial of the study, by number.
        warnings: what the score is not.
    """

    summary: Mapping[str, Any]
    folder: Path
    exit_code: int
    trials: tuple[Trial, ...]
    space: Space
    objective: Objective
    warnings: tuple[str, ...] = ()

    @cached_property
    def study(self) -> optuna.Study:
        """The finished trials as an in-memory Optuna study, for its plots and importances.

        Each trial's ``user_attrs`` hold our ``number``, ``state`` and whole ``score``.
        """
        return replica(self.trials, self.space, self.objective)

    @property
    def best_trial(self) -> optuna.trial.FrozenTrial:
        """The winner; ties of the metric go to agreement, then SQNR, then the earlier trial.

        Raises:
            SearchFailedError: no trial was completed.
        """
        number = self._best().number
        return next(t for t in self.study.trials if t.user_attrs["number"] == number)

    @property
    def best_params(self) -> Params:
        """The winner's values of the searched parameters; ``best_trial`` raises alike."""
        return dict(self._best().params)

    def trials_dataframe(self) -> pandas.DataFrame:
        """One row per finished trial, as ``optuna.Study.trials_dataframe`` gives it."""
        return self.study.trials_dataframe()

    def best_module(self) -> QModule:
        """The written module, loaded from the run folder."""
        from compiler.runtime.artifact import load_qmod

        self._best()
        return load_qmod(self.folder / "best.qmod")

    def text(self) -> str:
        """The result in a few lines for people."""
        s = self.summary
        counts = [f"{count} {state}" for state, count in s["trials"].items() if count]
        trials = ", ".join(counts) or "no trial ended"
        lines = [
            f"study     {s['study']} ({trials}; {s['wall_s']:.1f} s"
            + (f"; stopped: {s['stopped']}" if s["stopped"] else "")
            + ")",
            f"float     {_scores(s['baseline'])}",
        ]
        if s["best"]:
            best = _scores(s["best"]) + self._costs(s["best"])
            lines.append(f"best      {best}  (trial {s['best']['trial']})")
            params = ", ".join(f"{k}={v}" for k, v in self._best().params.items())
            lines.append(f"          {params}")
        for one in s.get("front", ()):
            values = ", ".join(
                f"{name} {_told(by_option(name), {by_option(name).name: one[name]})}"
                for name in self.objective.names
            )
            lines.append(f"front     {values}  (trial {one['trial']}, {one['stage']})")
        if s["emitted"]:
            equal = s["emitted"]["equal_outputs"]
            lines.append(
                f"emitted   {_scores(s['emitted'])}, outputs equal to the evaluator's {equal:.1%}"
            )
        if s["module"]:
            lines.append(f"module    {s['module']}")
        lines.extend(f"note      {warning}" for warning in self.warnings)
        if self.exit_code == 1:
            limits = " and ".join(self.objective.limits)
            lines.append(f"target    missed: no trial stayed within {limits}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """What a notebook shows: the lines of ``text``."""
        from compiler.text_output import html_table

        rows = [(line[:10].strip(), line[10:]) for line in self.text().splitlines()]
        return html_table("qsearch", (), rows)

    def _costs(self, score: Mapping[str, Any]) -> str:
        """The costs that the search looks at and ``_scores`` leaves out."""
        names = dict.fromkeys([*self.objective.names, *self.objective.limited])
        costs = [m for m in map(by_option, names) if m.smaller_is_better]
        told = [m for m in costs if m.name not in _ALWAYS_TOLD]
        return "".join(f", {m.option} {_told(m, score)}" for m in told)

    def _best(self) -> Trial:
        best = self.objective.best(self.trials)
        if best is None:
            raise SearchFailedError(
                "no trial was completed", where=str(self.folder), fix="see report.json for why"
            )
        return best


def _told(each: Measure, score: Mapping[str, Any]) -> str:
    value = score.get(each.name)
    if value is None:
        return "unknown" if each.infinite is None else "infinite"
    return each.told(value)


def _scores(score: Mapping[str, Any] | None) -> str:
    if not score:
        return "-"
    parts = []
    for each in known_measures():
        there = score.get(each.name) is not None
        if not each.smaller_is_better and (there or each.infinite is not None):
            parts.append(f"{each.words or each.name} {_told(each, score)}")
        elif there and each.name in _ALWAYS_TOLD:
            unit = f"{each.unit} of " if each.unit else ""
            parts.append(f"{_told(each, score)} {unit}{each.words}")
    own = own_scores(score).items()
    return ", ".join([*parts, *(f"{name} {value:.4g}" for name, value in own if value is not None)])


def finish(
    context: StudyContext,
    prepared: PreparedStudy,
    folder: RunFolder,
    winner: Winner,
    costs: Costs,
    *,
    interrupted: bool,
) -> SearchResult:
    """Write ``report.json`` and say how the study stands.

    Raises:
        SearchFailedError: no trial was completed (the report is written all the same).
    """
    repository, settings = context.repository, prepared.settings
    study = repository.study(context.study.name)
    emitted = winner.emitted
    trials = repository.trials_of(study.id)
    warnings = (*prepared.warnings, *winner.clipped)
    objective = prepared.objective
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
        float_ops=winner.float_ops,
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
