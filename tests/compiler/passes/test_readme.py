"""The pass that the README of the passes adds, and its table."""

from __future__ import annotations

import importlib
import pkgutil

import compiler.passes
from compiler import transform
from tests.each import each
from tests.package_readme import PackageReadme

USE = """
from compiler.opt import run_passes
text = "def @main(%x: Tensor[(2), float32]) { (power(%x, 3f), power(%x, 4f)) }"
print(run_passes(text, "PowerToMultiply").count("multiply"))
print(run_passes(text, "PowerToMultiply{largest=4}").count("multiply"))
"""

README = PackageReadme(compiler.passes)


def test_the_table_lists_every_pass_of_the_folder() -> None:
    for module in pkgutil.iter_modules(compiler.passes.__path__):
        importlib.import_module(f"compiler.passes.{module.name}")
    registered = transform.registered_passes().items()
    for name in each(n for n, cls in registered if cls.__module__.startswith("compiler.passes.")):
        assert f"`{name}`" in README.text, f"{name} is missing in compiler/passes/README.md"


def test_the_pass_of_the_readme_works_as_printed() -> None:
    program = README.block("python", '"""PowerToMultiply') + USE
    assert README.run(program).split() == ["2", "5"]
