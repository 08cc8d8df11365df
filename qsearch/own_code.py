"""User code by import path, ``package.module:name``, so that every worker finds the same."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from compiler.ir.infer_type import InferType
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import Pass, PassContext, run_named
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


# Passes on the float model ----------------------------------------------------------------------


def run_own_passes(module: IRModule, passes: Sequence[str]) -> IRModule:
    """Run passes in order and infer types anew; workers get what comes out.

    Args:
        passes: a registered pass as text (``FoldConstant``), or ``package.module:Name``: a pass, or
            a class or function without parameters that makes one.
    Raises:
        SettingsError: one of them is no pass.
        CompilerError: what the passes raise.
    """
    made = [_pass_of(word) for word in passes]
    with PassContext(opt_level=3):
        return run_named(module, [*made, InferType()], "own passes")


def _pass_of(word: str) -> Pass:
    if not is_import_path(word):
        from compiler.transform import create_pass  # registers every pass

        return create_pass(word)
    found = load_object(word, "pass")
    made = found if isinstance(found, Pass) else found()
    if not isinstance(made, Pass):
        raise SettingsError(
            f"{word} is a {type(made).__name__}, no pass",
            where="passes",
            fix="give a pass, or a class of passes; see compiler/passes/README.md",
        )
    return made
