"""SearchResult: what ``qsearch.launch`` hands back, in Optuna's words."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qsearch.errors import NoModuleError, SearchFailedError
from qsearch.exit_codes import EXIT_INTERRUPTED, EXIT_OK, EXIT_TARGET_MISSED
from qsearch.report.build import Costs, full_report, layers_told, saved_by_stopping, summary
from qsearch.report.pareto import extremes, front_of
from qsearch.run.run_folder import RunFolder
from qsearch.search.audit import AUDIT
from qsearch.search.calibration import FirstChoice
from qsearch.search.closeness import Closeness, has_few_bits
from qsearch.search.context import TIMEOUT, PreparedStudy, StudyContext
from qsearch.search.objectives import (
    WORST_OUTPUT,
    Objective,
    accuracy_of,
    keeps_accuracy,
    lost,
    option_of,
    own_scores,
    sqnr_value,
)
from qsearch.search.optuna_study import replica
from qsearch.search.space import Params, Space, config_hash
from qsearch.store.artifacts import write_atomically
from qsearch.store.records import Trial
from qsearch.store.study_queries import BESIDE
from workers.metrics.registry import Measure, by_option, known_measures, legend, measure

if TYPE_CHECKING:
    import optuna
    import pandas

    from compiler.runtime.artifact import QModule


_OF_EXTREMES: Final = ("size", "bit_operations", "latency", "c_latency")
"""Costs of a search that tells its smallest and its fastest module."""
_TELLING_DB: Final = 1.0
_ALWAYS_TOLD: Final = ("hw_groups", "hw_traffic")


@dataclass(frozen=True, repr=False)
class SearchResult:
    """A study after a run of ``launch``.

    Attributes:
        summary: the object that ``--json`` prints.
        folder: the run folder.
        exit_code: what the command would end with: 0, 1 (target missed, not proved, or far from
            the float model without labels that judge) or 130 (interrupted).
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

    def __repr__(self) -> str:
        best = self.summary["best"]
        if best:
            told = f"best trial {best['trial']}: {_scores(best)}"
        else:
            told = "no trial was completed"
        return f"SearchResult({str(self.folder)!r}, {told})"

    @cached_property
    def study(self) -> optuna.Study:
        """The finished trials as an in-memory Optuna study, for its plots and importances.

        Each trial's values are the metric and the costs as measured; its ``user_attrs`` hold our
        ``number``, ``state``, whole ``score``, and the ``ranking`` that the search maximised.
        """
        return replica(self.trials, self.space, self.objective)

    @property
    def best_trial(self) -> optuna.trial.FrozenTrial:
        """The winner by the study's own rule (see ``Objective``); its ``value`` is the metric.

        Top-1 counts in steps of what luck explains, then SQNR, agreement and the earlier trial
        decide, so that ``study.best_trial`` of Optuna, the largest value, may be another.

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
        if s["evaluations_saved"]:
            trials += f"; early stopping saved {s['evaluations_saved']:.0%} of the evaluations"
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
            lines += map(_filled, filter(None, (params, layers_told(self._best().qconfig))))
        worst, alone = _beside(s)
        if worst:
            lines.append(f"{INDENT}{worst}")
        if alone:
            lines.append(f"compile   {alone}")
        if more := self._more_db():
            lines.append(_filled(more, "more dB   "))
        for one in s.get("front", ()):
            values = ", ".join(
                f"{name} {_told(by_option(name), {by_option(name).name: one[name]})}"
                for name in self.objective.names
            )
            lines.append(f"front     {values}  (trial {one['trial']}, {one['stage']})")
        for name, one in s.get("extremes", {}).items():
            costs = self._costs(one["score"], "size", *(["latency"] if name == "fastest" else []))
            lines.append(f"{name:<10}{_scores(one['score'])}{costs}  (trial {one['trial']})")
            where = shlex.quote(str(self.folder))
            lines.append(f"{INDENT}qsearch best {where} --{name} -o {name}.qmod")
        if s["emitted"]:
            emitted = s["emitted"]
            equal = f"outputs equal to the trial's: {emitted['equal_outputs']:.1%}"
            equal += f"; to the reference's: {emitted['reference_equal']:.1%}, run on "
            equal += f"{emitted['reference_samples']} of the samples"
            lines += [f"check     the written file: {_scores(emitted)}", f"{INDENT}{equal}"]
            if emitted.get("file"):
                lines.append(f"{INDENT}its QDQ file in onnxruntime: {_scores(emitted['file'])}")
            lines += [f"{INDENT}{told}" for told in emitted.get("steps", ())]
            lines += [f"{INDENT}REFUTED {told}" for told in emitted.get("findings", ())]
            if closeness := Closeness.recorded(emitted):
                worst = (s["audit"] or {}).get("worst") or ""
                lines.append(_filled(closeness.sentence("evaluation data", worst)))
        if s["audit"] and "trial" in s["audit"]:
            mended = f"trial {s['audit']['trial']} has {'; '.join(s['audit']['repairs'])}"
            lines.append(_filled(mended, "audit     "))
        if s["module"]:
            size = Path(s["module"]).stat().st_size
            lines.append(f"module    {s['module']}  ({size:,} bytes)")
        if s["best"]:
            told = [m.words for m in known_measures() if m.words in best]
            head = "words     "
            for line in legend(told):
                lines.append(_filled(line, head))
                head = INDENT
        lines.extend(f"note      {warning}" for warning in self.warnings)
        if self.exit_code == EXIT_TARGET_MISSED and s["target_missed"]:
            lines.append(f"target    missed: {self._missed()}")
        return "\n".join(lines)

    def _more_db(self) -> str:
        """Name the trial whose wider data would add SQNR and take longer; "" without one."""
        objective = self.objective
        if not self.summary["best"] or not objective.counts_time:
            return ""
        best = self._best()
        equal = [
            trial
            for trial in self.trials
            if trial.state == "complete"
            and trial.outcome.score is not None
            and objective.decides(trial.score) == objective.decides(best.score) == "sqnr"
        ]
        most = max(equal, key=lambda trial: sqnr_value(trial.score), default=best)
        added = sqnr_value(most.score) - sqnr_value(best.score)
        if added < _TELLING_DB:
            return ""
        wide = layers_told(most.qconfig) or f"nbit_input={most.qconfig['nbit_input']}"
        return (
            f"trial {most.number}, {wide}, has the same top-1, {added:.1f} dB more and takes "
            "longer: --metric sqnr"
        )

    def _repr_html_(self) -> str:
        """Return the lines of ``text`` as a table for notebooks."""
        from compiler.text_output import html_table

        rows = [(line[:10].strip(), line[10:]) for line in self.text().splitlines()]
        return html_table("qsearch", (), rows)

    def _costs(self, score: Mapping[str, Any], *more: str) -> str:
        """The costs that the search looks at, and some more, that ``_scores`` leaves out."""
        names = dict.fromkeys([*self.objective.names, *self.objective.limited, *more])
        costs = [m for m in map(by_option, names) if m.smaller_is_better]
        told = [m for m in costs if m.name not in _ALWAYS_TOLD]
        return "".join(f", {m.option} {_told(m, score)}" for m in told)

    def _missed(self) -> str:
        """Describe the limits that the best trial misses, a trial that stays within them, and a
        cure."""
        score = self._best().score
        name, value = accuracy_of(score)
        before = (self.summary["baseline"] or {}).get(name)
        told = measure(name)
        if before is None:
            float_told = "infinite"
        else:
            float_told = told.formatted(before)
        parts = [f"{told.words} {told.formatted(value)} (float {float_told})"]
        parts += [
            f"{option_of(limit)} exceeded by {amount:.0%}"
            for limit, amount in self.objective.violations(score).items()
            if amount > 0 and limit != "max_drop"
        ]
        limits = " and ".join(self.objective.limits)
        has = f"the best has {', '.join(parts)}"
        if within := self.summary.get("within"):
            command = f"qsearch best {shlex.quote(str(self.folder))} --trial {within['trial']}"
            return (
                f"{has}; trial {within['trial']} stays within {limits}:\n"
                f"{INDENT}{_scores(within)}\n{INDENT}{command} -o within.qmod"
            )
        return (
            f"no trial stayed within {limits}\n"
            f"{INDENT}{has}; {self._least()}more --trials or a looser limit may help"
        )

    def _least(self) -> str:
        """The least of each cost with a limit that a trial has."""
        told = []
        for each in map(by_option, self.objective.limited):
            had = [
                (value, trial.number)
                for trial in self.trials
                if (value := trial.score.get(each.name)) is not None
            ]
            if had:
                value, number = min(had)
                told.append(
                    f"the least {each.option} is {each.formatted(value)} (trial {number}); "
                )
        return "".join(told)

    def _best(self) -> Trial:
        best = self.objective.best(self.trials)
        if best is None:
            raise nothing_found(self.trials, str(self.folder))
        return best


def _told(each: Measure, score: Mapping[str, Any]) -> str:
    value = score.get(each.name)
    if value is None:
        if each.infinite is None:
            return "unknown"
        return "infinite"
    return each.formatted(value)


def _scores(score: Mapping[str, Any] | None) -> str:
    if not score:
        return "-"
    parts = []
    for each in known_measures():
        there = score.get(each.name) is not None
        if not each.smaller_is_better and (there or each.infinite is not None):
            parts.append(f"{each.words} {_told(each, score)}")
        elif there and each.name in _ALWAYS_TOLD:
            unit = f"{each.unit} of " if each.unit else ""
            parts.append(f"{_told(each, score)} {unit}{each.words}")
    if score.get("answers_lost") is not None:
        parts.append(f"{score['answers_lost']:.0f} answers lost and {score['answers_won']:.0f} won")
    for name, value in own_scores(score).items():
        if value is not None:
            parts.append(f"{measure(name).words} {value:.4g}")
    return ", ".join(parts)


def finish(
    context: StudyContext,
    prepared: PreparedStudy,
    folder: RunFolder,
    float_ops: Sequence[str],
    emitted: Mapping[str, Any] | None,
    costs: Costs,
    *,
    interrupted: bool,
) -> SearchResult:
    """Write ``report.json`` and say how the study stands.

    Args:
        float_ops: operators of the winner that stayed in float, each with the reason.
        emitted: what the final check found; None if it did not take place.
    Raises:
        SearchFailedError: no trial was completed (the report is written all the same).
    """
    repository = context.repository
    settings = prepared.settings
    study = repository.study(context.study.name)
    trials = repository.trials_of(study.id)
    objective = prepared.objective
    best = objective.best(trials)
    scores = {
        t.number: t.outcome.score for t in trials if t.state == "complete" and t.outcome.score
    }
    if best is None:
        luck = None
    else:
        luck = objective.explained(best.number, scores)
    warnings = (*prepared.warnings, *([luck] if luck else ()))
    score = emitted or (best.outcome.score if best is not None else None) or {}
    baseline = study.baseline or {}
    kept = best is not None and keeps_accuracy(score, baseline, settings.max_drop)
    fits = best is not None and objective.fits(best.score)
    short = summary(
        study,
        best,
        repository.count_trials(study.id),
        costs,
        str(folder.module) if best is not None else None,
        emitted,
    )
    number = None if best is None else best.number
    audits = reversed(repository.events_of(study.id, kind=AUDIT))
    looked = (e.data for e in audits if e.data and number in (e.trial, e.data.get("trial")))
    short["audit"] = next(looked, None)
    short["evaluations_saved"] = saved_by_stopping(trials, len(prepared.evaluation.samples))
    if objective.minimize:
        short["front"] = front_of(trials, objective)
    if {*objective.names, *objective.limited}.intersection(_OF_EXTREMES):
        short["extremes"] = {
            name: {"trial": trial.number, "score": dict(trial.score)}
            for name, trial in extremes(trials, objective).items()
        }
    within = objective.best(
        t
        for t in trials
        if keeps_accuracy(t.score, baseline, settings.max_drop) and objective.fits(t.score)
    )
    if not kept and within is not None:
        short["within"] = {"trial": within.number, **within.score}
    first = FirstChoice.stored(repository, study.id)
    short["compile"] = _alone(first, trials)
    place = None if best is None else best.score.get(WORST_OUTPUT)
    if place is not None:
        short["worst_output"] = prepared.source.interface.outputs[int(place)].name
    if best is not None and any(_beside(short)):
        worst, alone = _beside(short)
        lines = [line for line in (worst, alone and f"compile {alone}") if line]
        repository.add_event(study.id, BESIDE, trial=best.number, data={"told": lines}, newest=True)
    told = {
        "target": {**_target(prepared, score, baseline), "kept": kept, "fits": fits},
        "warnings": warnings,
        "data": {"calib": prepared.calib.described, "eval": prepared.evaluation.described},
        "float_ops": float_ops,
        "settings": settings.to_dict(),
        "first_trial": [] if first is None else list(first.told),
    }
    report = full_report(short, study, trials, costs, told)
    text = json.dumps(report, indent=1, allow_nan=False) + "\n"
    write_atomically(folder.report, text.encode())
    if best is None and not interrupted:
        error = nothing_found(trials, str(folder.report), study.stopped, costs.prepared_s)
        if any(trial.finished for trial in trials):
            repository.set_study_state(study.id, "failed", error.what)
        raise error
    closeness = Closeness.recorded(emitted or {})
    # Labels judge a search that has some; few bits from the start are the user's choice.
    unjudged = not prepared.has_labels and not has_few_bits(prepared.start)
    wrong = unjudged and closeness is not None and closeness.wrong
    short["target_missed"] = missed = not (kept and fits)
    refuted = bool((emitted or {}).get("findings"))
    if missed or wrong or refuted:
        ended = EXIT_TARGET_MISSED
    else:
        ended = EXIT_OK
    return SearchResult(
        summary=short,
        folder=folder.path,
        exit_code=EXIT_INTERRUPTED if interrupted else ended,
        trials=tuple(trials),
        space=prepared.space,
        objective=objective,
        warnings=warnings,
    )


def _beside(short: Mapping[str, Any]) -> tuple[str, str]:
    """Name the worst output of the winner, and the score of ``compile`` alone; "" for none."""
    best = short["best"]
    alone = short.get("compile")
    worst = short.get("worst_output")
    if not best or not alone:
        reached = ""
    elif alone["trial"] == best["trial"]:
        reached = f"the same: the search found nothing better  (trial {alone['trial']})"
        reached += "" if short.get("extremes") else "; --minimize size finds smaller modules"
    else:
        reached = f"{_scores(alone)}  (trial {alone['trial']})"
        if (short.get("audit") or {}).get("trial") == best["trial"]:
            reached += "; the audit of compile may mend points of it as well"
    return (
        f"the worst of its outputs is {worst!r}" if best and worst else "",
        f"alone, without a search: {reached}" if reached else "",
    )


def _alone(first: FirstChoice | None, trials: Sequence[Trial]) -> dict[str, Any] | None:
    """Score of the trial that is what ``compile`` chooses without a search; None without one."""
    if first is None or first.qconfig is None:
        return None
    wanted = config_hash(first.qconfig.to_dict())
    found = (t for t in trials if t.state == "complete" and t.config_hash == wanted)
    trial = next(found, None)
    if trial is None:
        return None
    return {"trial": trial.number, **trial.score}


def _target(
    prepared: PreparedStudy, score: Mapping[str, Any], baseline: Mapping[str, Any]
) -> dict[str, Any]:
    """The limits of a search, and the accuracy that the winner loses."""
    name, value = accuracy_of(score)
    before = float(baseline.get(name) or 0.0)
    if math.isfinite(value):
        drop = lost(name, value, before)
    else:
        drop = None
    return {
        "measure": name,
        "max_drop": str(prepared.settings.max_drop),
        "drop": drop,
        "relative_drop": drop / before if before and drop is not None else None,
        "max_size": prepared.objective.max_size,
        "at_most": dict(prepared.objective.at_most),
    }


INDENT: Final = " " * 10

_CAUSES: Final[Mapping[str, tuple[str, str]]] = {
    "collapsed": (
        "lost nearly all accuracy",
        "check the data first: `qsearch launch … --dry-run` compares calibration with evaluation "
        "data and scores the float model; then more --trials, or --space with more bits",
    ),
    "float": (
        "keep operators in float",
        "`qsearch doctor` names them and what helps; --allow-float admits them",
    ),
    "lost": (
        "lost their workers",
        "give each worker more memory: fewer --workers, or a smaller evaluation set; a trial that "
        "only takes long needs a larger --trial-timeout",
    ),
    "worse": ("were stopped as worse than an earlier trial", "--prune 0 stops none early"),
    "failed": ("ended with an error", "`qsearch trials` gives the error of each"),
}
"""Causes of a trial without a module: the words for each, and a cure where the trial names none."""


def _cause(trial: Trial) -> str:
    if trial.outcome.collapsed:
        return "collapsed"
    if trial.state == "failed":
        if trial.lost_workers:
            return "lost"
        return "failed"
    return {"infeasible": "float", "pruned": "worse"}[trial.state]


def nothing_found(
    trials: Sequence[Trial], where: str, stopped: str | None = None, prepared_s: float = 0.0
) -> SearchFailedError:
    """The error of a study without a complete trial: each cause with its own words and fix.

    Args:
        trials: of the study; none is complete.
        where: folder or address of the study.
        stopped: why the search ended early.
        prepared_s: seconds that passed before the first trial.
    """
    ended = [trial for trial in trials if trial.finished]
    if not ended:
        return _no_trial_ended(where, stopped, prepared_s)
    by_cause: dict[str, list[Trial]] = {}
    for trial in ended:
        by_cause.setdefault(_cause(trial), []).append(trial)
    told = []
    places = []
    fixes = []
    for cause, group in sorted(by_cause.items(), key=lambda item: -len(item[1])):
        words, fix = _CAUSES[cause]
        told.append(f"{len(group)} {words}")
        failures = [trial.outcome.failure for trial in group if trial.outcome.failure is not None]
        first = failures[0] if failures else None
        if cause == "collapsed":
            places.append(f"trial {group[0].number} scored {_scores(group[0].outcome.score)}")
        elif first is not None:
            places.append(f"{first.what}: {first.where}" if first.where else first.what)
        if first is not None and cause not in ("lost", "float"):
            told_fix = first.fix
        else:
            told_fix = None
        fixes.append(told_fix or fix)
    if {"failed", "lost"} & set(by_cause):
        kind = SearchFailedError
    else:
        kind = NoModuleError
    return kind(
        f"none of {len(ended)} trials gave a module: {', '.join(told)}",
        where="; ".join(places) or where,
        fix="; ".join(dict.fromkeys(fixes)),
    )


def _no_trial_ended(where: str, stopped: str | None, prepared_s: float) -> SearchFailedError:
    if stopped == TIMEOUT:
        return NoModuleError(
            f"the time was over before a trial ended: calibration and baseline took "
            f"{prepared_s:.0f} s",
            where="--timeout",
            fix="the same command with a larger --timeout goes on from here, and calibrates "
            "nothing again; or give fewer calibration samples",
        )
    return NoModuleError(
        f"no trial has ended{f' ({stopped})' if stopped else ''}",
        where=where,
        fix="run the same `qsearch launch` command again: it goes on from here",
    )


def _filled(line: str, head: str = INDENT) -> str:
    """Break a line for a terminal of 80 columns, behind a head of the width of ``INDENT``."""
    return textwrap.fill(line, 80, initial_indent=head, subsequent_indent=INDENT)
