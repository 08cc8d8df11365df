"""User code by import path, ``package.module:name``, so that every worker finds the same."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from pkgutil import resolve_name
from types import ModuleType
from typing import Any

from compiler.errors import raised_as
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import InferType, Pass, PassContext, run_named
from qsearch.errors import RunFolderError, SettingsError
from qsearch.settings.launch_settings import is_import_path
from workers.user_code import UserCode, hashes


def load_object(path: str, what: str) -> Any:
    """The object behind ``module:name``.

    Raises:
        SettingsError: there is no such module or name; ``what`` says what was looked for.
    """
    with raised_as(
        SettingsError,
        f"the {what} {path} cannot be imported",
        ImportError,
        AttributeError,
        ValueError,
        where=what,
        fix="package.module:name, importable where the command runs and on every worker",
    ):
        return resolve_name(path)


def path_of(given: Any, what: str, *, in_this_process: bool) -> str:
    """The import path of a function or class; one that is a path already stays as it is.

    Args:
        in_this_process: workers are this process, so what the main script defines is found too.
    Raises:
        SettingsError: workers could not import it.
    """
    if isinstance(given, str):
        return given
    module = getattr(given, "__module__", None)
    name = getattr(given, "__qualname__", None)
    path = f"{module}:{name}"
    main = module == "__main__" and not in_this_process
    found = None
    if module and name and is_import_path(path) and not main:
        found = load_object(path, what)
    if found is given:
        return path
    if in_this_process and callable(given):
        return _local_path(given)
    raise SettingsError(
        f"workers cannot import the {what} {given!r}",
        where=what,
        fix="define it at the top of a module of its own, with a name"
        + ("" if in_this_process else ", or search with pool='inline'"),
    )


_LOCAL = "qsearch_local"
"""Module that holds functions without an import path, for workers that are this process."""


def _local_path(given: Any) -> str:
    """A path for a function of a function or a lambda; another body gets another path."""
    name = re.sub(r"\W+", "_", getattr(given, "__qualname__", type(given).__name__)).strip("_")
    code = getattr(given, "__code__", None)
    if code:
        facts = repr((code.co_code, code.co_consts, code.co_names))
    else:
        facts = repr(type(given))
    facts = re.sub(r" at 0x[0-9a-f]+", "", facts)
    name = f"{name}_{hashlib.sha256(facts.encode()).hexdigest()[:8]}"
    held = sys.modules.setdefault(_LOCAL, ModuleType(_LOCAL))
    setattr(held, name, given)
    return f"{_LOCAL}:{name}"


# Imported modules -------------------------------------------------------------------------------


def check_imports(study: str, spec: Mapping[str, Any], code: UserCode) -> None:
    """Refuse to go on with a study that ran with other code of the user.

    Args:
        study: its name.
        spec: of the study.
        code: what this process imported.
    Raises:
        RunFolderError: what the study had is missing, more was given, or a file is another.
    """
    before = spec.get("imports", {})
    now = hashes(code)
    if missing := [f"--import {name}" for name in before if name not in now]:
        what = f"was begun with {' '.join(missing)}"
        fix = "give it again, if you trust it"
    elif added := [f"--import {name}" for name in now if name not in before]:
        what = f"was begun without {' '.join(added)}"
        fix = "leave it out"
    elif edited := [name for name in now if now[name] != before[name]]:
        what = f"was begun with other code in {', '.join(edited)}"
        fix = "put the earlier code back"
    else:
        return
    given = [f"{m.given} (sha256 {m.sha256[:12]})" for m in code]
    had = [f"{name} (sha256 {sha256[:12]})" for name, sha256 in before.items()]
    raise RunFolderError(
        f"the study {study!r} {what}",
        where=f"study: {', '.join(had) or 'none'}; now: {', '.join(given) or 'none'}",
        fix=f"{fix}, choose another folder with -o, or use --fresh",
    )


# Passes on the float model ----------------------------------------------------------------------


def run_user_passes(module: IRModule, passes: Sequence[str]) -> IRModule:
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
