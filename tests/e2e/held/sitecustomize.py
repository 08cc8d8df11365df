"""Searches that stand still after trials, so that a kill never comes too late.

Python imports this file at its start where PYTHONPATH names its folder. QSEARCH_TEST_HELD says
"FOLDER:N": the driver waits whenever it has stored N more trials, leaves FOLDER/held-PID, and goes
on when that is removed or there is FOLDER/go-PID.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

MODULE = "qsearch.search.context"


class Holder:
    """Finds the module, and has its Control wait."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.folder = folder
        self.trials = self.left = trials

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec of the one module, which is loaded as ever and then changed."""
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        load = loader.exec_module

        def load_and_change(module: ModuleType) -> None:
            load(module)
            self.change(module.Control)

        loader.exec_module = load_and_change
        return spec

    def change(self, control: Any) -> None:
        """Wait when the last of so many trials has been told."""
        told = control.on_trial

        def on_trial(asked: Any, trial: Any) -> None:
            told(asked, trial)
            self.left -= 1
            if self.left == 0:
                self.left = self.trials
                self.wait()

        control.on_trial = on_trial

    def wait(self) -> None:
        """Stand still."""
        held, go = (self.folder / f"{word}-{os.getpid()}" for word in ("held", "go"))
        held.touch()
        while held.exists() and not go.exists():
            time.sleep(0.01)


if "QSEARCH_TEST_HELD" in os.environ:
    _folder, _, _trials = os.environ["QSEARCH_TEST_HELD"].rpartition(":")
    sys.meta_path.insert(0, Holder(Path(_folder), int(_trials)))
