"""Progress on stderr: bars on a terminal, plain lines elsewhere, nothing with ``-q``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TextIO

TRIALS: Final = "trials"
CHECKS: Final = 4
"""Trials that take about as long as the checks of the best module: 1 to 7 on networks of 0.1 to 20
MB."""
_WIDE: Final = 120
"""Letters of a line from which there is room for bars."""


class Progress:
    """Messages of the service while it works, here none; phases follow one another."""

    _reached = 0

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """A phase of ``total`` steps begins, ``done`` of them before; the last phase is over."""

    def advance(self, steps: int = 1, note: str = "") -> None:
        """``steps`` more are done; ``note`` says what is worth knowing (best so far)."""

    def reached(self, done: int, total: int) -> None:
        """So many samples of a pass over the data are done; 0 begins one."""
        if done == 0:
            self.phase("calibration", total)
            self._reached = 0
        self.advance(done - self._reached)
        self._reached = done

    def message(self, text: str) -> None:
        """One line that stays."""

    def expect(self, seconds: float, what: str) -> None:
        """Say about how long something takes from now on."""
        if seconds < 100:
            told = f"{seconds:.0f} s"
        else:
            told = f"{seconds / 60:.0f} min"
        self.message(f"estimate: {told} for {what}")

    def close(self) -> None:
        """The last phase is over."""


@dataclass(slots=True)
class _Phase:
    """Steps in all, done, and done before we looked; monotonic seconds of start and last line."""

    name: str
    total: int = 0
    done: int = 0
    before: int = 0
    start: float = 0.0
    last: float = 0.0
    visits: int = 0

    @property
    def here(self) -> int:
        """Steps that were seen to be done."""
        return self.done - self.before


@dataclass(slots=True)
class _Phases:
    """The phases so far, by name, and the one that is on."""

    known: dict[str, _Phase] = field(default_factory=dict)
    on: _Phase = field(default_factory=lambda: _Phase(""))

    def enter(self, name: str, total: int, done: int, now: float) -> _Phase:
        """The phase of this name: new, going on where it was left, or started over."""
        phase = self.on = self.known.setdefault(name, _Phase(name))
        if phase.visits == 0 or done < phase.done:
            phase.before = done
            phase.start = now
            phase.last = now
        phase.total = total
        phase.done = done
        phase.visits += 1
        return phase


class PlainProgress(Progress):
    """Lines for logs and pipes: a phase's first and last step, and one every few seconds.

    Of a phase that comes back only what takes long is shown.

    Args:
        stream: where the lines go.
        every_s: least seconds between two lines of one phase.
        quiet_s: seconds before the first line.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        stream: TextIO | None = None,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        quiet_s: float = 0.0,
    ) -> None:
        self._stream = stream
        self._every_s = every_s
        self._silent_until = clock() + quiet_s if quiet_s else 0.0
        self._clock = clock
        self._phases = _Phases()

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Print that the phase begins, the first time."""
        phase = self._phases.enter(name, total, done, self._clock())
        if phase.visits == 1:
            self.message(f"{name}: {done}/{total}")

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Print a line if the phase is over or the last line is old enough."""
        phase = self._phases.on
        now = self._clock()
        phase.done += steps
        over = phase.done >= phase.total and (phase.visits == 1 or phase.name == TRIALS)
        if not over and now - phase.last < self._every_s:
            return
        phase.last = now
        elapsed = now - phase.start
        parts = [f"{phase.name}: {phase.done}/{phase.total}", f"{elapsed:.0f} s"]
        if phase.here and phase.done < phase.total:
            left = phase.total - phase.done + CHECKS * (phase.name == TRIALS)
            told = f"ETA {elapsed / phase.here * left:.0f} s"
            parts.append(told + " with the checks" * (phase.name == TRIALS))
        if phase.name == TRIALS and elapsed > 0:
            parts.append(f"{60 * phase.here / elapsed:.1f} trials/min")
        if note:
            parts.append(note)
        self.message(", ".join(parts))

    def expect(self, seconds: float, what: str) -> None:
        """Print it; the silence ends if it would end before."""
        if self._clock() + seconds >= self._silent_until:
            self._silent_until = 0.0
        super().expect(seconds, what)

    def message(self, text: str) -> None:
        """Print the line."""
        if self._clock() >= self._silent_until:
            print(text, file=self._stream or sys.stderr, flush=True)


class BarProgress(Progress):
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
        from rich.table import Column

        console = Console(stderr=True)
        told = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        self._bars = RichBars(
            TextColumn("{task.description}{task.fields[note]}", table_column=told),
            *([BarColumn(bar_width=24)] if console.width >= _WIDE else []),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            # rich shortens the column before an empty one.
            TextColumn("{task.fields[rate]}", table_column=Column(min_width=1)),
            console=console,
            expand=True,
        )
        self._bars.start()
        self._phases = _Phases()

    def phase(self, name: str, total: int, done: int = 0) -> None:
        """Add a bar, or go on with the one of this name."""
        from rich.progress import TaskID

        phase = self._phases.enter(name, total, done, time.monotonic())
        if phase.visits == 1:
            self._bars.add_task(name, total=total, completed=done, rate="", note="")
        elif done == 0:
            self._bars.reset(TaskID(self._task), total=total)
        else:
            self._bars.update(TaskID(self._task), total=total, completed=done)

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move the bar of the phase that is on."""
        from rich.progress import TaskID

        phase = self._phases.on
        if not phase.visits:
            return
        phase.done += steps
        elapsed = time.monotonic() - phase.start
        if phase.name == TRIALS and elapsed:
            rate = f"{60 * phase.here / elapsed:.1f}/min"
        else:
            rate = ""
        note = f", {note}" if note else ""
        self._bars.update(TaskID(self._task), advance=steps, rate=rate, note=note)

    @property
    def _task(self) -> int:
        """Bars are numbered in the order in which phases first came."""
        return list(self._phases.known).index(self._phases.on.name)

    def message(self, text: str) -> None:
        """Print above the bars."""
        self._bars.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bars as they stand."""
        self._bars.stop()


LONG_S: Final = 10.0
"""A command that takes longer than this, in seconds, says how far it is."""


def make_progress(verbosity: int) -> Progress:
    """Bars on a terminal, lines elsewhere, silence below verbosity 0."""
    if verbosity < 0:
        return Progress()
    if sys.stderr.isatty():
        return BarProgress()
    return PlainProgress()
