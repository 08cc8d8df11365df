"""READMEs of compiler/ are true: examples run, links lead somewhere, every package is named."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

import compiler
from tests.needs import NEEDS_C
from tests.package_readme import PackageReadme

COMPILER = PackageReadme(compiler)
READMES = sorted(COMPILER.folder.rglob("README.md"))


def package_of(readme: Path) -> str:
    return ".".join(readme.parent.relative_to(COMPILER.folder.parent).parts)


LISTED_BY_TEXT = {
    "compiler": "packages are its rows",
    "compiler.insight": "five files, named in sentences",
    "compiler.passes": "its table lists passes",
    "compiler.quantize": "its table lists steps",
}
"""READMEs that do not name every file, and why."""


def with_examples() -> list[object]:
    """Packages whose README holds ``>>>`` examples."""
    names = [package_of(path) for path in READMES if ">>> " in path.read_text("utf-8")]
    compiled = ("compiler.targets.c", "compiler.targets.engine")
    return [pytest.param(n, marks=NEEDS_C) if n in compiled else n for n in names]


@pytest.mark.parametrize("package", with_examples())
def test_the_examples_print_what_they_say(package: str) -> None:
    assert PackageReadme(importlib.import_module(package)).run_examples() > 0


@pytest.mark.parametrize("package", sorted({*map(package_of, READMES)} - {*LISTED_BY_TEXT}))
def test_every_file_is_named(package: str) -> None:
    assert PackageReadme(importlib.import_module(package)).unnamed_files() == []


def test_every_package_is_named_in_the_readme() -> None:
    packages = {path.parent.name for path in COMPILER.folder.glob("*/__init__.py")}
    assert {name for name in packages if f"`{name}/`" not in COMPILER.text} == set()


@pytest.mark.parametrize("readme", READMES, ids=package_of)
def test_links_and_files_that_are_named_exist(readme: Path) -> None:
    text = readme.read_text("utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    assert [link for link in links if not (readme.parent / link).exists()] == []
    # First cells of tables; .c and .h also stand for what is generated.
    rows = [row.split("|")[1] for row in text.splitlines() if row.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([a-z_0-9/]+\.(?:py|toml))`", row)]
    assert [name for name in names if not (readme.parent / name).exists()] == []
