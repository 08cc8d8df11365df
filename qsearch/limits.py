"""Limits of a process that reads a file of any author, and of the CPU time of deciding about it.

A command runs in a child of its own process, which reports the node that it works on. When a limit
ends the child, the parent says so, names that node, and ends with exit code 2:

    memory     2 GB and 50 bytes for each byte of the file
    CPU time   20 s and 2 s for each MB, of ``verify``; ``allow_cpu`` adds what is announced
"""

from __future__ import annotations

import contextlib
import mmap
import os
import resource
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from qsearch.exit_codes import EXIT_BAD_INPUT

TIMED: Final = "verify"
LIMITED: Final = (TIMED, "run", "profile", "export", "show", "diff")
"""Commands that read a .qmod of any author; of an .onnx file only the first one is limited."""
UNLIMITED: Final = "--allow-large"
CPU_S: Final = 20
CPU_S_PER_MB: Final = 2
DATA_BYTES: Final = 2 << 30
DATA_BYTES_PER_BYTE: Final = 50
_NAME_BYTES: Final = 500
_MODULE: Final = "best.qmod"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a process; a CPU time of 0 is any."""

    data_bytes: int
    cpu_s: int = 0

    @classmethod
    def of_file(cls, size: int, timed: bool = True) -> Limits:
        """Limits for a file of so many bytes."""
        cpu_s = CPU_S + CPU_S_PER_MB * size // 1_000_000 if timed else 0
        return cls(DATA_BYTES + DATA_BYTES_PER_BYTE * size, cpu_s)

    def set(self) -> None:
        """Limit this process, and the processes that it starts."""
        _lower(resource.RLIMIT_DATA, self.data_bytes)
        if self.cpu_s:
            _lower(resource.RLIMIT_CPU, self.cpu_s)

    def __str__(self) -> str:
        told = f"{self.data_bytes >> 20} MiB of memory"
        if self.cpu_s:
            return f"{told}, {self.cpu_s} s of CPU time"
        return told


def _lower(kind: int, most: int) -> None:
    soft, hard = resource.getrlimit(kind)
    if soft == resource.RLIM_INFINITY or soft > most:
        resource.setrlimit(kind, (most, hard))


def allow_cpu(seconds: float | None) -> None:
    """Add CPU time to the limit of this process, if there is one; None lifts the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if soft == resource.RLIM_INFINITY:
        return
    more = hard if seconds is None else soft + int(seconds) + 1
    if hard != resource.RLIM_INFINITY:
        more = min(more, hard)
    resource.setrlimit(resource.RLIMIT_CPU, (more, hard))


class Watch:
    """The name of the node that a child process works on."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _NAME_BYTES)

    def report(self, name: str) -> None:
        """Store a name; the last one is kept when the process ends."""
        data = name.encode(errors="replace")[:_NAME_BYTES]
        self._shared[:] = data.ljust(_NAME_BYTES, b"\0")

    @property
    def name(self) -> str:
        """The name that was stored last."""
        return self._shared[:].rstrip(b"\0").decode(errors="replace")

    def ended(self, status: int, limits: Limits, cpu_s: float) -> str:
        """Explain how a signal ended the child; "" if it ended by itself.

        Args:
            cpu_s: CPU time that it took.
        """
        if status >= 0:
            return ""
        if -status == signal.SIGXCPU:
            what = f"nothing is decided after {cpu_s:.0f} s of CPU time, more than was announced"
        else:
            name = signal.Signals(-status).name
            what = f"{name} ended the process, whose limits are {limits}"
        if self.name:
            return f"{what}; it was at {self.name}"
        return what


def forked(words: Sequence[str]) -> int | None:
    """Run a command that reads a file of any author in a limited child.

    Returns:
        The exit code, in the parent. None in the child, and for other commands: they run here.
    """
    if not words or words[0] not in LIMITED or UNLIMITED in words:
        return None
    files = [path for word in words[1:] if (path := _file_of(word)) is not None]
    if not any(words[0] == TIMED or path.suffix != ".onnx" for path in files):
        return None
    size = sum(map(size_of, files))
    limits = Limits.of_file(size, words[0] == TIMED)
    watch = Watch()
    child = os.fork()
    if child == 0:
        from compiler.at_work import observe

        observe(watch)
        limits.set()
        return None
    with _handed_to(child):
        _, found, used = os.wait4(child, 0)
    status = os.waitstatus_to_exitcode(found)
    told = watch.ended(status, limits, used.ru_utime + used.ru_stime)
    if -status in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        return 128 - status
    if told:
        print(
            f"error: {told}\n  where: {' '.join(words)}\n  fix: {fix_for(words)}",
            file=sys.stderr,
        )
        return EXIT_BAD_INPUT
    return status


def fix_for(words: Sequence[str]) -> str:
    """Return the cure for a command that a limit ended, or that had not enough memory."""
    sizes = "check the sizes that the file declares"
    if words and words[0] == TIMED and UNLIMITED not in words:
        return f"{sizes}; {UNLIMITED} lifts the limits, if you trust where it comes from"
    return sizes


@contextlib.contextmanager
def _handed_to(child: int) -> Iterator[None]:
    """Hand SIGINT and SIGTERM to the child, which answers them."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda n, frame: os.kill(child, n)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before):
            signal.signal(number, handler)


def _file_of(word: str) -> Path | None:
    """The file that a word names, or the module of a run folder."""
    with contextlib.suppress(OSError, ValueError):
        path = Path(word)
        path = path / _MODULE if path.is_dir() else path
        if path.is_file():
            return path
        return None
    return None


def size_of(path: Path) -> int:
    """Bytes of a file; of a model also those of its external data, which begin with its name."""
    with contextlib.suppress(OSError):
        return sum(one.stat().st_size for one in path.parent.iterdir() if _belongs(one, path))
    return 0


def _belongs(one: Path, model: Path) -> bool:
    return one.name == model.name or (
        model.suffix == ".onnx" and one.is_file() and one.name.startswith(model.name)
    )
