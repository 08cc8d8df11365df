"""Classify the end of a worker: by a fault of its request, or as machines and their owners end
processes."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
from pathlib import Path
from typing import Final

from workers.process import log_tail

FROM_OUTSIDE: Final = frozenset(
    getattr(signal, name)
    for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGPWR")
    if hasattr(signal, name)
)
"""Signals that others send: a preempted machine, a user. No request is blamed for them."""

_CRASH: Final = b"Fatal Python error"
_GROUPS: Final = Path("/sys/fs/cgroup")


def is_own_fault(code: int, kills_before: int, kills_now: int) -> bool:
    """Tell whether a process that ended with ``code`` did so by itself, or for a lack of memory.

    Args:
        code: as of ``subprocess``: -n is signal n.
        kills_before, kills_now: ``oom_kills`` when the request began, and after the end.
    """
    return -code not in FROM_OUTSIDE or (-code == signal.SIGKILL and kills_now > kills_before)


def oom_kills(group: Path = Path("/proc/self/cgroup"), groups: Path = _GROUPS) -> int:
    """Count how many processes of our memory group the kernel killed for a lack of memory.

    Where the group does not tell (a root group, another system), those of the whole machine.
    """
    if group.is_file():
        lines = group.read_text().splitlines()
    else:
        lines = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers not in ("", "memory"):
            continue
        version1 = controllers == "memory"
        name = "memory.oom_control" if version1 else "memory.events"
        base = groups / "memory" if version1 else groups
        # In a container the path may be the host's, and the group is where the mount begins.
        for file in (base / path.lstrip("/") / name, base / name):
            if (count := _counter(file)) is not None:
                return count
    return _counter(Path("/proc/vmstat")) or 0


def _counter(file: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def note_crash(log: str) -> None:
    """Have a crash of this process written beside its log, as long as it lives."""
    faulthandler.enable(os.open(f"{log}.crash", os.O_CREAT | os.O_WRONLY), all_threads=False)


def inquest(log: str, kills_before: int) -> tuple[bool, str | None]:
    """On the machine of a dead process: whether it ended by its own fault; the end of its log."""
    crash = Path(f"{log}.crash")
    crashed = False
    with contextlib.suppress(OSError):
        crashed = crash.read_bytes().startswith(_CRASH)
        os.unlink(crash)
    return crashed or oom_kills() > kills_before, log_tail(log)
