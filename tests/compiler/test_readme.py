"""READMEs of compiler/ are true: examples run, links lead somewhere, every package is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import compiler
from tests.package_readme import PackageReadme

README = PackageReadme(compiler)
COMPILER = README.folder
READMES = sorted(COMPILER.rglob("README.md"))


def test_the_examples_print_what_they_say() -> None:
    assert README.run_examples() > 0


def test_every_package_is_named_in_the_readme() -> None:
    packages = {path.parent.name for path in COMPILER.glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}/`" not in README.text} == set()


@pytest.mark.parametrize("readme", READMES, ids=lambda path: str(path.relative_to(COMPILER)))
def test_links_and_files_that_are_named_exist(readme: Path) -> None:
    text = readme.read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (readme.parent / link).exists()] == []
    # First cells of tables; .c and .h also stand for what is generated.
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([a-z_0-9/]+\.(?:py|toml))`", row)]
    assert [name for name in names if not (readme.parent / name).exists()] == []
