"""The README of the passes runs, and its table names every pass."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from pathlib import Path

import compiler.passes
from compiler import transform

README = Path(compiler.passes.__path__[0]) / "README.md"


def test_the_examples_run() -> None:
    result = doctest.testfile(str(README), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


def test_the_table_lists_every_pass_of_the_folder() -> None:
    for module in pkgutil.iter_modules(compiler.passes.__path__):
        importlib.import_module(f"compiler.passes.{module.name}")
    text = README.read_text("utf-8")
    for name, cls in transform.registered_passes().items():
        if cls.__module__.startswith("compiler.passes."):
            assert f"`{name}`" in text, f"{name} is missing in compiler/passes/README.md"
