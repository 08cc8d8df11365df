"""Studies: how they stand, their failures, layers and plots."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Response

from compiler.errors import legal_names
from qsearch.dashboard.schemas import (
    LARGEST_ID,
    DriverOut,
    FailureOut,
    ImportancesOut,
    LayerOut,
    MeasureOut,
    StageOut,
    StudiesPage,
    StudyDetail,
    StudyOut,
)
from qsearch.dashboard.snapshots import Snapshot, StudyFilter, device_of
from qsearch.dashboard.state import Shared, SharedDep, SnapshotDep, UserDep, note_fields
from qsearch.errors import SettingsError
from qsearch.report.trial_table import BESIDE, OWN
from qsearch.report.view import (
    COLLAPSED,
    WITHOUT_MODULE,
    StudyView,
    constant_names,
    importances_of,
    parameter_names,
    spark,
    trials_as_columns,
)
from qsearch.server.tokens import User
from qsearch.store.view_queries import NO_NOTE, TrialPoint
from workers.metrics.registry import Measure

router = APIRouter(prefix="/api/v1/studies", tags=["studies"])

_FIGURE: Final = re.compile(r"\d+(\.\d+)?(e-?\d+)?")


@router.get("")
def list_studies(
    found: SharedDep,
    user: UserDep,
    offset: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    find: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    sort: Annotated[str, Query(pattern="^-?(changed|created|name|model|state)$")] = "-changed",
    device: Annotated[str, Query(max_length=20)] = "",
) -> StudiesPage:
    """Studies of every source.

    Args:
        find: words that must all occur in the name or the model's name.
        state: only these.
        sort: ``-`` puts the greatest first.
        device: what the search was for (``--for``): only these.
    """
    chosen = StudyFilter(find, state, sort, device)
    shown, total, devices = found.snapshots.page(offset, limit, chosen)
    return StudiesPage(
        studies=[StudyOut.of(one.study, **_summary(one, found, user, _view(one))) for one in shown],
        total=total,
        devices=devices,
        allow_launch=found.queue is not None and user.submits,
        has_queue=found.queue is not None,
    )


@router.get("/{key}")
def get_study(study: SnapshotDep, found: SharedDep, user: UserDep) -> StudyDetail:
    """One study."""
    row = study.study
    repository = study.repository
    view = _view(study)
    ended: Mapping[str, int] = study.derive(
        "ended", lambda: Counter(point.stage for point in study.points if point.finished)
    )
    return StudyDetail.of(
        row,
        **_summary(study, found, user, view),
        model_sha256=row.model_sha256 if found.may_see_hashes(study, user) else None,
        evaluator=row.spec.get("evaluator"),
        sampler=row.spec.get("sampler"),
        measures=list(map(MeasureOut.of, study.measures.all)),
        parameters=study.derive("parameters", lambda: parameter_names(study.points)),
        constant=_constant(study),
        stages=[StageOut.of(s, finished=ended.get(s.name, 0)) for s in view.stages],
        drivers=[
            DriverOut.of(driver, silent_s=max(0.0, view.now - driver.beat_at))
            for driver in view.drivers[-20:]
        ],
        layer_kinds=sorted({figures.kind for figures in repository.layers_of(row.id)}),
        can_resume=found.can_resume(study) and user.submits,
        can_change=found.may_change(study, user),
    )


def _constant(study: Snapshot) -> list[str]:
    """Columns in which all trials have the same value; a table needs none of them."""

    def find() -> list[str]:
        own = [study.table.columns[name] for name in (*OWN, *BESIDE)]
        values = {c.name: [c.value(point) for point in study.points] for c in own}
        alike = [name for name, found in values.items() if found.count(found[0]) == len(found)]
        return alike + constant_names(study.measures, study.points)

    if len(study.points) > 1:
        return study.derive("constant", find)
    return []


@router.get("/{key}/failures")
def list_failures(study: SnapshotDep) -> list[FailureOut]:
    """List the reasons of trials that did not complete, the most frequent first."""
    groups: dict[tuple[str, str], list[TrialPoint]] = {}
    for point in study.points:
        if point.state in WITHOUT_MODULE:
            # Reasons that differ in their figures only are one reason.
            kind = _FIGURE.sub("#", point.error or "")
            groups.setdefault((point.state, kind), []).append(point)
    ordered = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        FailureOut(
            state=state,
            what=_reason(points) or COLLAPSED,
            count=len(points),
            trials=[point.number for point in points[:20]],
        )
        for (state, _), points in ordered
    ]


@router.get("/{key}/layers")
def list_layers(study: SnapshotDep, kind: str | None = None) -> list[LayerOut]:
    """Figures about layers, such as their sensitivities, in the order of the model."""
    found = study.repository.layers_of(study.study.id, kind)
    return [LayerOut.of(layer) for layer in found]


@router.get("/{key}/points")
def get_points(study: SnapshotDep) -> Response:
    """Every trial, a list per column: what all plots are drawn from; see ``trials_as_columns``."""

    def make() -> bytes:
        found = trials_as_columns(study.measures, study.points)
        return json.dumps(found, separators=(",", ":")).encode()

    return Response(study.derive("points", make), media_type="application/json")


@router.get("/{key}/importances")
def get_importances(study: SnapshotDep, measure: str | None = None) -> ImportancesOut:
    """Rate the parameters by their effect on a measure; conditional ones are named as left out."""
    if measure:
        chosen = study.measures.named(measure)
    else:
        chosen = study.measures.primary
    if chosen is None:
        legal = [each.name for each in study.measures.all]
        fix = legal_names(measure or "", legal)
        raise SettingsError(f"no measure {measure!r}", where="measure", fix=fix)
    found, left_out = importances_kept(study, chosen)
    return ImportancesOut(measure=chosen.name, importances=found, left_out=left_out)


def importances_kept(study: Snapshot, measure: Measure) -> tuple[dict[str, float], list[str]]:
    """Importances, computed again when a twentieth of the trials is new."""
    count = study.counts["complete"]
    kept = study.importances.get(measure.name)
    if kept is None or count >= 1.05 * kept[0]:
        kept = (count, importances_of(measure, study.points))
        study.importances[measure.name] = kept
    return kept[1]


def _view(study: Snapshot) -> StudyView:
    if study.source.folder is not None:
        storage = None
    else:
        storage = study.source.url
    known = (study.study, study.measures, study.points, study.best)
    return StudyView.of(study.repository, known, study.folder, storage)


def _summary(study: Snapshot, found: Shared, user: User, view: StudyView) -> dict[str, Any]:
    module = study.module
    row = study.study
    # What depends on the time is told anew; the rest once a version.
    head = study.derive(("head", view.phase, view.resume), view.head)
    return {
        "key": study.key,
        "model": row.model_name,
        "device": device_of(row),
        "paused": row.state == "paused",
        **head,
        # It names folders of the server.
        "resume": head["resume"] if user.operator else None,
        "rate_per_min": study.derive("rate", lambda: study.rate_per_min),
        "listening": view.listening,
        "silent": view.silent,
        "version": study.version,
        "spark": study.derive("spark", lambda: spark(study.measures, study.points)),
        **note_fields(study.notes.get(None, NO_NOTE)),
        "proof": _proof(study, found, module),
        "module_bytes": None if module is None else module.stat().st_size,
    }


def _proof(study: Snapshot, found: Shared, module: Path | None) -> str | None:
    """The verdict of the proof where it is derived already; else somebody begins to derive it."""
    if module is None:
        return None
    known = found.inspection.known("proof", module)
    if known is not None:
        # Lists are asked for every few seconds, and a proof may be long.
        return study.derive(
            ("proof", hash(known)), lambda: str(json.loads(known)["derived"]["verdict"])
        )
    found.prepare(module)
    return None


def _reason(points: Sequence[TrialPoint]) -> str:
    """Return the common part of the reasons; figures that differ are left out."""
    texts = {point.error or "" for point in points}
    if len(texts) == 1:
        return texts.pop()
    return _FIGURE.sub("…", texts.pop())
