"""Answers that are kept wait for nothing; equal questions are computed once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qsearch.dashboard.inspection import Inspection


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """An inspection whose computing waits for ``go``, and counts what it computes."""
    inspection: Any = type("Counted", (Inspection,), {})()
    inspection.go = threading.Event()
    inspection.go.set()
    inspection.counted = Counter()
    inspection.left = threading.Event()

    def run(self: Any, job: Any, task: str, file: Path, options: Any) -> bytes:
        inspection.counted[task] += 1
        assert inspection.go.wait(240)
        return json.dumps(task).encode()

    def leave(self: Any, key: Any) -> None:
        left(self, key)
        inspection.left.set()

    left = Inspection._leave
    monkeypatch.setattr(Inspection, "_leave", leave)
    monkeypatch.setattr(Inspection, "_run", run)
    yield inspection
    inspection.go.set()


def test_a_kept_answer_is_given_while_others_are_computed(slow: Any, tmp_path: Path) -> None:
    file = tmp_path / "m.qmod"
    file.write_bytes(b"x")
    assert slow.ask("text", file) == b'"text"'
    slow.go.clear()
    others = [threading.Thread(target=slow.ask, args=(f"other{i}", file)) for i in range(4)]
    for other in others:
        other.start()
    assert slow.ask("text", file) == b'"text"'
    assert slow.known("text", file) == b'"text"'
    assert slow.known("other0", file) is None
    assert all(other.is_alive() for other in others)
    slow.go.set()
    for other in others:
        other.join()
    assert slow.counted["text"] == 1


def test_a_question_that_was_given_up_is_computed_for_the_next_who_asks(
    slow: Any, tmp_path: Path
) -> None:
    class Gone:
        async def is_disconnected(self) -> bool:
            return True

    async def leave_and_ask() -> bytes:
        slow.go.clear()
        left = asyncio.create_task(slow.answer(Gone(), "text", file))
        async with asyncio.timeout(240):
            while not slow.left.is_set():
                await asyncio.sleep(0.01)
            again = asyncio.create_task(asyncio.to_thread(slow.ask, "text", file))
            while slow.counted["text"] < 2:
                await asyncio.sleep(0.01)
        slow.go.set()
        await asyncio.wait({left})
        return await again

    file = tmp_path / "m.qmod"
    file.write_bytes(b"x")
    assert asyncio.run(leave_and_ask()) == b'"text"'
    assert slow.counted["text"] == 2


def test_equal_questions_are_computed_once(slow: Any, tmp_path: Path) -> None:
    file = tmp_path / "m.qmod"
    file.write_bytes(b"x")
    slow.go.clear()
    answers: list[bytes] = []
    asking = [
        threading.Thread(target=lambda: answers.append(slow.ask("proof", file))) for _ in range(5)
    ]
    for each in asking:
        each.start()
    slow.go.set()
    for each in asking:
        each.join()
    assert answers == [b'"proof"'] * 5
    assert slow.counted["proof"] == 1


@pytest.mark.slow
def test_a_reader_that_was_killed_between_questions_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "x.npy"
    np.save(file, np.zeros((2, 3), np.float32))
    inspection = Inspection()
    try:
        answer = inspection.ask("npy", file)
        (reader,) = inspection._idle
        reader.end()
        reader.process.wait()
        np.save(file, np.zeros((4, 3), np.float32))
        assert inspection.ask("npy", file) != answer
    finally:
        inspection.close()
