"""ExternalModule: functions that an external code generator compiled, ready to run and to save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from compiler.ir.expr import Array
from compiler.named_table import NamedTable


class ExternalModule(Protocol):
    """Result of a code generator; modules hold it in ``external_mods``."""

    @property
    def kind(self) -> str:
        """Name of the code generator: the ``Compiler`` attribute of its functions."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """The ``global_symbol`` of every function it implements."""

    def run(self, symbol: str, args: Sequence[Array]) -> list[Array]:
        """The outputs of one function, tuples flattened, for one array per parameter.

        Raises:
            EvaluationError: the arrays do not fit.
        """

    def members(self) -> dict[str, bytes]:
        """Files from which ``external_loaders`` makes the module again; names without folders."""


Loader = Callable[[Mapping[str, bytes]], ExternalModule]

external_loaders: NamedTable[Loader] = NamedTable("kind of external module")
"""Code generator → the function that makes its module again from ``members()``."""
