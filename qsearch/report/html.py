"""A study as one HTML file: the dashboard's plots and tables, no script, nothing to load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from qsearch.errors import RunFolderError
from qsearch.report.listing import opened
from qsearch.report.measures import Measures, value_in, value_of
from qsearch.report.plots import layers, parameters, trials
from qsearch.report.plots.alone import alone, stylesheet
from qsearch.run_folder import StudyAddress, find_study
from qsearch.search.optuna_study import importances
from qsearch.store.artifacts import write_atomically
from qsearch.store.records import Failure, LayerFigures, Stage, Study
from qsearch.store.view_queries import TrialPoint
from workers.metrics.registry import Measure

PathLike = str | os.PathLike[str]

WIDTH: Final = 560
ROWS: Final = 200
"""Trials in the table: the best ones."""
SLICES: Final = 12
"""Parameters with a plot of their own: the most important ones."""
_LETTERS: Final = 80


@dataclass(frozen=True, slots=True)
class StudyContent:
    """What a report is made of."""

    study: Study
    points: Sequence[TrialPoint]
    stages: Sequence[Stage]
    layers: Sequence[LayerFigures]
    qconfig: Mapping[str, Any]
    failures: Sequence[Failure]

    @property
    def measures(self) -> Measures:
        """Figures of the trials."""
        return Measures.of(self.study, self.points)


def report(
    folder: PathLike | None = None,
    out: PathLike = "report.html",
    *,
    storage: str | None = None,
    study: str | None = None,
    plots: PathLike | None = None,
) -> list[Path]:
    """Write a study as one HTML file that needs nothing else; what was written.

    Args:
        folder: run folder.
        out: the HTML file.
        storage: database, instead of a run folder's.
        study: name, where there are several.
        plots: folder for the plots as SVG files; None writes none.
    Raises:
        StoreError: no such storage or study.
        SettingsError: several studies and no name.
        RunFolderError: a file cannot be written.
    """
    content = read_study(find_study(None if folder is None else Path(folder), storage, study))
    drawn = draw_plots(content)
    page_file = Path(out)
    written = [page_file]
    try:
        page_file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(page_file, page(content, drawn).encode())
        if plots is not None:
            Path(plots).mkdir(parents=True, exist_ok=True)
            for name, (_, svg) in drawn.items():
                written.append(Path(plots) / f"{name}.svg")
                write_atomically(written[-1], alone(svg).encode())
    except OSError as error:
        raise RunFolderError(
            f"{error.filename or page_file} cannot be written: {error.strerror}",
            where="--out, --svg",
            fix="name a folder you may write to",
        ) from error
    return written


def read_study(address: StudyAddress) -> StudyContent:
    """All that a report shows, read once.

    Raises:
        StoreError: no such storage or study.
    """
    with opened(address) as (repository, study):
        points = repository.points_of(study.id)
        best = Measures.of(study, points).best(points)
        found = [] if best is None else repository.trials_by_number(study.id, [best.number])
        ended = repository.trials_of(study.id, states=["failed", "infeasible", "pruned"])
        return StudyContent(
            study,
            points,
            repository.stages_of(study.id),
            repository.layers_of(study.id),
            dict(found[0].qconfig) if found else {},
            [trial.outcome.failure or Failure("collapsed on the first samples") for trial in ended],
        )


def draw_plots(content: StudyContent) -> dict[str, tuple[str, str]]:
    """Title and SVG of every plot, by the name of its file."""
    study, points, measures = content.study, content.points, content.measures
    good = measures.accuracy if measures.primary.smaller_is_better else measures.primary
    known = [
        (p.params, v)
        for p in points
        if p.state == "complete" and (v := value_of(measures.primary, p)) is not None
    ]
    found = importances(known, smaller_is_better=measures.primary.smaller_is_better)
    names = dict.fromkeys(sorted(found, key=lambda name: -found[name]))
    names.update(dict.fromkeys(name for point in points for name in point.params))
    cost = measures.cost or good
    drawn = {
        "history": ("Optimisation history", trials.history(study, measures, points, WIDTH)),
        "scatter": (
            "Accuracy and cost" if good == cost else f"{good.words} and {cost.words}",
            trials.scatter(study, measures, points, good, cost, WIDTH),
        ),
        "importances": (
            "Importance of parameters",
            parameters.importances(found, measures.primary, WIDTH),
        ),
        "parallel": (
            "Parallel coordinates",
            parameters.parallel(points, list(names), measures.primary, 2 * WIDTH),
        ),
    }
    differing = [name for name in names if len({str(p.params.get(name)) for p in points}) > 1]
    for name in differing[:SLICES]:
        svg = parameters.slices(points, name, measures.primary, WIDTH)
        drawn[f"slice-{_file_name(name)}"] = (f"Slice: {name}", svg)
    for kind in dict.fromkeys(layer.kind for layer in content.layers):
        some = [layer for layer in content.layers if layer.kind == kind]
        for figure in layers.figures_of(some)[:3]:
            svg = layers.bars(some, figure, kind, WIDTH)
            drawn[f"layers-{_file_name(kind)}-{_file_name(figure)}"] = (f"{kind}: {figure}", svg)
    return drawn


def page(content: StudyContent, drawn: Mapping[str, tuple[str, str]]) -> str:
    """The whole file."""
    study, measures = content.study, content.measures
    best = measures.best(content.points)
    facts = {
        "Model": study.model_name,
        "State": study.state + (f" ({study.stopped})" if study.stopped else ""),
        "Best": _best(measures, best),
        "Float model": _value(measures.primary, value_in(measures.primary, study.baseline)),
        "Trials": f"{sum(p.finished for p in content.points)} of {study.target_trials}",
        "Changed": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(study.updated_at)),
        "Model sha256": study.model_sha256,
        "Code": study.code_version,
    }
    filled = {
        "TITLE": escape(study.name),
        "STYLE": stylesheet(),
        "FACTS": "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items()),
        "PLOTS": "".join(
            f"<section{' class=wide' if name == 'parallel' else ''}>"
            f"<h2>{escape(title)}</h2><div class=scroll>{svg}</div></section>"
            for name, (title, svg) in drawn.items()
        ),
        "FAILURES": _failures(content),
        "QCONFIG": _table(
            ("Field", "Value"), [(k, _plain(v)) for k, v in sorted(content.qconfig.items())]
        ),
        "TRIALS": _trials(content, measures),
    }
    template = files("qsearch.report").joinpath("report.html").read_text(encoding="utf-8")
    parts = template.split("@@")
    return "".join(filled[part] if i % 2 else part for i, part in enumerate(parts))


def _trials(content: StudyContent, measures: Measures) -> str:
    rank = measures.objective.rank
    done = [p for p in content.points if p.state == "complete" and p.score is not None]
    ordered = sorted(done, key=lambda p: rank(p.score or {}, p.number), reverse=True)
    names = list(dict.fromkeys(name for point in content.points for name in point.params))
    shown = [m for m in measures.all if m.name not in ("seconds",)]
    head = ("Trial", *(m.words for m in shown), *names)
    rows = [
        (
            str(p.number),
            *(_value(m, value_of(m, p)) for m in shown),
            *(_plain(p.params[name]) if name in p.params else "" for name in names),
        )
        for p in ordered[:ROWS]
    ]
    note = "" if len(done) <= ROWS else f"<p>The best {ROWS} of {len(done)} complete trials.</p>"
    return note + _table(head, rows)


def _failures(content: StudyContent) -> str:
    counted: dict[str, int] = {}
    for failure in content.failures:
        counted[failure.what] = counted.get(failure.what, 0) + 1
    if not counted:
        return "<p>All trials that ended are complete.</p>"
    rows = sorted(counted.items(), key=lambda item: -item[1])
    return _table(("Trials", "Reason"), [(str(count), what) for what, count in rows])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = "".join(f"<th scope=col>{escape(word)}</th>" for word in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    head_row = f"<thead><tr>{cells}</tr></thead>"
    return f"<div class=scroll><table>{head_row}<tbody>{body}</tbody></table></div>"


def _best(measures: Measures, best: TrialPoint | None) -> str:
    if best is None:
        return "no trial is complete"
    broken = measures.broken(best.score)
    told = f", breaks {' and '.join(broken)}" if broken else ""
    return (
        f"{_value(measures.primary, value_of(measures.primary, best))} (trial {best.number}{told})"
    )


def _value(measure: Measure, value: float | None) -> str:
    shown = measure.shown(value)
    if shown is None:
        return "–"
    if measure.is_infinite(shown):
        return "∞"
    if measure.unit in ("%", "dB", "s"):
        text = f"{shown:.2f}"
    else:
        text = f"{shown:,.0f}" if shown == round(shown) else f"{shown:.6g}"
    return f"{text} {measure.unit}".strip()


def _plain(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def _file_name(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in name)
    return kept[:60]
