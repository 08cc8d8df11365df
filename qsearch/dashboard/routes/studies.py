"""Studies: how they stand, their failures, layers and plots."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from qsearch.dashboard import plots
from qsearch.dashboard.schemas import (
    LARGEST_ID,
    BestOut,
    DriverOut,
    FailureOut,
    LayerOut,
    MeasureOut,
    StageOut,
    StudiesPage,
    StudyDetail,
    StudyOut,
)
from qsearch.dashboard.security import without_passwords
from qsearch.dashboard.snapshots import Snapshot
from qsearch.dashboard.state import SharedDep, SnapshotDep
from qsearch.report.measures import value_of
from qsearch.store.records import DriverRecord, Stage
from qsearch.store.view_queries import TrialPoint

router = APIRouter(prefix="/api/v1/studies", tags=["studies"])

LISTENING_S: Final = 60.0
"""A driver whose heart was silent for longer is not counted on."""
SPARK_POINTS: Final = 60
_FIGURE: Final = re.compile(r"\d+(\.\d+)?(e-?\d+)?")
_FAILED: Final = ("failed", "infeasible", "pruned")


@router.get("")
def list_studies(
    found: SharedDep,
    offset: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
) -> StudiesPage:
    """Studies of every source, newest change first."""
    shown, total = found.snapshots.page(offset, limit)
    return StudiesPage(
        studies=[StudyOut(**_summary(each)) for each in shown],
        total=total,
        allow_launch=found.starter is not None,
    )


@router.get("/{key}")
def get_study(study: SnapshotDep, found: SharedDep) -> StudyDetail:
    """One study."""
    row, repository = study.study, study.repository
    spec = row.spec
    stages = repository.stages_of(row.id)
    drivers = repository.drivers_of(row.id)
    return StudyDetail(
        **_summary(study),
        model_sha256=row.model_sha256,
        storage=study.source.shown,
        seed=row.seed,
        code_version=row.code_version,
        evaluator=_text(spec.get("evaluator")),
        sampler=_text(spec.get("sampler")),
        accuracy_floor=study.measures.floor,
        emitted=None if row.emitted is None else dict(row.emitted),
        measures=[MeasureOut.of(measure) for measure in study.measures.all],
        parameters=study.derive("parameters", lambda: _parameters(study)),
        stages=_stages(study, stages),
        drivers=[
            DriverOut(
                name=driver.name,
                workers=driver.workers,
                state=driver.state,
                silent_s=max(0.0, time.time() - driver.beat_at),
            )
            for driver in drivers[-20:]
        ],
        layer_kinds=sorted({figures.kind for figures in repository.layers_of(row.id)}),
        has_module=study.folder is not None and study.folder.module.is_file(),
        last_event=repository.last_event(row.id),
        can_resume=found.starter is not None and found.starter.can_resume(study.folder),
    )


@router.get("/{key}/failures")
def list_failures(study: SnapshotDep) -> list[FailureOut]:
    """Why trials did not complete, the most frequent reason first."""
    groups: dict[tuple[str, str], list[TrialPoint]] = {}
    for point in study.points:
        if point.state in _FAILED:
            # Reasons that differ in their figures only are one reason.
            kind = _FIGURE.sub("#", point.error or "")
            groups.setdefault((point.state, kind), []).append(point)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        FailureOut(
            state=state,
            what=without_passwords(_reason(points) or "collapsed on the first samples"),
            count=len(points),
            trials=[point.number for point in points[:20]],
        )
        for (state, _), points in ordered
    ]


@router.get("/{key}/layers")
def list_layers(study: SnapshotDep, kind: str | None = None) -> list[LayerOut]:
    """Figures about layers, such as their sensitivities, in the order of the model."""
    return [
        LayerOut(kind=f.kind, layer=f.layer, position=f.position, figures=dict(f.figures))
        for f in study.repository.layers_of(study.study.id, kind)
    ]


@router.get(
    "/{key}/plots/{name}.svg",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {}}}},
)
def get_plot(
    study: SnapshotDep,
    name: plots.PlotName,
    width: Annotated[int, Query(ge=240, le=1600)] = 640,
    x: Annotated[str | None, Query(max_length=255)] = None,
    y: Annotated[str | None, Query(max_length=255)] = None,
) -> Response:
    """A plot of the study as SVG; ``x`` and ``y`` name measures or parameters."""
    svg = plots.plot(study, name, width, x, y)
    return Response(svg, media_type="image/svg+xml")


def _summary(study: Snapshot) -> dict[str, Any]:
    row, measure, best = study.study, study.measures.primary, study.best
    drivers = study.repository.drivers_of(row.id, running=True)
    return {
        "key": study.key,
        "name": row.name,
        "model": row.model_name,
        "state": row.state,
        "paused": row.state == "paused",
        "stopped": row.stopped,
        "target_trials": row.target_trials,
        "finished": study.finished,
        "counts": dict(study.counts),
        "measure": MeasureOut.of(measure),
        "best": None
        if best is None
        else BestOut(
            number=best.number,
            value=value_of(measure, best),
            score=dict(best.score or {}),
            breaks=study.measures.broken(best.score),
        ),
        "baseline": None if row.baseline is None else _numbers(row.baseline),
        "rate_per_min": study.derive("rate", lambda: study.rate_per_min),
        "listening": listening(drivers),
        "silent": bool(drivers) and not listening(drivers),
        "created_at": row.created_at,
        "updated_at": row.updated_at,
        "version": study.version,
        "spark": study.derive("spark", lambda: _spark(study)),
    }


def listening(drivers: Sequence[DriverRecord]) -> int:
    """How many drivers will hear a command."""
    return sum(d.state == "running" and time.time() - d.beat_at < LISTENING_S for d in drivers)


def _stages(study: Snapshot, stages: Sequence[Stage]) -> list[StageOut]:
    ended: dict[str, int] = {}
    for point in study.points:
        ended[point.stage] = ended.get(point.stage, 0) + point.finished
    return [StageOut.of(stage, ended.get(stage.name, 0)) for stage in stages]


def _parameters(study: Snapshot) -> list[str]:
    """Names of the searched parameters, those that were tried with most values first."""
    values: dict[str, set[str]] = {}
    for point in study.points:
        for name, value in point.params.items():
            values.setdefault(name, set()).add(str(value))
    return sorted(values, key=lambda name: -len(values[name]))


def _spark(study: Snapshot) -> list[float]:
    """The best value so far over the trials, thinned out."""
    measure = study.measures.primary
    sign = -1.0 if measure.smaller_is_better else 1.0
    best: list[float] = []
    for point in study.points:
        value = value_of(measure, point) if point.state == "complete" else None
        if value is not None:
            best.append(value if not best else sign * max(sign * best[-1], sign * value))
    if len(best) <= SPARK_POINTS:
        return best
    step = (len(best) - 1) / (SPARK_POINTS - 1)
    return [best[round(index * step)] for index in range(SPARK_POINTS)]


def _reason(points: Sequence[TrialPoint]) -> str:
    """What they have in common; figures that differ are left out."""
    texts = {point.error or "" for point in points}
    return texts.pop() if len(texts) == 1 else _FIGURE.sub("…", texts.pop())


def _numbers(values: object) -> dict[str, float | None]:
    """The plain numbers of a mapping."""
    assert isinstance(values, dict)
    return {k: v for k, v in values.items() if v is None or isinstance(v, int | float)}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
