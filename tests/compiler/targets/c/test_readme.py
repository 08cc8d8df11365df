"""The commands in the README of the C target run in a shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import compiler.targets.c
from tests.needs import NEEDS_C
from tests.package_readme import PackageReadme

README = PackageReadme(compiler.targets.c)
pytestmark = NEEDS_C


@pytest.mark.slow
def test_the_commands_run_and_the_self_check_succeeds(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", README.block("sh")],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    # What the C compiler says; qsearch names its choices and the next command there.
    own = ("chosen: ", "close to float: ", "next: ")
    warnings = [line for line in done.stderr.splitlines() if not line.startswith(own)]
    assert (done.returncode, warnings) == (0, [])
    assert "arena_lower_bound_bytes" in done.stdout
