"""Observers of passes: how long each takes, and the text of the module between them."""

from __future__ import annotations

import sys
import time
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from compiler.ir.module import IRModule
from compiler.ir.pass_context import PassInfo
from compiler.ir.printer import text


@dataclass(slots=True)
class TimingInstrument:
    """Seconds spent in each pass, by name; a pass that runs another one includes it."""

    seconds: dict[str, float] = field(default_factory=dict)
    _started: list[float] = field(default_factory=list)

    def before(self, mod: IRModule, info: PassInfo) -> None:
        """Start the clock of one pass."""
        self._started.append(time.perf_counter())

    def after(self, mod: IRModule, info: PassInfo) -> None:
        """Stop it and add to the sum."""
        spent = time.perf_counter() - self._started.pop()
        self.seconds[info.name] = self.seconds.get(info.name, 0.0) + spent


@dataclass(frozen=True, slots=True)
class PrintIR:
    """Print the module before or after the named passes; every pass when ``names`` is None."""

    when: str = "after"
    names: Container[str] | None = None
    file: TextIO | None = None

    def before(self, mod: IRModule, info: PassInfo) -> None:
        """Print if asked for before."""
        if self.when == "before":
            self._print(mod, info)

    def after(self, mod: IRModule, info: PassInfo) -> None:
        """Print if asked for after."""
        if self.when == "after":
            self._print(mod, info)

    def _print(self, mod: IRModule, info: PassInfo) -> None:
        if self.names is None or info.name in self.names:
            out = self.file or sys.stderr
            print(f"// {self.when} {info.name}\n{text(mod, show_meta=False)}", file=out)


@dataclass(slots=True)
class DumpDir:
    """Write the module after every pass to ``path/NNN_<pass>.relay``."""

    path: Path
    _count: int = 0

    def before(self, mod: IRModule, info: PassInfo) -> None:
        """Nothing is written before a pass."""

    def after(self, mod: IRModule, info: PassInfo) -> None:
        """Write one file."""
        folder = Path(self.path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self._count:03}_{info.name}.relay").write_text(text(mod), encoding="utf-8")
        self._count += 1
