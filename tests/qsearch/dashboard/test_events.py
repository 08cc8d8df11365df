"""Events as they happen: nothing is lost when a client comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from qsearch.dashboard.security import Policy
from qsearch.server.tokens import User
from tests.qsearch.dashboard.stores import fill

Message = tuple[str, int | None, Any]
MOST_PINGS = 8
"""Comments of a stream without a message, after which a test gives up."""


def messages(stream: httpx.Response) -> Iterator[Message]:
    """Name, id and data of each event."""
    fields: dict[str, str] = {}
    pings = 0
    for line in stream.iter_lines():
        pings += line.startswith(":")
        assert pings < MOST_PINGS, "the server tells nothing but that it lives"
        if line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            fields[name] = value
        elif not line and "event" in fields:
            number = fields.get("id")
            yield fields["event"], int(number) if number else None, json.loads(fields["data"])
            fields = {}


def streamed(client, **headers):
    return client.stream("GET", f"{client.study}/events/stream", headers=headers)


def test_a_finished_trial_is_told_at_once(client, repository):
    with streamed(client) as stream:
        told = messages(stream)
        assert next(told)[0] == "hello"
        fill(repository, repository.study("digits"), 2, first=30)
        kinds = [next(told) for _ in range(2)]
    assert [(name, data["trial"]) for name, _, data in kinds] == [("event", 30), ("event", 31)]
    numbers = [number for _, number, _ in kinds]
    assert numbers == [e.id for e in repository.events_of(1)][-2:]


def test_a_client_that_comes_back_gets_what_it_missed(client, repository):
    last = repository.last_event(1)
    fill(repository, repository.study("digits"), 3, first=30)
    with streamed(client, **{"Last-Event-ID": str(last)}) as stream:
        told = messages(stream)
        assert next(told)[0] == "hello"
        assert [next(told)[2]["trial"] for _ in range(3)] == [30, 31, 32]


def test_a_client_that_missed_too_many_events_is_told_to_reload(client, repository):
    for number in range(1001):
        repository.add_event(1, "note", data={"n": number})
    with streamed(client, **{"Last-Event-ID": "1"}) as stream:
        told = messages(stream)
        assert [next(told)[0] for _ in range(2)] == ["hello", "reload"]


def test_a_change_of_state_is_told(client, repository):
    with streamed(client) as stream:
        told = messages(stream)
        next(told)
        fill(repository, repository.study("digits"), 1, first=30)  # the reader has begun
        next(told)
        repository.set_study_state(1, "paused")
        assert next(told)[0] == "status"


def test_the_history_can_be_paged(client, repository):
    first = client.get(f"{client.study}/events", params={"limit": 5}).json()
    rest = client.get(f"{client.study}/events", params={"after": first[-1]["id"]}).json()
    assert [e["id"] for e in first + rest] == [e.id for e in repository.events_of(1)]


def test_more_streams_than_the_server_serves_are_refused_and_freed_ones_are_given_again(
    client, repository, monkeypatch
):
    monkeypatch.setattr("qsearch.dashboard.live.STREAMS", 2)
    with streamed(client) as one, streamed(client) as other:
        told = [messages(stream) for stream in (one, other)]
        assert [next(each)[0] for each in told] == ["hello", "hello"]
        with streamed(client) as third:
            assert third.status_code == 503
            assert "2 event streams are open" in third.read().decode()
    for _ in range(100):
        with streamed(client) as again:
            if again.status_code == 200:
                return
    pytest.fail("a closed stream is still counted")


def test_the_streams_of_one_user_do_not_shut_out_another(client, repository, monkeypatch):
    monkeypatch.setattr("qsearch.dashboard.live.OF_ONE_USER", 1)
    monkeypatch.setattr(Policy, "user", lambda self, given: User(given["user-agent"], "read"))
    ann, bob = {"User-Agent": "ann"}, {"User-Agent": "bob"}
    with streamed(client, **ann) as one:
        told = messages(one)
        assert next(told)[0] == "hello"
        with streamed(client, **ann) as second:
            assert second.status_code == 503
            assert "1 event streams of ann are open" in second.read().decode()
        with streamed(client, **bob) as other:
            assert next(messages(other))[0] == "hello"


@pytest.mark.parametrize(
    "place", ["events?after=", "events?limit=", "trials?after=", "trials?offset="]
)
def test_a_number_larger_than_any_id_is_refused(client, place):
    answer = client.get(f"{client.study}/{place}{10**26}")
    assert answer.status_code == 422


def test_a_last_event_that_no_id_can_be_starts_with_the_present(client):
    with streamed(client, **{"Last-Event-ID": "9" * 20}) as stream:
        assert next(messages(stream))[0] == "hello"
