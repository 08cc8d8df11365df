"""Leases: who is dead is measured by beats on the observer's own clock."""

from __future__ import annotations

import threading
from pathlib import Path

from qsearch.store.engine import open_engine
from qsearch.store.leases import BEAT_S, LEASE_S, LeaseMonitor, heartbeat
from qsearch.store.records import DriverRecord, NewStudy
from qsearch.store.repository import Repository


def driver(number: int, beat: int) -> DriverRecord:
    return DriverRecord(number, 1, "host:1", "v1", 2, "running", beat, 0.0, 0.0)


def test_a_driver_that_does_not_beat_for_a_lease_is_dead() -> None:
    now = [0.0]
    watch = LeaseMonitor(clock=lambda: now[0])
    dead: list[int] = []
    while not dead:
        dead = watch.expired([driver(1, int(now[0])), driver(2, 7)])
        now[0] += 1.0
        assert now[0] < 2 * LEASE_S
    assert dead == [2]
    assert now[0] > LEASE_S


def test_time_without_the_store_ends_no_lease() -> None:
    now = [0.0]
    watch = LeaseMonitor(clock=lambda: now[0])
    for _ in range(3):
        assert watch.expired([driver(1, 7)]) == []
        now[0] += 1000.0  # a machine that slept, a server that was away
    assert 3 * 2 * BEAT_S < LEASE_S, "the three looks count for little"


def test_a_driver_that_beats_again_is_alive() -> None:
    now = [0.0]
    watch = LeaseMonitor(clock=lambda: now[0])
    for beat in (1, 1, 1, 2, 2, 2, 3):
        assert watch.expired([driver(1, beat)]) == []
        now[0] += 0.4 * LEASE_S


def test_a_heartbeat_grows_in_the_store_while_its_block_runs(tmp_path: Path) -> None:
    repository = Repository(open_engine(f"sqlite:///{tmp_path / 'study.db'}"))
    study = repository.create_study(NewStudy("s", "m", "a" * 64, {}, "b" * 64, 0, 4, "v1"))
    me = repository.join(study.id, "host:1", "v1", 2)
    seen = threading.Event()

    class Counting(Repository):
        def record_heartbeat(self, driver_id: int) -> None:
            super().record_heartbeat(driver_id)
            seen.set()

    with heartbeat(Counting(repository.engine), me, every_s=0.01):
        assert seen.wait(240)
    (record,) = repository.drivers_of(study.id)
    assert record.beat > 0
    repository.close()
