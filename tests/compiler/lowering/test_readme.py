from __future__ import annotations

import compiler.lowering
from tests.package_readme import PackageReadme


def test_every_file_is_named() -> None:
    assert PackageReadme(compiler.lowering).unnamed_files() == []
