"""Trials: pages of them, sorted and filtered here, and all that is known of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from compiler.qtypes.qconfig import QConfig
from compiler.quantize.calibration.statistics_store import CHANNELS, SCALES, STATISTICS
from qsearch.dashboard.schemas import (
    LARGEST_ID,
    LogOut,
    ShardOut,
    TrialDetail,
    TrialRow,
    TrialsPage,
)
from qsearch.dashboard.snapshots import Snapshot
from qsearch.dashboard.sources import NotFoundError, elsewhere
from qsearch.dashboard.state import Shared, SharedDep, SnapshotDep, note_fields, slug
from qsearch.report.build import intervals
from qsearch.search.calibration import statistics_key, stored_keys
from qsearch.search.scoring import score_of
from qsearch.search.session import FLOAT_MODULE
from qsearch.search.shipped import INPUTS
from qsearch.store.records import Trial
from qsearch.store.view_queries import NO_NOTE, TrialPoint

router = APIRouter(prefix="/api/v1/studies/{key}/trials", tags=["trials"])

Number = Annotated[int, Path(ge=0, le=2**31)]
Filter = Annotated[str, Query(max_length=2000)]
Sort = Annotated[str, Query(max_length=2000)]


@router.get("")
def list_trials(
    study: SnapshotDep,
    filter: Filter = "",
    sort: Sort = "number",
    state: Annotated[list[str] | None, Query()] = None,
    offset: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    after: Annotated[int | None, Query(ge=-1, le=LARGEST_ID)] = None,
) -> TrialsPage:
    """One page of trials.

    Args:
        filter: terms such as ``sqnr_db>35 calibrate_mode=mse``; see ``trial_table``.
        sort: columns separated by commas; ``-`` before one puts the greatest first.
        state: only these.
        after: only trials with a greater number.
    """
    rows = _chosen(study, filter, sort, state, after)
    return TrialsPage(
        rows=_rows(study, rows[offset : offset + limit]),
        matched=len(rows),
        total=len(study.points),
        offset=offset,
    )


@router.get("/export.csv", response_class=Response, responses={200: {"content": {"text/csv": {}}}})
def export_csv(study: SnapshotDep, filter: Filter = "", sort: Sort = "number") -> Response:
    """The trials that pass the filter, in order, as comma-separated values."""
    return _download(study.table.csv(_chosen(study, filter, sort)), "csv", study)


@router.get("/export.json")
def export_json(study: SnapshotDep, filter: Filter = "", sort: Sort = "number") -> Response:
    """The trials that pass the filter, in order, as a JSON array."""
    rows = [row.model_dump() for row in _rows(study, _chosen(study, filter, sort))]
    return _download(json.dumps(rows, indent=1), "json", study)


@router.get("/{number}")
def get_trial(study: SnapshotDep, number: Number, shared: SharedDep) -> TrialDetail:
    """All that is known of one trial."""
    trial = _trial(study, number)
    outcome = trial.outcome
    failure = trial.outcome.failure
    best = study.best
    files = _measurements(shared, study, trial)
    return TrialDetail.of(
        trial,
        **_rows(study, [TrialPoint.of(trial)])[0].model_dump(),
        outputs_sha256=outcome.outputs_sha256,
        peak_rss_bytes=outcome.peak_rss_bytes,
        error_where=failure.where if failure else None,
        error_fix=failure.fix if failure else None,
        intervals=intervals(outcome.score or {}, outcome.samples),
        shards=[
            ShardOut.of(shard, score=score_of(shard.sums))
            for shard in study.repository.shards_of(study.study.id, number)
        ],
        logs=[LogOut.of(log) for log in study.repository.logs_of(study.study.id, number)],
        is_best=best is not None and best.number == number,
        can_measure=files.complete,
        has_ranges=STATISTICS in files.paths,
    )


@router.get("/{number}/histograms")
async def get_histograms(
    study: SnapshotDep, number: Number, found: SharedDep, request: Request
) -> Response:
    """Ranges of what was calibrated, with the thresholds that this trial chose."""
    files = await run_in_threadpool(lambda: _measurements(found, study, _trial(study, number)))
    if STATISTICS not in files.paths:
        raise elsewhere("no statistics of this trial", f"trial {number}")
    file = FilePath(files.paths[STATISTICS])
    scales = files.paths.get(SCALES)
    return await found.inspection.answer(request, "histograms", file, scales=scales)


@router.get("/{number}/layers")
async def get_layers(
    study: SnapshotDep, number: Number, found: SharedDep, request: Request
) -> Response:
    """SQNR of what every layer reads under this trial's configuration, on a few stored inputs.

    ``null`` stands for nothing lost, or nothing of the kind that the layer reads.
    """
    files = await run_in_threadpool(lambda: _measurements(found, study, _trial(study, number)))
    if not files.complete:
        raise elsewhere("no model, inputs or ranges of this trial", f"trial {number}")
    return await found.inspection.answer(
        request,
        "layers",
        FilePath(files.paths[FLOAT_MODULE]),
        qconfig=files.qconfig.to_dict(),
        inputs=files.paths[INPUTS],
        scales=files.paths[SCALES] if files.qconfig.needs_ranges else None,
        channels=files.paths[CHANNELS] if files.qconfig.needs_channels else None,
    )


@dataclass(frozen=True, slots=True)
class _Measurements:
    """Files of a trial on this machine.

    Attributes:
        qconfig: of the trial.
        paths: by kind: the float module, the first calibration inputs, and of its calibration the
            statistics, those of single channels, and the ranges that the configuration chose.
    """

    qconfig: QConfig
    paths: Mapping[str, str]

    @property
    def complete(self) -> bool:
        """Return whether its layers can be measured."""
        own = {SCALES: self.qconfig.needs_ranges, CHANNELS: self.qconfig.needs_channels}
        return {FLOAT_MODULE, INPUTS, *(kind for kind in own if own[kind])} <= self.paths.keys()


def _measurements(found: Shared, study: Snapshot, trial: Trial) -> _Measurements:
    """The files of a trial."""
    qconfig = QConfig.from_dict(trial.qconfig)
    store = found.sources.artifacts(study.source, study.study)
    if store is None:
        return _Measurements(qconfig, {})
    key = statistics_key(study.study.spec, study.study.code_version)
    keys = dict(zip((STATISTICS, SCALES, CHANNELS), stored_keys(key, qconfig), strict=True))
    paths = {
        each.kind: str(store.path(each.kind, each.sha256).absolute())
        for each in study.repository.artifacts_of(study.study.id)
        if keys.get(each.kind, each.key) == each.key and store.has(each.kind, each.sha256)
    }
    return _Measurements(qconfig, paths)


def _trial(study: Snapshot, number: int) -> Trial:
    found = study.repository.trials_by_number(study.study.id, [number])
    if not found:
        raise NotFoundError(
            f"study {study.study.name!r} has no trial {number}",
            where="trial",
            fix=f"it has {len(study.points)} trials, counted from 0",
        )
    return found[0]


def _rows(study: Snapshot, points: Sequence[TrialPoint]) -> list[TrialRow]:
    front = set(study.front)
    notes = study.notes
    return [
        TrialRow.of(p, front=p.number in front, **note_fields(notes.get(p.number, NO_NOTE)))
        for p in points
    ]


def _chosen(
    study: Snapshot,
    filter: str,
    sort: str,
    states: list[str] | None = None,
    after: int | None = None,
) -> list[TrialPoint]:
    key = ("rows", filter, sort, tuple(sorted(states or ())), after)

    def find() -> list[TrialPoint]:
        return [
            point
            for point in study.table.chosen(filter, sort)
            if (not states or point.state in states) and (after is None or point.number > after)
        ]

    return study.derive(key, find)


def _download(text: str, kind: str, study: Snapshot) -> Response:
    media = {"csv": "text/csv; charset=utf-8", "json": "application/json"}[kind]
    name = f"{slug(study.study.name)}-trials.{kind}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text, media_type=media, headers=headers)
