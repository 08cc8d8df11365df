"""What native code prints does not reach those who read our standard output."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes
from qsearch.process import native_stdout_dropped

libc = ctypes.CDLL(None)
print("before")
libc.puts(b"seen")
with native_stdout_dropped():
    libc.puts(b"noise")
print("after")
"""


def test_notes_of_ray_are_dropped_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("before\nseen\nafter\n", "")


def test_a_closed_standard_output_is_no_error() -> None:
    program = PROGRAM.replace('libc.puts(b"seen")', "")
    command = ["sh", "-c", 'exec "$0" -c "$1" >&-', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
