from __future__ import annotations

import compiler.fusion
from tests.package_readme import PackageReadme


def test_every_file_is_named() -> None:
    assert PackageReadme(compiler.fusion).unnamed_files() == []
