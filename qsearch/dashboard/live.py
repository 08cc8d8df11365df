"""Events as they happen: one reader per study that a page shows, a bounded queue per client.

A client that reconnects names the last event it saw (``Last-Event-ID``) and gets what it missed
from the event table, so nothing is lost when it, the network or this server goes away for a while.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

from qsearch.dashboard.schemas import EventOut
from qsearch.dashboard.snapshots import Snapshot
from qsearch.errors import SearchError, StoreError
from qsearch.server.tokens import User
from qsearch.store.records import Event
from qsearch.store.repository import Repository

POLL_S: Final = 0.5
IDLE_POLL_S: Final = 2.0
"""Between two looks at a study that nobody searches and nothing changes."""
PING_S: Final = 15
QUEUE: Final = 256
"""Events that may wait for one client; a slower one is cut off, and reconnects."""
REPLAYED: Final = 1000
"""Events that are sent again one by one; who missed more is told to read everything."""
_OVERLAP: Final = 32
"""Events that are read twice: with several drivers a lower id may become visible later."""
STREAMS: Final = 128
"""Streams at a time, of all studies: each holds a connection and a queue."""
OF_ONE_USER: Final = 32
"""Streams of one user at a time."""
RETRY_MS: Final = 1000

_Message = tuple[int | None, str, Any]
"""id, event name, data."""


class TooManyStreamsError(SearchError):
    """Error: as many event streams are open as the server serves."""

    http_status = 503


@dataclass(slots=True)
class _Channel:
    """The clients of one study: the queue of each, and its user."""

    queues: dict[asyncio.Queue[_Message | None], str] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None


class Live:
    """Streams of events; lives in the server's event loop."""

    def __init__(self) -> None:
        self._channels: dict[str, _Channel] = {}
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Let every stream finish; called when the server is told to stop."""
        self._ended.set()
        for channel in self._channels.values():
            for queue in channel.queues:
                _offer(queue, None)

    def require_room(self, user: User) -> None:
        """Refuse one stream more than the server serves, to everybody or to one user.

        Without tokens everybody is the operator, who has no limit of their own.

        Raises:
            TooManyStreamsError: so many are open.
        """
        users = [name for channel in self._channels.values() for name in channel.queues.values()]
        own = 0 if user.operator else users.count(user.name)
        if len(users) >= STREAMS or own >= OF_ONE_USER:
            whose = f" of {user.name}" if own >= OF_ONE_USER else ""
            raise TooManyStreamsError(
                f"{own if whose else len(users)} event streams{whose} are open",
                where="events/stream",
                fix="close other windows of the dashboard, or ask for events with ?after=",
            )

    async def stream(
        self, study: Snapshot, after: int | None, user: User
    ) -> AsyncIterator[dict[str, Any]]:
        """Server-sent events of a study, as sse-starlette takes them.

        Args:
            after: id of the last event that the client saw; None starts with the present.
            user: whose stream it is.
        """
        queue: asyncio.Queue[_Message | None] = asyncio.Queue(QUEUE)
        repository = study.repository
        study_id = study.study.id
        newest = await asyncio.to_thread(repository.last_event, study_id)
        try:
            self.require_room(user)  # others came since the route asked
        except TooManyStreamsError:
            return
        channel = self._channels.setdefault(study.key, _Channel())
        channel.queues[queue] = user.name
        if channel.task is None or channel.task.done():
            channel.task = asyncio.create_task(self._follow(channel, study, newest))
        try:
            yield {"retry": RETRY_MS}
            yield _fields((newest, "hello", {"last_event": newest}))
            for message in await self._missed(repository, study_id, after, newest):
                yield _fields(message)
            while not self._ended.is_set() and (got := await queue.get()) is not None:
                yield _fields(got)
        finally:
            channel.queues.pop(queue, None)
            if not channel.queues and channel.task is not None:
                channel.task.cancel()
                if self._channels.get(study.key) is channel:
                    del self._channels[study.key]

    async def _missed(
        self, repository: Repository, study_id: int, after: int | None, newest: int
    ) -> list[_Message]:
        if after is None or after >= newest:
            return []
        events = await asyncio.to_thread(repository.events_of, study_id, after, REPLAYED + 1)
        if len(events) > REPLAYED:
            return [(newest, "reload", {})]
        return [_message(event) for event in events if event.id <= newest]

    async def _follow(self, channel: _Channel, study: Snapshot, last: int) -> None:
        """Read the event table and hand what is new to every client."""
        repository = study.repository
        study_id = study.study.id
        seen: set[int] | None = None
        known: tuple[float, int, int] | None = None
        pause = POLL_S
        while channel.queues and not self._ended.is_set():
            with contextlib.suppress(StoreError):  # a database that restarts: ask again
                after = max(0, last - _OVERLAP)
                now = await asyncio.to_thread(repository.pulse, study_id, after)
                awake = now != known or (now is not None and now[1])
                pause = POLL_S if awake else min(2 * pause, IDLE_POLL_S)
                if now != known or seen is None:
                    # Before the events: a client that heard of one knows the state by then.
                    if seen is not None and (now or ())[:2] != (known or ())[:2]:
                        _broadcast(channel, (None, "status", {}))
                    events = await asyncio.to_thread(
                        repository.events_of, study_id, after, REPLAYED
                    )
                    if seen is None:
                        seen = {event.id for event in events if event.id <= last}
                    for event in events:
                        if event.id not in seen:
                            _broadcast(channel, _message(event))
                    last = max([last, *(event.id for event in events)])
                    seen = {event.id for event in events if event.id > last - _OVERLAP}
                known = now
            await asyncio.sleep(pause)


def _broadcast(channel: _Channel, message: _Message) -> None:
    for queue in list(channel.queues):
        if not _offer(queue, message):
            channel.queues.pop(queue, None)


def _offer(queue: asyncio.Queue[_Message | None], message: _Message | None) -> bool:
    """Put it there; a full queue is emptied and told to end."""
    try:
        queue.put_nowait(message)
    except asyncio.QueueFull:
        while not queue.empty():
            queue.get_nowait()
        queue.put_nowait(None)
        return False
    return True


def _message(event: Event) -> _Message:
    return event.id, "event", EventOut.of(event).model_dump()


def _fields(message: _Message) -> dict[str, Any]:
    number, name, data = message
    return {"id": None if number is None else str(number), "event": name, "data": json.dumps(data)}
