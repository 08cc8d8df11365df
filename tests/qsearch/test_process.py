"""Ctrl-C and SIGTERM wait for what must not be cut off; a command they end says so in a line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from qsearch.process import interrupts_kept

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
