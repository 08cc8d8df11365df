"""Cores of small devices: instructions that a call takes on each, and bytes of its code.

Both are sums over the kinds of work of the C (``work.py``) with weights per core, which
``tests/benchmarks/bench_instructions.py`` fits to counts under QEMU and to sizes of objects, and
writes to ``cores.toml``. Instructions, not cycles: QEMU has no pipeline.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from compiler.targets.c.work import Work


@dataclass(frozen=True, slots=True)
class Core:
    """A core, and what each kind of work takes on it.

    Attributes:
        name: as ``--for`` takes it.
        compiler: command and flags that the weights are for.
        instructions: by kind of work.
        code_bytes: by kind of work.
    """

    name: str
    compiler: str
    instructions: Mapping[str, float]
    code_bytes: Mapping[str, float]

    def instructions_of(self, work: Work) -> float:
        """Instructions of one call."""
        return sum(self.instructions.get(kind, 0.0) * n for kind, n in work.times.items())

    def code_bytes_of(self, work: Work) -> float:
        """Bytes of code, without what the compiler's own library adds."""
        return sum(self.code_bytes.get(kind, 0.0) * n for kind, n in work.places.items())


def _read() -> dict[str, Core]:
    text = files(__package__).joinpath("cores.toml").read_text(encoding="utf-8")
    table: dict[str, dict[str, Any]] = tomllib.loads(text)
    return {name: Core(name, **row) for name, row in table.items()}


CORES: Final[Mapping[str, Core]] = _read()
"""Cores by name."""
