"""Text on standard output, where a reader such as ``head`` may leave before the end."""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Print ``text``, ended by one newline; what the reader of a pipe does not take is dropped."""
    try:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more when it ends, and would report the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
