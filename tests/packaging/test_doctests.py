"""The examples in docstrings of the three packages run and print what they say."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("compiler", "workers", "qsearch")


def modules_with_examples() -> list[str]:
    files = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    with_examples = [path for path in files if ">>> " in path.read_text(encoding="utf-8")]
    return [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in with_examples
    ]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_print_what_they_say(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctest.testmod(import_module(name))
    assert found.attempted > 0
    assert found.failed == 0


def test_the_python_api_has_examples() -> None:
    assert {"qsearch.search.launch", "qsearch.data.object_data", "compiler.transform"} <= set(
        modules_with_examples()
    )
