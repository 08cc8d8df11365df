"""The examples in the README of the IR run."""

from __future__ import annotations

import compiler.ir
from tests.package_readme import PackageReadme


def test_the_examples_run() -> None:
    assert PackageReadme(compiler.ir).run_examples() > 40
