"""Which plot of a study is asked for, drawn from its snapshot and kept until that changes."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from compiler.errors import legal_names
from qsearch.dashboard.snapshots import Snapshot
from qsearch.errors import SettingsError
from qsearch.report.measures import value_of
from qsearch.report.plots import layers, parameters, trials
from qsearch.search.optuna_study import importances
from workers.metrics.registry import Measure


class PlotName(Enum):
    """Plots of a study."""

    HISTORY = "history"
    SCATTER = "scatter"
    IMPORTANCES = "importances"
    PARALLEL = "parallel"
    SLICE = "slice"
    LAYERS = "layers"


def plot(study: Snapshot, name: PlotName, width: int, x: str | None, y: str | None) -> str:
    """The SVG.

    Args:
        x: for scatter, the measure across; for slice, the parameter; for layers, the figure.
        y: the measure; for layers, the kind of figures.
    Raises:
        SettingsError: no such measure or parameter.
    """
    # Figures of layers may come without a trial; they are few, and drawn anew.
    if name is PlotName.LAYERS:
        return _layers(study, width, x, y)
    key = ("plot", name, width, x, y)
    drawn: str = study.derive(key, lambda: _draw(study, name, width, x, y))
    return drawn


def importance_of(study: Snapshot, measure: Measure) -> Mapping[str, float]:
    """Importances of the parameters, computed again when a twentieth of the trials is new."""
    complete = [p for p in study.points if p.state == "complete"]
    known = [(p.params, v) for p in complete if (v := value_of(measure, p)) is not None]
    kept = study.importances.get(measure.name)
    if kept is not None and len(known) < 1.05 * kept[0]:
        return kept[1]
    found = importances(known, smaller_is_better=measure.smaller_is_better)
    study.importances[measure.name] = (len(known), found)
    return found


def _draw(study: Snapshot, name: PlotName, width: int, x: str | None, y: str | None) -> str:
    good = _measure(study, y, study.measures.primary)
    if name is PlotName.HISTORY:
        return trials.history(study.study, study.measures, study.points, width)
    if name is PlotName.SCATTER:
        if y is None and study.measures.primary.smaller_is_better:
            good = study.measures.accuracy
        cost = _measure(study, x, study.measures.cost or good)
        return trials.scatter(study.study, study.measures, study.points, good, cost, width)
    if name is PlotName.SLICE:
        legal = {each for point in study.points for each in point.params}
        if x not in legal:
            raise SettingsError(
                f"no parameter {x!r}", where="x", fix=legal_names(x or "", sorted(legal))
            )
        return parameters.slices(study.points, x, good, width)
    found = importance_of(study, good)
    if name is PlotName.IMPORTANCES:
        return parameters.importances(found, good, width)
    ordered = dict.fromkeys(sorted(found, key=lambda each: -found[each]))
    ordered.update(dict.fromkeys(each for point in study.points for each in point.params))
    return parameters.parallel(study.points, list(ordered), good, width)


def _layers(study: Snapshot, width: int, figure: str | None, kind: str | None) -> str:
    stored = study.repository.layers_of(study.study.id, kind)
    kinds = [layer.kind for layer in stored]
    wanted = kind or (kinds[0] if kinds else "")
    stored = [layer for layer in stored if layer.kind == wanted]
    names = layers.figures_of(stored)
    if figure is not None and figure not in names:
        raise SettingsError(f"no figure {figure!r}", where="x", fix=legal_names(figure, names))
    return layers.bars(stored, figure or (names[0] if names else ""), wanted, width)


def _measure(study: Snapshot, name: str | None, default: Measure) -> Measure:
    if name is None:
        return default
    found = study.measures.named(name)
    if found is None:
        legal = [measure.name for measure in study.measures.all]
        raise SettingsError(f"no measure {name!r}", where="x, y", fix=legal_names(name, legal))
    return found
