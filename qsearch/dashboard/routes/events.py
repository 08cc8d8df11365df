"""The history of a study."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from qsearch.dashboard.schemas import LARGEST_ID, EventOut
from qsearch.dashboard.state import SnapshotDep

router = APIRouter(prefix="/api/v1/studies/{key}/events", tags=["events"])


@router.get("")
def list_events(
    study: SnapshotDep,
    after: Annotated[int, Query(ge=0, le=LARGEST_ID)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> list[EventOut]:
    """Events with an id above ``after``, oldest first."""
    events = study.repository.events_of(study.study.id, after, limit)
    return [EventOut.of(event) for event in events]
