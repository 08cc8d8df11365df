"""Packages whose public names are loaded when they are first used (PEP 562).

A package that publishes names of many modules would import all of them for one. Such a package
imports its public names under ``if TYPE_CHECKING`` only, where type checkers and editors find
them. At run time the same imports are read from its source, so each name is written once.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(
    package: str, elsewhere: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], list[str]]:
    """The ``__getattr__`` and the ``__all__`` of a package.

    Args:
        package: its ``__name__``.
        elsewhere: names of Relay that the package lacks → what to write instead.
    """
    cures = elsewhere or {}
    homes = _published(package)

    def load(name: str) -> Any:
        if name not in homes:
            if name in cures:  # no AttributeError: ``from package import name`` would drop the text
                raise ImportError(f"{package} has no {name!r}: {cures[name]}")
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        module = import_module(home)
        is_module = home == package or not hasattr(module, name)
        if is_module:
            value = import_module(f"{home}.{name}")
        else:
            value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load, sorted(homes)


def home_of(package: str, name: str) -> str:
    """Return the module that defines a public name of a package."""
    return _published(package)[name]


@cache
def _published(package: str) -> dict[str, str]:
    """Name → module that defines it; a module of the package itself → the package."""
    source = Path(sys.modules[package].__file__ or "").read_text(encoding="utf-8")
    blocks = [node for node in ast.parse(source).body if isinstance(node, ast.If)]
    imports = [
        node
        for block in blocks
        if isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    ]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
