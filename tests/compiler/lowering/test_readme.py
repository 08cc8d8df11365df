"""The README of lowering runs, in a process of its own: it registers a compiler."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import compiler.lowering

README = Path(compiler.lowering.__path__[0]) / "README.md"
RUN = """
import doctest, sys
result = doctest.testfile(sys.argv[1], module_relative=False)
assert result.attempted > 20, result
sys.exit(result.failed)
"""


def test_the_examples_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(README)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_is_named() -> None:
    text = README.read_text("utf-8")
    for path in README.parent.glob("*.py"):
        assert path.name == "__init__.py" or f"`{path.name}`" in text, path.name
