"""The history of a study: as a list, and as it happens."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from sse_starlette import EventSourceResponse

from qsearch.dashboard.live import PING_S
from qsearch.dashboard.schemas import LARGEST_ID, EventOut
from qsearch.dashboard.state import SharedDep, SnapshotDep, UserDep

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


@router.get(
    "/stream",
    response_class=EventSourceResponse,
    responses={200: {"content": {"text/event-stream": {}}}},
)
async def stream_events(
    study: SnapshotDep,
    found: SharedDep,
    user: UserDep,
    last_event_id: Annotated[str | None, Header(max_length=20)] = None,
) -> EventSourceResponse:
    """Server-sent events: ``event`` (with an id), ``status``, ``reload``; a ping every 15 s."""
    seen = int(last_event_id) if last_event_id and last_event_id.isdecimal() else None
    found.live.require_room(user)
    return EventSourceResponse(found.live.stream(study, seen, user), ping=PING_S, sep="\n")
