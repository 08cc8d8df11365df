"""Lets a search of another process stand still after a number of trials; see held/sitecustomize."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Hold:
    """Where searches say that they wait, and where they are told to go on."""

    folder: Path

    def environment(self, trials: int) -> dict[str, str]:
        """What a process is started with whose searches wait after each so many trials."""
        self.folder.mkdir(exist_ok=True)
        path = [str(Path(__file__).with_name("held")), os.environ.get("PYTHONPATH")]
        return {
            "PYTHONPATH": os.pathsep.join(folder for folder in path if folder),
            "QSEARCH_TEST_HELD": f"{self.folder}:{trials}",
        }

    def held(self, pid: int) -> bool:
        """Whether a driver waits."""
        return (self.folder / f"held-{pid}").exists()

    def step(self, pid: int) -> None:
        """A driver that waits may go on, until it waits again."""
        (self.folder / f"held-{pid}").unlink()

    def go(self, pid: int) -> None:
        """A driver may go on, or need not wait at all."""
        (self.folder / f"go-{pid}").touch()
