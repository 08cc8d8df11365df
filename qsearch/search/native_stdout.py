"""Native code that prints although it was told to be silent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def native_stdout_dropped() -> Iterator[None]:
    """What compiled code prints to standard output inside the block goes nowhere.

    HiGHS 1.12, which SciPy 1.17 carries, prints a line left from debugging (ERGO-Code/HiGHS #2783).
    On a pipe C keeps it until the process ends, where it would follow the last line of ``--json``.
    """
    if sys.stdout is None:  # closed by whoever started us
        yield
        return
    libc = ctypes.CDLL(None)
    sys.stdout.flush()
    libc.fflush(None)
    kept = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        libc.fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
