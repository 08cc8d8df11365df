"""What a program that started a search may do with it: hear of trials, and stop it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from qsearch.store.records import Trial

Callback = Callable[[Trial], Any]
"""Called with every trial that ended, after it was stored; a true answer stops the search."""


@dataclass(frozen=True, slots=True)
class Control:
    """Callbacks of one run, and the event that stops it in good order.

    Attributes:
        callbacks: called in order, in the driver's thread.
        stop: set it from any thread.
    """

    callbacks: Sequence[Callback] = ()
    stop: threading.Event = field(default_factory=threading.Event)

    def on_trial(self, trial: Trial) -> None:
        """Tell every callback."""
        wishes = [callback(trial) for callback in self.callbacks]
        if any(wishes):
            self.stop.set()
