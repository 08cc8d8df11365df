"""What runs on this machine, as the kernel tells it."""

from __future__ import annotations

import contextlib
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, the oldest child first."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for parent in found:  # which grows
        found += sorted(child for child, its in parents.items() if its == parent)
    return found[1:]


def command_of(pid: int) -> str:
    """The command line of a process, or nothing."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
