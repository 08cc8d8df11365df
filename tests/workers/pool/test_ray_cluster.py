"""What Ray is asked for; that it does so is tested in test_ray_pool.py."""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from workers.errors import WorkerError
from workers.pool.protocol import WorkerSize
from workers.pool.ray_cluster import (
    TURN_S,
    Shares,
    await_resources,
    connect,
    divided,
    start,
)


class Ray:
    """Stands for the module ``ray``: remembers how it was started."""

    exceptions = SimpleNamespace(RayError=RuntimeError)

    def __init__(self, error: Exception | None = None, **resources: float) -> None:
        self.options: dict[str, Any] = {}
        self._error = error
        self._resources = resources

    def init(self, **options: Any) -> None:
        self.options = options
        if self._error is not None:
            raise self._error

    def cluster_resources(self) -> dict[str, float]:
        return self._resources


def test_without_an_address_a_cluster_of_ones_own_is_started_even_beside_another() -> None:
    ray = Ray()
    start(ray, 3, WorkerSize(cpus=1.5))
    assert (ray.options["address"], ray.options["num_cpus"]) == ("local", 5)


def test_a_cluster_that_is_joined_keeps_its_size() -> None:
    ray = Ray()
    connect(ray, "host:6379")
    assert ray.options["address"] == "host:6379"
    assert "num_cpus" not in ray.options


def test_a_cluster_that_cannot_be_joined_is_an_error_with_a_fix() -> None:
    with pytest.raises(WorkerError, match="cannot connect to Ray at host:6379: refused") as caught:
        connect(Ray(ConnectionError("refused")), "host:6379")
    assert "RAY_AUTH_TOKEN" in (caught.value.fix or "")


def test_more_workers_than_there_is_room_for_are_refused() -> None:
    await_resources(Ray(CPU=4.0), 4, WorkerSize(), None, threading.Event())
    with pytest.raises(
        WorkerError, match=r"5 workers need 5 CPUs, the Ray cluster has 4"
    ) as caught:
        await_resources(Ray(CPU=4.0), 5, WorkerSize(), None, threading.Event())
    assert "--workers 4" in (caught.value.fix or "")


def test_a_cluster_that_is_joined_may_grow_and_what_it_lacks_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("workers.pool.ray_cluster.JOIN_S", 0.0)
    never = threading.Event()
    await_resources(Ray(CPU=1.0), 3, WorkerSize(), "head:6379", never)
    for thread in threading.enumerate():
        if thread.name == "ray room":
            thread.join(60)
    assert "3 workers need 3 CPUs, the Ray cluster has 1: the others start when" in caplog.text


@pytest.mark.parametrize(
    ("asked", "there", "given"),
    [
        ({"a": (4, 1.0)}, 8, {"a": 4}),
        ({"a": (8, 1.0), "b": (8, 1.0)}, 8, {"a": 4, "b": 4}),
        ({"a": (8, 1.0), "b": (1, 1.0)}, 8, {"a": 7, "b": 1}),
        ({"a": (8, 1.0), "b": (8, 1.0)}, 3, {"a": 2, "b": 1}),
        ({"a": (8, 1.0), "b": (4, 2.0)}, 8, {"a": 4, "b": 2}),
        ({"a": (1, 1.0), "b": (1, 1.0), "c": (1, 1.0)}, 2, {"a": 1, "b": 1, "c": 0}),
        ({"a": (3, 0.5), "b": (3, 0.5)}, 1, {"a": 1, "b": 1}),
        ({"a": (2, 0.0)}, 0, {"a": 2}),
    ],
)
def test_the_cpus_of_a_cluster_are_divided_evenly(
    asked: dict[str, tuple[int, float]], there: float, given: dict[str, int]
) -> None:
    assert divided(asked, there) == given


def test_more_pools_than_cpus_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("workers.pool.ray_cluster.time", clock)
    shares, held = Shares(), Counter[str]()
    for pool in "abc":
        shares.workers(pool, 4, 1.0, 2.0)
    before: set[str] = set()
    for second in range(0, int(6 * TURN_S), 10):
        now = float(second)
        given = {pool: shares.workers(pool, 4, 1.0, 2.0) for pool in "abc"}
        assert sorted(given.values()) == [0, 1, 1]
        held.update(given)
        here = {pool for pool in given if given[pool]}
        assert not before or len(before - here) <= 1, "one worker moves at a time"
        before = here
    assert len(set(held.values())) == 1
    shares.leave("b")
    assert [shares.workers(pool, 4, 1.0, 2.0) for pool in "ac"] == [1, 1]


def test_workers_wait_where_an_autoscaler_brings_nodes_only_for_those_that_wait() -> None:
    shares = Shares()
    assert shares.workers("a", 4, 1.0, 0.0) == 4
    assert [shares.workers(pool, 4, 1.0, 0.0) for pool in "ba"] == [1, 1]


def test_a_pool_that_leaves_or_is_silent_frees_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr("workers.pool.ray_cluster.time", clock)
    shares = Shares()
    assert shares.workers("a", 4, 1.0, 4.0) == 4
    assert shares.workers("b", 4, 1.0, 4.0) == 2
    assert shares.workers("a", 4, 1.0, 4.0) == 2
    shares.leave("b")
    assert shares.workers("a", 4, 1.0, 4.0) == 4
    shares.workers("b", 4, 1.0, 4.0)
    now = 100.0
    assert shares.workers("a", 4, 1.0, 4.0) == 4
