"""Every module that the packages import belongs to a declared dependency."""

from __future__ import annotations

import ast
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.each import each

ROOT = Path(__file__).resolve().parents[2]
OWNERS = cache(packages_distributions)
OWN = ("compiler", "workers", "qsearch")
# The build of a wheel imports setuptools: who runs it has it.
NEVER_AT_RUN_TIME = {"setuptools": "compiler/targets/engine/wheel.py"}


def imports_of(package: str) -> dict[str, str]:
    """Top-level module name → one file that imports it."""
    found: dict[str, str] = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in names:
                found[name.split(".")[0]] = path.relative_to(ROOT).as_posix()
    return found


def _of_users(extras: dict[str, list[str]]) -> list[str]:
    """What extras bring that users ask for; those of developers are none."""
    return [name for extra in extras if extra not in ("test", "dev") for name in extras[extra]]


@pytest.mark.slow
@pytest.mark.parametrize("package", OWN)
def test_every_import_is_declared(package: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {
        name.split(">")[0].split("[")[0].strip().lower().replace("_", "-")
        for name in (*project["dependencies"], *_of_users(project["optional-dependencies"]))
    }
    for module, where in each(imports_of(package).items()):
        if module in sys.stdlib_module_names or module in OWN:
            continue
        if where.startswith(NEVER_AT_RUN_TIME.get(module, "/")):
            continue
        distributions = {d.lower().replace("_", "-") for d in OWNERS().get(module, ())}
        assert distributions & declared, f"{where} imports {module}, which nothing declared brings"
