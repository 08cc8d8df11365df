"""User code by import path, ``package.module:name``, so that every worker finds the same."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from qsearch.errors import SettingsError
from qsearch.settings import is_import_path


def load_object(path: str, what: str) -> Any:
    """The object behind ``module:name``.

    Raises:
        SettingsError: there is no such module or name; ``what`` says what was looked for.
    """
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise SettingsError(
            f"the {what} {path} cannot be imported: {error}",
            where=what,
            fix="package.module:name, importable where the command runs and on every worker",
        ) from error
    return found


def path_of(given: Any, what: str, *, in_this_process: bool) -> str:
    """The import path of a function or class; one that is a path already stays as it is.

    Args:
        in_this_process: workers are this process, so what the main script defines is found too.
    Raises:
        SettingsError: workers could not import it.
    """
    if isinstance(given, str):
        return given
    module, name = getattr(given, "__module__", None), getattr(given, "__qualname__", None)
    path = f"{module}:{name}"
    main = module == "__main__" and not in_this_process
    if module and name and is_import_path(path) and not main and load_object(path, what) is given:
        return path
    raise SettingsError(
        f"workers cannot import the {what} {given!r}",
        where=what,
        fix="define it at the top of a module of its own, with a name"
        + ("" if in_this_process else ", or search with pool='inline'"),
    )
