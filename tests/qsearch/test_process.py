"""Ctrl-C and SIGTERM wait for what must not be cut off; a command they end says so in a line."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from qsearch.process import interruptible, interrupts_kept

CUT_OFF = """
import sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == "qsearch.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from qsearch.__main__ import main
main()
"""


@pytest.fixture(autouse=True)
def _termination_is_an_interrupt() -> Iterator[None]:
    """As ``qsearch launch`` has it; by default nobody handles SIGTERM."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


def interrupted_import(numbers: list[signal.Signals], done: list[str]) -> None:
    with interrupts_kept():
        for number in numbers:
            os.kill(os.getpid(), number)
        done.append("imports")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_takes_effect_when_the_imports_are_done(number: signal.Signals) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_import([number], done)
    assert done == ["imports"]
    assert {n: signal.getsignal(n) for n in before} == before


def test_a_second_interrupt_takes_effect_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_import([signal.SIGINT, signal.SIGINT], done)
    assert done == []


def interrupted_error() -> None:
    with interrupts_kept():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("of the block")


def test_an_error_in_the_block_does_not_swallow_it() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted_error()


def test_handlers_of_ones_own_are_called_afterwards() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: heard.append(number))
    try:
        with interrupts_kept():
            os.kill(os.getpid(), signal.SIGINT)
            assert heard == []
        assert heard == [signal.SIGINT]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_import_that_a_signal_meets_is_finished_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    source = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nWHOLE = True\n"
    (tmp_path / "cut_off_by_a_signal.py").write_text(source)
    reached = []

    def interrupted() -> None:
        with interruptible():
            module = importlib.import_module("cut_off_by_a_signal")
            reached.append(module.WHOLE)
            signal.sigtimedwait([], 60.0)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == [True]


def test_a_program_that_is_itself_imported_can_be_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "searches_when_imported.py").write_text(
        "import os, signal\nfrom qsearch.process import interruptible\n"
        "with interruptible():\n    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    with pytest.raises(KeyboardInterrupt):
        importlib.import_module("searches_when_imported")


def test_an_interrupt_leaves_no_lock_of_logging_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """``setLevel`` empties the cache of every logger under a lock that an exception would keep."""
    reached = []

    def interrupted() -> None:
        with interruptible():
            logging.getLogger("cut.off").setLevel(logging.ERROR)
            reached.append("behind the lock")
            signal.sigtimedwait([], 60.0)

    cache = SimpleNamespace(clear=partial(os.kill, os.getpid(), signal.SIGTERM))
    with monkeypatch.context() as patch:
        patch.setattr(logging.getLogger("cut.off"), "_cache", cache)
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    assert reached == ["behind the lock"]
    other = threading.Thread(target=logging.getLogger, args=["not.seen.before"], daemon=True)
    other.start()
    other.join(60.0)
    assert not other.is_alive()


class Collected:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):  # Python looks for signals between instructions
            pass


def test_an_interrupt_in_a_destructor_is_neither_lost_nor_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reached = []

    def interrupted() -> None:
        with interruptible():
            Collected()
            reached.append("behind the destructor")
            signal.sigtimedwait([], 60.0)
            reached.append("the end")

    before = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert reached == ["behind the destructor"]
    assert sys.unraisablehook is before
    assert "Traceback" not in capsys.readouterr().err


def test_other_threads_are_left_alone() -> None:
    done: list[str] = []
    thread = threading.Thread(target=interrupted_import, args=([], done))
    thread.start()
    thread.join()
    assert done == ["imports"]


def test_without_an_interrupt_the_block_just_runs() -> None:
    with interrupts_kept():
        done = True
    assert done


def test_a_command_line_that_is_cut_off_in_its_first_import_says_so() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CUT_OFF, "status"], capture_output=True, text=True, timeout=600
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
