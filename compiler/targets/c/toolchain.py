"""Compile C sources once per machine into a shared library that ctypes can load, or a program.

The compiler is the system's; where there is none, that of the PyPI package ziglang. Libraries lie
in a private cache folder under the hash of everything that shapes them: sources, flags, compiler
version and, because of ``-march=native``, the processor's features. They are written beside their
place and renamed, and a process waits while another one builds the same.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import functools
import hashlib
import importlib.util
import logging
import os
import platform
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from compiler.errors import CodegenError

_log = logging.getLogger("compiler.targets.c")

CACHE_VARIABLE = "QSEARCH_CACHE_DIR"
"""Environment variable that moves the cache folder."""

EXACT_FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math")
"""Fast code with the float results that the source defines (no fused multiply-add)."""

CURE = "install a C compiler: apt-get install gcc, or pip install 'qsearch[cc]'"

_BUILD_TIMEOUT_S = 300.0
_OVER_LIMIT = ("out of memory", "memory exhausted", "Killed", "CPU time limit", "Cputime limit")
"""Parts of messages of a compiler that exceeds a limit of the process."""

Command = tuple[str, ...]
"""A compiler: the words before its flags."""


@functools.cache
def find_compiler() -> Command | None:
    """A C compiler: ``$CC``, else cc, gcc or clang on the PATH, else ziglang; None without one."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if found := shutil.which(name):
            return (found,)
    return zig_compiler()


def required_compiler() -> Command:
    """``find_compiler``, where there must be one.

    Raises:
        CodegenError: there is none.
    """
    compiler = find_compiler()
    if compiler is None:
        raise CodegenError(
            "no C compiler found",
            where="$CC, cc, gcc, clang on the PATH, ziglang beside this Python",
            fix=CURE,
        )
    return compiler


def zig_compiler() -> Command | None:
    """The compiler of the PyPI package ziglang, which is also a cross compiler; None without it."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    return (sys.executable, "-m", "ziglang", "cc")


@functools.cache
def cache_dir() -> Path:
    """Folder for built libraries, private to this user; a temporary one where none can be made."""
    named = os.environ.get(CACHE_VARIABLE)
    root = os.environ.get("XDG_CACHE_HOME")
    if named:
        folder = Path(named)
    else:
        folder = Path(root or Path.home() / ".cache", "qsearch")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
        others_write = info.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        # A library that others could replace would run their code.
        if info.st_uid == os.getuid() and not others_write and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError) as error:
        _log.debug("no cache in %s: %s", folder, error)
    private = Path(tempfile.mkdtemp(prefix="qsearch-kernels-"))
    atexit.register(shutil.rmtree, private, ignore_errors=True)
    return private


def build_library(name: str, sources: Sequence[Path], flags: Sequence[str] = EXACT_FLAGS) -> Path:
    """Path of the shared library built from ``sources``; built now unless the cache has it.

    Args:
        name: start of the file name.
        sources: C files, and headers that they include.
        flags: compiler flags beside ``-shared -fPIC``.
    Raises:
        CodegenError: no compiler, or it refuses the sources; the message holds its first lines.
    """
    target = library_path(name, sources, flags)
    if not target.exists():
        with _alone(target):
            if not target.exists():
                link(required_compiler(), sources, [*flags, "-shared", "-fPIC"], target)
    return target


def library_path(name: str, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Return the path at which ``build_library`` has the library of these arguments.

    Raises:
        CodegenError: no compiler.
    """
    facts = "\0".join((*flags, *build_facts(required_compiler())))
    shaping = b"".join((*(source.read_bytes() for source in sources), facts.encode()))
    return cache_dir() / f"{name}-{hashlib.sha256(shaping).hexdigest()[:24]}.so"


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Wait while another process builds it: workers that start together need the same ones."""
    path = target.with_suffix(".lock")
    with path.open("w") as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def load_library(name: str, texts: Mapping[str, str], flags: Sequence[str]) -> ctypes.CDLL:
    """``build_library`` of C99 files with these texts, by their names, ready to call."""
    with tempfile.TemporaryDirectory(prefix="qsearch-c-") as folder:
        sources = [Path(folder) / file for file in texts]
        for source, text in zip(sources, texts.values()):
            source.write_text(text, encoding="utf-8", newline="\n")
        return ctypes.CDLL(str(build_library(name, sources, ("-std=c99", *flags))))


def call_c(library: ctypes.CDLL, symbol: str, arrays: Sequence[NDArray[Any]]) -> None:
    """Call a function that takes the addresses of arrays, and returns nothing."""
    call = getattr(library, symbol)
    call.restype = None
    call(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))


def build_facts(compiler: Command) -> tuple[str, ...]:
    """Return the facts that code and its speed depend on beside source and flags: compiler, system,
    processor."""
    return (_version(compiler), platform.machine(), platform.system(), cpu_features())


def link(compiler: Command, sources: Sequence[Path], flags: Sequence[str], target: Path) -> None:
    """Compile and link; ``target`` appears whole or not at all.

    Args:
        compiler: its command, such as ``find_compiler()``.
        sources: C files, and headers that they include.
        flags: all of them, ``-shared`` included if a library is wanted.
        target: the file to write.
    Raises:
        CodegenError: the compiler refuses the sources or takes too long.
        MemoryError: it exceeds a limit of the process.
    """
    handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.stem}-", suffix=".so")
    os.close(handle)
    files = [str(source) for source in sources if source.suffix != ".h"]
    command = [*compiler, *flags, "-o", scratch, *files, "-lm"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            if any(words in done.stderr for words in _OVER_LIMIT):
                raise MemoryError(f"{' '.join(compiler)} ended: {_first_errors(done.stderr)[0]}")
            raise CodegenError(
                f"{' '.join(compiler)} cannot compile {sources[0].name}",
                where="\n".join(_first_errors(done.stderr)),
                fix="set CC to another compiler, or do without: numpy gives the same results",
            )
        Path(scratch).replace(target)
    except subprocess.TimeoutExpired as error:
        raise CodegenError(
            f"{compiler} did not finish within {_BUILD_TIMEOUT_S:.0f} s", where=str(sources[0])
        ) from error
    except OSError as error:
        raise CodegenError(f"cannot build {target.name}: {error}", where=str(sources[0])) from error
    finally:
        Path(scratch).unlink(missing_ok=True)


def _first_errors(messages: str) -> list[str]:
    """The first five lines from the first error on."""
    lines = messages.splitlines()
    first = next((n for n, line in enumerate(lines) if "error" in line), 0)
    return lines[first : first + 5]


@functools.cache
def _version(compiler: Command) -> str:
    done = subprocess.run(
        [*compiler, "--version"], capture_output=True, text=True, timeout=30, check=False
    )
    return done.stdout.partition("\n")[0]


@functools.cache
def cpu_features() -> str:
    """Return the processor's features for ``-march=native``; a home folder may be shared by unequal
    machines."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    wanted = ("flags", "features", "model name", "cpu family", "model\t")
    first_core = text.split("\n\n", 1)[0].splitlines()
    return "\n".join(line for line in first_core if line.lower().startswith(wanted))
