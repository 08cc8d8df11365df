"""The README of lowering runs and names every file."""

from __future__ import annotations

import compiler.lowering
from tests.package_readme import PackageReadme

README = PackageReadme(compiler.lowering)


def test_the_examples_run() -> None:
    assert README.run_examples() > 20


def test_every_file_is_named() -> None:
    assert README.unnamed_files() == []
