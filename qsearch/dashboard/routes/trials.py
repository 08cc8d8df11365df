"""Trials: pages of them, sorted and filtered here, and all that is known of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Response

from compiler.errors import legal_names
from qsearch.dashboard.measurements import measurements, missing
from qsearch.dashboard.schemas import (
    LARGEST_ID,
    LogOut,
    ShardOut,
    TrialDetail,
    TrialRow,
    TrialsPage,
)
from qsearch.dashboard.security import without_passwords
from qsearch.dashboard.snapshots import Snapshot
from qsearch.dashboard.sources import NotFoundError
from qsearch.dashboard.state import Shared, SharedDep, SnapshotDep
from qsearch.errors import SettingsError
from qsearch.report.measures import value_of
from qsearch.report.plots import layers
from qsearch.search.evaluator import score_of
from qsearch.store.records import Trial
from qsearch.store.view_queries import TrialPoint

router = APIRouter(prefix="/api/v1/studies/{key}/trials", tags=["trials"])

Number = Annotated[int, Path(ge=0, le=2**31)]
_OWN = ("number", "state", "stage", "samples", "seconds", "cpu_s", "attempts", "finished_at")


@router.get("")
def list_trials(
    study: SnapshotDep,
    offset: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    sort: Annotated[str, Query(max_length=255)] = "number",
    state: Annotated[list[str] | None, Query()] = None,
    stage: str | None = None,
    find: Annotated[str, Query(max_length=200)] = "",
    after: Annotated[int | None, Query(ge=-1, le=LARGEST_ID)] = None,
) -> TrialsPage:
    """One page of trials.

    Args:
        sort: a column, a measure or ``params.NAME``; ``-`` before it puts the greatest first.
        state, stage: only these.
        find: words that must all occur in a parameter ``name=value``, the state or the error.
        after: only trials with a greater number.
    """
    key = ("rows", sort, tuple(sorted(state or ())), stage, find, after)
    rows = study.derive(key, lambda: _chosen(study, sort, state, stage, find, after))
    return TrialsPage(
        rows=[TrialRow.of(point) for point in rows[offset : offset + limit]],
        matched=len(rows),
        total=len(study.points),
        offset=offset,
    )


@router.get("/{number}")
def get_trial(study: SnapshotDep, number: Number, shared: SharedDep) -> TrialDetail:
    """All that is known of one trial."""
    trial = _trial(study, number)
    outcome, failure = trial.outcome, trial.outcome.failure
    best = study.best
    files = measurements(shared, study, trial)
    return TrialDetail(
        **TrialRow.of(TrialPoint.of(trial)).model_dump(),
        batch=trial.batch,
        qconfig=dict(trial.qconfig),
        config_hash=trial.config_hash,
        work_hash=trial.work_hash,
        outputs_sha256=outcome.outputs_sha256,
        peak_rss_bytes=outcome.peak_rss_bytes,
        created_at=trial.created_at,
        started_at=trial.started_at,
        error_where=_masked(failure.where if failure else None),
        error_fix=_masked(failure.fix if failure else None),
        shards=[
            ShardOut(
                shard=s.shard,
                shards=s.shards,
                samples=s.samples,
                score=score_of(s.sums),
                cpu_s=s.cpu_s,
            )
            for s in study.repository.shards_of(study.study.id, number)
        ],
        logs=[
            LogOut(source=log.source, excerpt=without_passwords(log.excerpt), at=log.at)
            for log in study.repository.logs_of(study.study.id, number)
        ],
        is_best=best is not None and best.number == number,
        can_measure=files.complete,
        has_ranges=files.statistics is not None,
    )


@router.get("/{number}/histograms")
def get_histograms(study: SnapshotDep, number: Number, found: SharedDep) -> Response:
    """Ranges of what was calibrated, with the thresholds that this trial chose."""
    files = measurements(found, study, _trial(study, number))
    if files.statistics is None:
        raise missing("statistics", number)
    scales = None if files.scales is None else str(files.scales)
    answer = found.inspection.ask("histograms", files.statistics, scales=scales)
    return Response(answer, media_type="application/json")


@router.get("/{number}/layers")
def get_layers(study: SnapshotDep, number: Number, found: SharedDep) -> Response:
    """SQNR of what every layer reads under this trial's configuration, on a few stored inputs.

    ``null`` stands for nothing lost, or nothing of the kind that the layer reads.
    """
    return Response(_layers(study, number, found), media_type="application/json")


@router.get(
    "/{number}/layers.svg",
    response_class=Response,
    responses={200: {"content": {"image/svg+xml": {}}}},
)
def get_layers_plot(
    study: SnapshotDep,
    number: Number,
    found: SharedDep,
    width: Annotated[int, Query(ge=240, le=1600)] = 640,
) -> Response:
    """The same as SVG."""
    told = json.loads(_layers(study, number, found))
    svg = layers.decibels(told["layers"], told["output_db"], width)
    return Response(svg, media_type="image/svg+xml")


def _trial(study: Snapshot, number: int) -> Trial:
    found = study.repository.trials_by_number(study.study.id, [number])
    if not found:
        raise NotFoundError(
            f"study {study.study.name!r} has no trial {number}",
            where="trial",
            fix=f"it has {len(study.points)} trials, counted from 0",
        )
    return found[0]


def _layers(study: Snapshot, number: int, found: Shared) -> bytes:
    files = measurements(found, study, _trial(study, number))
    if not files.complete or files.module is None:
        raise missing("model, inputs or ranges", number)
    return found.inspection.ask(
        "layers",
        files.module,
        qconfig=files.qconfig.to_dict(),
        inputs=str(files.inputs),
        scales=str(files.scales) if files.needs_ranges else None,
        channels=str(files.channels) if files.qconfig.needs_channels else None,
    )


def _chosen(
    study: Snapshot,
    sort: str,
    states: list[str] | None,
    stage: str | None,
    find: str,
    after: int | None,
) -> list[TrialPoint]:
    words = find.lower().split()
    kept = [
        point
        for point in study.points
        if (not states or point.state in states)
        and stage in (None, "", point.stage)
        and (after is None or point.number > after)
        and (not words or _matches(point, words))
    ]
    value = _column(study, sort.removeprefix("-"))
    have = [(value(point), point) for point in kept]
    known = [pair for pair in have if pair[0] is not None]
    # Stable, so equal values stay in order of their numbers.
    known.sort(key=lambda pair: pair[0], reverse=sort.startswith("-"))
    return [point for _, point in known] + [point for key, point in have if key is None]


def _matches(point: TrialPoint, words: list[str]) -> bool:
    text = " ".join(f"{name}={value}" for name, value in point.params.items())
    whole = f"{point.number} {point.state} {point.stage} {text} {point.error or ''}".lower()
    return all(word in whole for word in words)


def _column(study: Snapshot, name: str) -> Callable[[TrialPoint], Any]:
    if name in _OWN:
        return lambda point: getattr(point, name)
    measure = study.measures.named(name)
    if measure is not None:
        return partial(value_of, measure)
    kind, _, parameter = name.partition(".")
    names = {each for point in study.points for each in point.params}
    if kind == "params" and parameter in names:
        return lambda point: str(point.params[parameter]) if parameter in point.params else None
    legal = [*_OWN, *(m.name for m in study.measures.all), *(f"params.{each}" for each in names)]
    raise SettingsError(f"unknown column {name!r}", where="sort", fix=legal_names(name, legal))


def _masked(text: str | None) -> str | None:
    return None if text is None else without_passwords(text)
