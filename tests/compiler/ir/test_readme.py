"""The examples in the README of the IR run."""

from __future__ import annotations

import doctest
from pathlib import Path

import compiler.ir


def test_the_readme_runs() -> None:
    readme = Path(compiler.ir.__path__[0]) / "README.md"
    result = doctest.testfile(str(readme), module_relative=False)
    assert result.attempted > 40
    assert result.failed == 0
