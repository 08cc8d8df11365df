"""The examples in the README and in docstrings of the IR run."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

import compiler.ir
import compiler.ir.dataflow_pattern
import compiler.ir.functor.visitor
import compiler.transform


def test_the_readme_runs() -> None:
    readme = Path(compiler.ir.__path__[0]) / "README.md"
    result = doctest.testfile(str(readme), module_relative=False)
    assert result.attempted > 40
    assert result.failed == 0


@pytest.mark.parametrize(
    "module",
    [compiler.ir.dataflow_pattern, compiler.ir.functor.visitor, compiler.transform],
    ids=lambda m: m.__name__,
)
def test_docstrings_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
