"""The README of the passes runs, and its table names every pass."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import compiler.passes
from compiler import transform

USE = """
from compiler.opt import run_passes
text = "def @main(%x: Tensor[(2), float32]) { (power(%x, 3f), power(%x, 4f)) }"
print(run_passes(text, "PowerToMultiply").count("multiply"))
print(run_passes(text, "PowerToMultiply{largest=4}").count("multiply"))
"""

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


def test_the_pass_of_the_readme_works_as_printed() -> None:
    block = re.search(r"   ```python\n(.*?)   ```", README.read_text("utf-8"), re.DOTALL)
    assert block is not None
    code = textwrap.dedent(block.group(1)) + USE
    # A process of its own: the pass must not leak into other tests.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "5"]
