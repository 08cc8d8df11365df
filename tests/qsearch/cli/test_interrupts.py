"""Ctrl-C and SIGTERM while a command starts: one line, exit code 130, no traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from qsearch.cli.launch import interrupts_kept

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


def test_a_second_one_takes_effect_at_once() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_import([signal.SIGINT, signal.SIGINT], done)
    assert done == []


def test_without_one_nothing_happens() -> None:
    with interrupts_kept():
        done = True
    assert done


def test_a_command_line_that_is_cut_off_in_its_first_import_says_so() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CUT_OFF, "status"], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "interrupted\n")
