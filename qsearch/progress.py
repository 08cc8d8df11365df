"""Progress on stderr: bars on a terminal, plain lines elsewhere, nothing with ``-q``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Protocol, TextIO


class Progress(Protocol):
    """What the service says while it works; phases follow one another."""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """A phase of ``total`` steps begins, ``done`` of them before; the last phase is over."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """``steps`` more are done; ``note`` says what is worth knowing (best so far)."""

    def message(self, text: str) -> None:
        """One line that stays."""

    def close(self) -> None:
        """The last phase is over."""


class SilentProgress:
    """Says nothing but messages that matter (there are none with ``-q``)."""

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Nothing."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Nothing."""

    def message(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class PlainProgress:
    """Lines for logs and pipes: a phase's first and last step, and one every few seconds.

    Args:
        stream: where the lines go.
        every_s: least seconds between two lines of one phase.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._every_s = every_s
        self._clock = clock
        self._name = ""
        self._total = self._done = self._before = 0
        self._start = self._last = 0.0

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Print that the phase begins."""
        self._name, self._total, self._done, self._before = name, total, done, done
        self._start = self._last = self._clock()
        self.message(f"{name}: {done}/{total}")

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Print a line if the phase is over or the last line is old enough."""
        self._done += steps
        now = self._clock()
        if self._done < self._total and now - self._last < self._every_s:
            return
        self._last = now
        elapsed = now - self._start
        parts = [f"{self._name}: {self._done}/{self._total}", f"{elapsed:.0f} s"]
        here = self._done - self._before
        if here and self._done < self._total:
            parts.append(f"ETA {elapsed / here * (self._total - self._done):.0f} s")
        if self._name == TRIALS and elapsed > 0:
            parts.append(f"{60 * here / elapsed:.1f} trials/min")
        if note:
            parts.append(note)
        self.message(", ".join(parts))

    def message(self, text: str) -> None:
        """Print the line."""
        print(text, file=self._stream or sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing is open."""


TRIALS = "trials"


class BarProgress:
    """One bar per phase with count, elapsed, ETA, and for trials the rate and the best so far."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as RichBars

        self._bars = RichBars(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
        )
        self._bars.start()
        self._task: int | None = None
        self._name = ""
        self._start = 0.0
        self._done = 0

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Add a bar."""
        self._name, self._start, self._done = name, time.monotonic(), 0
        self._task = int(self._bars.add_task(name, total=total, completed=done, rate="", note=""))

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move the newest bar."""
        from rich.progress import TaskID

        if self._task is None:
            return
        self._done += steps
        elapsed = time.monotonic() - self._start
        rate = f"{60 * self._done / elapsed:.1f}/min" if self._name == TRIALS and elapsed else ""
        self._bars.update(TaskID(self._task), advance=steps, rate=rate, note=note)

    def message(self, text: str) -> None:
        """Print above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bars as they stand."""
        self._bars.stop()


def make_progress(verbosity: int) -> Progress:
    """Bars on a terminal, lines elsewhere, silence below verbosity 0."""
    if verbosity < 0:
        return SilentProgress()
    return BarProgress() if sys.stderr.isatty() else PlainProgress()
