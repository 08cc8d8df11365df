"""Tutorials are run as they stand: files are written, commands and programs run, output compared.

Of a Markdown file, in order: a block whose first line is ``# file: NAME`` or, in C,
``/* file: NAME */`` becomes that file; ``sh`` blocks are run by bash and ``python`` blocks by a
fresh interpreter, all in one folder; a ``text`` block behind one of them holds lines that it must
have printed ("…" stands for anything).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.needs import skip

HERE = Path(__file__).parent
NEEDS = {"microcontroller": ("arm-none-eabi-gcc", "qemu-system-arm")}
_FILE = re.compile(r"(?:#|/\*) file: (\S+)")
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, its text, the line it begins at."""

    language: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    text = path.read_text(encoding="utf-8")
    return [
        Block(match[1], match[2], text.count("\n", 0, match.start()) + 1)
        for match in _BLOCK.finditer(text)
    ]


def run(block: Block, folder: Path, name: str) -> str:
    """What a block printed."""
    program = (
        ["bash", "-euo", "pipefail", "-c"] if block.language == "sh" else [sys.executable, "-c"]
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    code = os.pathsep.join([str(folder), str(HERE.parents[1])])
    done = subprocess.run(
        [*program, block.text],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path, "PYTHONPATH": code, "OMP_NUM_THREADS": "1"},
        timeout=600,
        check=False,
    )
    where = f"{name}:{block.line}"
    assert done.returncode == 0, f"{where}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr, f"{where}\n{done.stderr}"
    return done.stdout


def tutorials() -> list[Any]:
    return [pytest.param(path, id=path.stem) for path in sorted(HERE.glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("path", tutorials())
def test_a_tutorial_does_what_it_says(path: Path, tmp_path: Path) -> None:
    lacking = [need for need in NEEDS.get(path.stem, ()) if shutil.which(need) is None]
    if lacking:
        skip(*lacking)
    printed = None
    for block in blocks(path):
        named = _FILE.match(block.text)
        if named is not None:
            (tmp_path / named[1]).write_text(block.text, encoding="utf-8")
        elif block.language == "text":
            assert printed is not None, f"{path.name}:{block.line}: nothing was run"
            for line in block.text.splitlines():
                pattern = ".*".join(map(re.escape, line.split("…")))
                assert re.search(pattern, printed), f"{path.name}:{block.line}: {line}\n{printed}"
        else:
            assert block.language in ("sh", "python"), f"{path.name}:{block.line}"
            printed = run(block, tmp_path, path.name)
    assert printed is not None, "the page runs nothing"
