"""When a search stops (trials, time, patience), what it cost, and who else may stop it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qsearch.store.records import Trial


class Stopwatch:
    """Wall and CPU seconds of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.monotonic(), time.process_time()

    @property
    def wall_s(self) -> float:
        """Seconds passed."""
        return time.monotonic() - self._wall

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all threads."""
        return time.process_time() - self._cpu


@dataclass(slots=True)
class Budget:
    """Trials in total over all runs, and seconds of this run.

    Args:
        trials: finished trials the study shall have.
        timeout_s: None is unlimited.
        clock: monotonic seconds.
        patience: trials in a row without a better one; None is any number.
    """

    trials: int
    timeout_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    patience: int | None = None
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the budget was made."""
        return self.clock() - self._start

    @property
    def out_of_time(self) -> bool:
        """Whether the timeout has passed."""
        return self.timeout_s is not None and self.elapsed_s >= self.timeout_s

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the timeout, at least 0; None is unlimited."""
        return None if self.timeout_s is None else max(0.0, self.timeout_s - self.elapsed_s)


Callback = Callable[[Trial], Any]
"""Called with every trial that ended, after it was stored; a true answer stops the search."""


@dataclass(frozen=True, slots=True)
class Control:
    """Callbacks of one run, the event that stops it in good order, and what it stands on.

    Attributes:
        callbacks: called in order, in the driver's thread.
        stop: set it from any thread.
        checks: each raises once something that the run stands on is gone or was changed.
    """

    callbacks: Sequence[Callback] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    checks: tuple[Callable[[], None], ...] = ()

    def check(self) -> None:
        """Look at the run folder, the database and the model.

        Raises:
            SearchError: the first one that is not as it was.
        """
        for check in self.checks:
            check()

    def on_trial(self, trial: Trial) -> None:
        """Tell every callback."""
        wishes = [callback(trial) for callback in self.callbacks]
        if any(wishes):
            self.stop.set()
