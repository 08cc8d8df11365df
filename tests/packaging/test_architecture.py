"""The walk of a trial in ARCHITECTURE.md is the walk that a trial takes, room by room."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import qsearch
from qsearch.store.records import Ended, NewTrial, Trial
from workers.messages import Build, EvaluationRequest
from workers.pool.protocol import Finished
from workers.pool.queued_pool import Job

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / ".github" / "ARCHITECTURE.md"
MOST_ROOMS: Final = 12
NUMBER: Final = 5
"""The trial that is followed: of the second batch, so that there is history."""


class Trace:
    """Files of qsearch and workers with a function that is given the trial, in order.

    A trial is its row, its requests and its end. Only what happens between the proposal and the
    stored end counts.
    """

    def __init__(self) -> None:
        self.rooms: dict[str, str] = {}
        self._qconfig: dict[str, Any] | None = None
        self._open = False

    def __call__(self, frame: FrameType, event: str, value: Any) -> None:
        code = frame.f_code
        if event == "return" and code.co_name == "add_trials" and value:
            mine = [trial for trial in value if trial.number == NUMBER]
            if mine:
                self._qconfig, self._open = dict(mine[0].qconfig), True
                self._enter("qsearch/search/sampler.py", "StudySampler.propose")
                self._enter("qsearch/search/trial_queue.py", "TrialQueue.fill")
                self._enter("qsearch/store/trial_queries.py", "TrialQueries.add_trials")
        elif event == "return" and code.co_name == "finish_trials" and self._open:
            self._open = not any(trial.number == NUMBER for trial in value or ())
        elif event == "call" and self._open and code.co_flags & inspect.CO_OPTIMIZED:
            path = Path(code.co_filename)
            if not path.is_relative_to(ROOT) or path.parts[len(ROOT.parts)] not in (
                "qsearch",
                "workers",
            ):
                return
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            given = (frame.f_locals.get(name) for name in names if name != "self")
            if any(map(self._is_mine, given)):
                self._enter(path.relative_to(ROOT).as_posix(), code.co_qualname)

    def _enter(self, room: str, function: str) -> None:
        self.rooms.setdefault(room, function)

    def _is_mine(self, value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(self._is_mine(each) for each in value)
        if isinstance(value, Job):
            return self._is_mine(value.request)
        if isinstance(value, Finished):
            return isinstance(value.tag, tuple) and value.tag[0] == NUMBER
        if isinstance(value, Ended):
            return value.trial.number == NUMBER
        if isinstance(value, Trial | NewTrial):
            return value.number == NUMBER
        if isinstance(value, EvaluationRequest):
            return self._is_mine(value.build)
        if isinstance(value, Build):
            return dict(value.qconfig) == self._qconfig
        return False


def rooms_of_a_trial(folder: Path, calib: Path, labelled: Path) -> list[tuple[str, str]]:
    """Rooms in the order in which the trial enters them, each with the first function."""
    trace = Trace()
    before = sys.getprofile()

    def begin(trial: Trial) -> None:
        """Look on from the first trial's end, as what is before it takes most of the time."""
        if trial.number == 0:
            sys.setprofile(trace)

    options: dict[str, Any] = {"pool": "inline", "out": folder / "run", "seed": 0}
    options |= {"calib": calib, "eval": labelled}
    try:
        qsearch.launch("digits", trials=NUMBER + 1, callbacks=[begin], **options)
    finally:
        sys.setprofile(before)
    return list(trace.rooms.items())


def walk_of_the_page() -> Iterator[str]:
    """The rooms that the page names under "The way of a trial", in order."""
    text = (
        PAGE.read_text(encoding="utf-8").partition("## The way of a trial")[2].partition("\n## ")[0]
    )
    for line in text.splitlines():
        if found := re.match(r"\d+\. `([\w/]+\.py)`", line):
            yield found[1]


@pytest.mark.slow
def test_a_trial_walks_through_the_rooms_that_the_page_names(
    few_digits: Path, few_labelled: Path, tmp_path: Path
) -> None:
    rooms = [room for room, _ in rooms_of_a_trial(tmp_path, few_digits, few_labelled)]
    assert rooms == list(walk_of_the_page())
    assert len(rooms) <= MOST_ROOMS


def test_every_file_that_the_page_names_is_there() -> None:
    text = PAGE.read_text(encoding="utf-8")
    named = [*re.findall(r"`((?:compiler|workers|qsearch|tests)/[\w./]*)`", text)]
    named += [f".github/{link}" for link in re.findall(r"\]\((\.\./[^)]+)\)", text)]
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []
