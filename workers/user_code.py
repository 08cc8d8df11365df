"""User code: modules that a user names (``--import``), with the same bytes in every worker.

A module registers operators, calibration modes, metrics, passes or targets when it is imported. The
driver imports it from its file; workers import the bytes that the driver read, so a file that is
edited, or is not there on another machine, changes nothing. What a module imports from its own
package or from the files beside it travels with it; everything else has to be installed.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.abc
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from compiler.errors import CompilerError
from workers.errors import UserCodeChangedError, UserCodeError

_OURS: Final = ("compiler", "workers", "qsearch")


@dataclass(frozen=True, slots=True)
class Source:
    """One file: the dotted name of its module, where the driver found it, and its bytes."""

    name: str
    path: str
    package: bool
    data: bytes


@dataclass(frozen=True, slots=True)
class UserModule:
    """A module that was named, and the files that came with it.

    Attributes:
        name: dotted name, as ``import`` takes it.
        given: how the user named it.
        sources: its file, then those of its own package or folder that it imports.
    """

    name: str
    given: str
    sources: tuple[Source, ...]

    @property
    def sha256(self) -> str:
        """Over the names and bytes of the files; where they lie changes nothing."""
        digest = hashlib.sha256()
        for source in sorted(self.sources, key=lambda source: source.name):
            digest.update(f"{source.name}\0{len(source.data)}\0".encode() + source.data)
        return digest.hexdigest()

    def check_unchanged(self) -> None:
        """Refuse a file that was edited since it was imported.

        Raises:
            UserCodeChangedError: it was changed or deleted.
        """
        for source in self.sources:
            path = Path(source.path)
            if (path.read_bytes() if path.is_file() else b"") != source.data:
                raise UserCodeChangedError(
                    f"the imported file {path.name} was changed after it was imported",
                    where=source.path,
                    fix="put the earlier file back and run the same command again: finished trials "
                    "are kept. For other code give another folder with -o, or --fresh; in a "
                    "running Python, start a new one",
                )


UserCode = tuple[UserModule, ...]

_IMPORTED: Final[dict[str, UserModule]] = {}
"""Modules that this process imported, by dotted name."""


def import_user_code(words: Sequence[str]) -> UserCode:
    """Import modules, in order; one that was imported before is not run again.

    Args:
        words: dotted names, found as ``import`` finds them, or paths of .py files.
    Raises:
        UserCodeError: there is no such module, or it fails; with file and line.
        UserCodeChangedError: a file was edited since this process imported it.
    """
    found = []
    for word in words:
        path = Path(word)
        if path.suffix == ".py" or os.sep in word:
            name = _importable(path)
            folder = path.resolve().parent
        elif all(map(str.isidentifier, word.split("."))):
            name = word
            folder = None
        else:
            raise _no_module(word)
        _import(name, word)
        module = _IMPORTED.get(name)
        if module is None:
            module = UserModule(name, word, _sources(name, folder))
        module.check_unchanged()
        found.append(_IMPORTED.setdefault(name, module))
    return tuple(dict.fromkeys(found))


def imported_code() -> UserCode:
    """All that this process imported for any search; workers need what it registered."""
    return tuple(_IMPORTED.values())


def hashes(code: UserCode) -> dict[str, str]:
    """Name of every module → its SHA-256."""
    return {module.name: module.sha256 for module in code}


def code_behind(path: str) -> UserModule:
    """The files of ``module:name``, which was imported; none of ours and of installed packages."""
    name = path.partition(":")[0]
    top = name.partition(".")[0]
    if top in _OURS or top not in sys.modules:
        folder = None
    else:
        folder = _folder_of(sys.modules[top])
    sources = () if folder is None or _is_installed(folder) else _sources(name, folder)
    return UserModule(name, path, sources)


def _importable(path: Path) -> str:
    """The name under which a file can be imported now, and the files beside it too."""
    name = path.stem
    home = path.resolve()
    if not home.is_file() or path.suffix != ".py":
        raise UserCodeError(
            f"there is no Python file {path}",
            where=str(home),
            fix="give the path of a .py file, or the dotted name of an installed module",
        )
    if not name.isidentifier():
        raise UserCodeError(
            f"{path.name} cannot be imported: {name!r} is no Python name",
            where=str(home),
            fix=f"rename it, for example to {''.join(c if c.isalnum() else '_' for c in name)}.py",
        )
    loaded = sys.modules.get(name)
    if loaded is not None:
        spec = loaded.__spec__
    else:
        spec = importlib.util.find_spec(name)
    origin = getattr(loaded, "__file__", None) or (spec.origin if spec is not None else None)
    if origin is not None and Path(origin).resolve() != home:
        raise UserCodeError(
            f"{path.name} cannot be imported: there is another module {name!r}",
            where=origin,
            fix="rename your file",
        )
    if str(home.parent) not in sys.path:
        sys.path.append(str(home.parent))
    return name


def _import(name: str, given: str) -> None:
    """Import a module.

    Raises:
        UserCodeError: what it raised, in one sentence, and the line of the user's file.
    """
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _failure(error, name, given) from error


def _failure(error: BaseException, name: str, given: str) -> UserCodeError:
    top = name.partition(".")[0]
    if isinstance(error, ModuleNotFoundError) and error.name in (name, top):
        return _no_module(given)
    if isinstance(error, SyntaxError):
        what = f"SyntaxError: {error.msg}"
        place = f"{error.filename}, line {error.lineno}"
    else:
        told = isinstance(error, CompilerError)
        if told:
            what = str(error).partition("\n")[0]
        else:
            what = _in_a_line(error)
        trace = traceback.extract_tb(error.__traceback__)
        frames = [f for f in trace if _is_users(f.filename)] or list(trace)
        place = _line_of(frames[-1])
    return UserCodeError(
        f"{given} cannot be imported: {what}",
        where=place,
        fix=getattr(error, "fix", None) or "correct the file and run the same command again",
    )


def failure_in_user_code(error: Exception) -> UserCodeError | None:
    """Return the error to report for a bug in an imported file; None for others, and for errors of
    our own."""
    if isinstance(error, CompilerError):
        return None
    files = {source.path for module in _IMPORTED.values() for source in module.sources}
    trace = traceback.extract_tb(error.__traceback__)
    frames = [f for f in trace if str(Path(f.filename).resolve()) in files]
    if not frames:
        return None
    name = Path(frames[-1].filename).name
    return UserCodeError(
        f"{name} failed: {_in_a_line(error)}",
        where=f"{_line_of(frames[-1])} (in {frames[-1].name})",
        fix="correct the file and run the same command again; with -vv it shows the calls",
    )


def _in_a_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}".removesuffix(": ")


def _line_of(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename}, line {frame.lineno}: {frame.line}"


def _no_module(given: str) -> UserCodeError:
    return UserCodeError(
        f"there is no module {given!r}",
        where=f"--import {given}",
        fix="give the path of a .py file, or the dotted name of a module that is installed or "
        "lies in the working directory",
    )


def _is_users(filename: str) -> bool:
    """Return whether a frame is of a file that the user wrote."""
    path = Path(filename)
    home = Path(__file__).parents[1]
    ours = any(path.is_relative_to(home / package) for package in _OURS)
    return not (ours or filename.startswith("<") or any(map(_is_installed, path.parents)))


# Files that belong to a module ------------------------------------------------------------------


def _sources(name: str, folder: Path | None) -> tuple[Source, ...]:
    """The files of a module and of what it imports from its own package or folder."""
    top = name.partition(".")[0]
    if folder is None:
        folder = _folder_of(sys.modules[top])
    found: dict[str, Source] = {}
    waiting = [name]
    while waiting:
        each = waiting.pop(0)
        module = sys.modules.get(each)
        is_there = module is not None and (hasattr(module, "__path__") or _folder_of(module))
        if module is None or not is_there or each in found or not _belongs(each, top, folder):
            continue
        source = _source(each, module)
        found[each] = source
        waiting += [each.rpartition(".")[0], *_imports_of(source)]
    return tuple(found.values())


def _belongs(name: str, top: str, folder: Path | None) -> bool:
    """Return whether a module is of the user's package, or lies beside the user's file."""
    first = name.partition(".")[0]
    if first == top:
        return True
    module = sys.modules.get(first)
    if first in _OURS or module is None or folder is None or _is_installed(folder):
        return False
    return _folder_of(module) == folder


def _is_installed(folder: Path) -> bool:
    """Return whether a folder holds installed packages: these are not sent to workers."""
    return folder.name in ("site-packages", "dist-packages") or str(folder) in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
    )


def _folder_of(module: ModuleType) -> Path | None:
    """Return the folder that holds the file or the folder of a top-level module."""
    places = list(getattr(module, "__path__", ()))
    if places:
        file = places[0]
    else:
        file = getattr(module, "__file__", None)
    if file is None:
        return None
    return Path(file).resolve().parent


def _source(name: str, module: ModuleType) -> Source:
    file = getattr(module, "__file__", None)
    places = list(getattr(module, "__path__", ()))
    # A package without __init__.py counts as one with an empty file.
    path = Path(file or Path(places[0], "__init__.py")).resolve()
    return Source(name, str(path), bool(places), path.read_bytes() if path.is_file() else b"")


def _imports_of(source: Source) -> list[str]:
    """Dotted names of the modules that a file may import."""
    if not source.path.endswith(".py"):
        return []
    if source.package:
        package = source.name
    else:
        package = source.name.rpartition(".")[0]
    names = []
    for node in ast.walk(ast.parse(source.data)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = importlib.util.resolve_name("." * node.level + base, package)
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return names


# In a worker ------------------------------------------------------------------------------------


class _Loader(importlib.abc.SourceLoader):
    """Runs the bytes of a source; no bytecode is looked for or written."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def get_filename(self, fullname: str) -> str:
        """The path in the driver, for messages."""
        return self._source.path

    def get_data(self, path: str | bytes) -> bytes:
        """The bytes that the driver read."""
        return self._source.data


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of sources before those of files."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The module of this name, if the driver sent it."""
        source = self._sources.get(fullname)
        if source is None:
            return None
        return importlib.util.spec_from_file_location(fullname, source.path, loader=_Loader(source))


def install(code: UserCode) -> None:
    """Import in this process what the driver imported, from the bytes that it read.

    Raises:
        UserCodeError: a module fails here.
    """
    sources = {source.name: source for module in code for source in module.sources}
    readable = {n: s for n, s in sources.items() if s.path.endswith(".py")}
    sys.meta_path.insert(0, _Finder(readable))
    for module in code:
        _import(module.name, module.given)
