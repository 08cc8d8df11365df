"""Observers of passes: how long each takes, what it does to the size, and the text in between."""

from __future__ import annotations

import sys
import time
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Function
from compiler.ir.module import IRModule
from compiler.ir.pass_context import PassInfo
from compiler.ir.text.printer import text


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


class NodeCount(NamedTuple):
    """Size of a module: every node once, and how many of them are calls."""

    nodes: int
    calls: int


def count_nodes(mod: IRModule) -> NodeCount:
    """Nodes and calls of all functions of a module."""
    nodes = [n for fn in mod.functions.values() if isinstance(fn, Function) for n in post_order(fn)]
    return NodeCount(len(nodes), sum(isinstance(n, Call) for n in nodes))


@dataclass(slots=True)
class NodeCountInstrument:
    """Size of the module before and after each pass, in the order in which they ended."""

    rows: list[tuple[str, NodeCount, NodeCount]] = field(default_factory=list)
    _open: list[NodeCount] = field(default_factory=list)

    def before(self, mod: IRModule, info: PassInfo) -> None:
        """Count what goes in."""
        self._open.append(count_nodes(mod))

    def after(self, mod: IRModule, info: PassInfo) -> None:
        """Count what comes out."""
        self.rows.append((info.name, self._open.pop(), count_nodes(mod)))


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
    """Write the module before the first pass and after every pass that changed it.

    Files are ``path/NNN_<pass>.relay``, numbered in the order in which the passes ended, and
    ``path/000_input.relay``; comparing two neighbours shows what a pass did. A module that no pass
    returned, because something else changed it in between, is ``path/NNN_before_<pass>.relay``.

    Args:
        path: a folder, made when the first pass begins.
        show_meta: with the constants, so that the files can be parsed again.
    """

    path: Path
    show_meta: bool = True
    _count: int = 0
    _last: IRModule | None = None

    def before(self, mod: IRModule, info: PassInfo) -> None:
        """Write the module where it is none that a pass returned."""
        if mod is not self._last:
            self._write(mod, "input" if self._last is None else f"before_{info.name}")

    def after(self, mod: IRModule, info: PassInfo) -> None:
        """Write one file."""
        if mod is not self._last:
            self._write(mod, info.name)

    def _write(self, mod: IRModule, name: str) -> None:
        folder = Path(self.path)
        folder.mkdir(parents=True, exist_ok=True)
        printed = text(mod, show_meta=self.show_meta)
        (folder / f"{self._count:03}_{name}.relay").write_text(printed, encoding="utf-8")
        self._count += 1
        self._last = mod
