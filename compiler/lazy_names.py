"""Packages whose public names are loaded when they are first used (PEP 562).

A package that publishes names of many modules would import all of them for one. It names them
here instead, and once more in imports under TYPE_CHECKING, for type checkers and editors.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, published: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], list[str]]:
    """The ``__getattr__`` and the ``__all__`` of a package.

    Args:
        package: its ``__name__``.
        published: module -> names that the package publishes; a module without names is itself
            published, under the last part of its name.
    """
    homes = {name: module for module, names in published.items() for name in names}
    modules = {
        module.rpartition(".")[2]: module for module, names in published.items() if not names
    }

    def load(name: str) -> Any:
        if name in homes:
            value = getattr(import_module(homes[name]), name)
        elif name in modules:
            value = import_module(modules[name])
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    return load, sorted((*homes, *modules))
