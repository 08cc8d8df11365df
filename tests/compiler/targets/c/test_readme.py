"""The README of the C target: its commands run in a shell, its examples as doctests."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import compiler.targets.c
from compiler.targets.c.toolchain import find_compiler

README = Path(compiler.targets.c.__path__[0]) / "README.md"
pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")


def test_the_commands_run_and_the_self_check_succeeds(tmp_path: Path) -> None:
    block = re.search(r"```sh\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    assert block is not None
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", block.group(1)],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "arena_lower_bound_bytes" in done.stdout


def test_the_examples_run() -> None:
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted > 8
    assert result.failed == 0


def test_the_table_lists_every_file_of_the_folder() -> None:
    text = README.read_text("utf-8")
    for path in README.parent.glob("*.py"):
        assert path.name == "__init__.py" or f"`{path.name}`" in text, path.name
