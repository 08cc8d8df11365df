"""Leases of trials: drivers send heartbeats, and a driver without one is taken for dead.

A trial is leased to its driver for as long as the driver's ``beat`` grows. How long it has not
grown is measured by the observer's monotonic clock, and only over times in which the observer could
read the store: clocks that jump or differ, a server that restarts and a machine that slept end no
lease.
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from qsearch.errors import StoreError
from qsearch.store.records import DriverRecord

if TYPE_CHECKING:
    from qsearch.store.repository import Repository

BEAT_S: Final = 2.0
"""Seconds between two beats."""

LEASE_S: Final = 20.0
"""Seconds without a beat after which a driver is taken for dead."""

log = logging.getLogger("qsearch.search.driver")


@contextlib.contextmanager
def heartbeat(repository: Repository, driver_id: int, every_s: float = BEAT_S) -> Iterator[None]:
    """Send heartbeats in a thread of its own while the block runs.

    Args:
        repository: its engine gives the thread a connection of its own.
        driver_id: the driver that sends them.
        every_s: seconds between beats.
    """
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(every_s):
            try:
                repository.record_heartbeat(driver_id)
            except StoreError as error:
                # The driver meets the same store and decides; beats go on in case it comes back.
                log.warning("no heartbeat: %s", error.what)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(every_s)


@dataclass(slots=True)
class LeaseMonitor:
    """Finds drivers without a heartbeat.

    Args:
        lease_s: seconds without a beat that end a lease.
        clock: monotonic seconds.
    """

    lease_s: float = LEASE_S
    clock: Callable[[], float] = time.monotonic
    _last_look: float | None = None
    _still: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Beat of each driver, and the seconds for which it stands still."""

    def expired(self, drivers: Iterable[DriverRecord]) -> list[int]:
        """Ids of those among ``drivers``, as the store shows them now, that are dead."""
        now = self.clock()
        # A gap between two looks says nothing about the others: we did not look.
        longest = 2 * BEAT_S
        if self._last_look is None:
            passed = 0.0
        else:
            passed = min(now - self._last_look, longest)
        self._last_look = now
        still: dict[int, tuple[int, float]] = {}
        for driver in drivers:
            beat, stood = self._still.get(driver.id, (None, 0.0))
            still[driver.id] = (driver.beat, stood + passed if beat == driver.beat else 0.0)
        self._still = still
        return [driver for driver, (_, stood) in still.items() if stood >= self.lease_s]


@dataclass(slots=True)
class OtherDrivers:
    """Drivers beside one's own: those that died leave their trials to others.

    Args:
        repository: the store.
        study_id: of the study that one drives.
        monitor: tells which drivers are dead.
    """

    repository: Repository
    study_id: int
    monitor: LeaseMonitor
    me: int = 0
    """Id of one's own driver, once it has joined the study."""
    count: int = 0
    """Drivers that work on the study beside one's own."""
    _watched: float = -math.inf

    def meet(self) -> bool:
        """Look around before the first trial; True where one's own driver is the first alive."""
        now = time.time()
        if not self.repository.shared:
            # We hold the lock of the database: every other driver, of any study, is gone.
            self._requeue(self._others())
        drivers = self.repository.drivers_of(self.study_id, running=True)
        self.count = len(drivers) - 1
        alive = [driver.id for driver in drivers if now - driver.beat_at < LEASE_S]
        return self.me == min(alive, default=self.me)

    def watch(self, now: float) -> None:
        """Find drivers that died, and count those of this study that live, once a beat."""
        if now - self._watched < BEAT_S:
            return
        self._watched = now
        # Of all studies: the same work as ours is not begun while a dead driver holds it.
        drivers = self._others()
        dead = set(self.monitor.expired(drivers))
        self._requeue([driver for driver in drivers if driver.id in dead])
        alive = (driver for driver in drivers if driver.id not in dead)
        self.count = sum(driver.study_id == self.study_id for driver in alive)

    def _others(self) -> list[DriverRecord]:
        drivers = self.repository.drivers_of(None, running=True)
        return [driver for driver in drivers if driver.id != self.me]

    def _requeue(self, dead: Sequence[DriverRecord]) -> None:
        """Queue the trials of dead drivers again, with the same parameters."""
        for study_id in {driver.study_id for driver in dead}:
            ids = [driver.id for driver in dead if driver.study_id == study_id]
            requeued = self.repository.requeue(ids)
            self.repository.end_drivers(ids)
            if requeued:
                log.warning("%d trials of %d dead drivers wait again", requeued, len(ids))
                self.repository.add_event(study_id, "requeued", data={"trials": requeued})
