"""The history of a study."""

from __future__ import annotations

import pytest


def test_the_history_can_be_paged(client, repository):
    first = client.get(f"{client.study}/events", params={"limit": 5}).json()
    rest = client.get(f"{client.study}/events", params={"after": first[-1]["id"]}).json()
    assert [e["id"] for e in first + rest] == [e.id for e in repository.events_of(1)]


@pytest.mark.parametrize(
    "place", ["events?after=", "events?limit=", "trials?after=", "trials?offset="]
)
def test_a_number_larger_than_any_id_is_refused(client, place):
    answer = client.get(f"{client.study}/{place}{10**26}")
    assert answer.status_code == 422
