"""Kernels: how the lowered and the external functions of a module are run, by target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Any, Protocol

from numpy.typing import NDArray

from compiler.errors import LoweringError, legal_names
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.runtime.external_module import ExternalModule

Array = NDArray[Any]


class KernelRunner(Protocol):
    """Lowered functions, ready to run."""

    def run(self, name: str, args: Sequence[Array]) -> list[Array]:
        """The outputs of one function for one array per parameter.

        Raises:
            EvaluationError: the arrays do not fit.
        """
        ...


# Named as text: the runtime has no knowledge of targets, and may not import them (import layers).
KERNEL_RUNNERS = {"c": "compiler.targets.c.kernel_library:KernelLibrary"}
"""Kind of target → the class that makes a KernelRunner of a sequence of PrimFuncs."""
_REFERENCE = "reference"
"""The kind of target whose PrimFuncs the executor of the graph evaluates by itself, with numpy."""


class ModuleKernels:
    """All callees of a module's ``call_lowered``: PrimFuncs by their targets, external functions.

    Args:
        mod: after LowerTE.
        kind: runs every PrimFunc on this kind of target instead of its own.
    Raises:
        LoweringError: a target that nothing here can run.
        CodegenError: the code generator of a target failed.
    """

    def __init__(self, mod: IRModule, kind: str | None = None) -> None:
        by_kind: dict[str, list[LoweredFunction]] = {}
        for fn in mod.functions.values():
            if isinstance(fn, LoweredFunction):
                own = str(fn.attrs.get("target", _REFERENCE)).split(" ", 1)[0]
                by_kind.setdefault(kind or own, []).append(fn)
        self._runs: dict[str, Callable[[str, Sequence[Array]], list[Array]]] = {}
        by_kind.pop(_REFERENCE, None)
        for name, functions in by_kind.items():
            runner = _runner(name, functions)
            self._runs.update({f.name: runner.run for f in functions})
        externals: Sequence[ExternalModule] = mod.attrs.get("external_mods", ())
        for external in externals:
            self._runs.update(dict.fromkeys(external.symbols, external.run))

    def __contains__(self, name: str) -> bool:
        return name in self._runs

    def run(self, name: str, args: Sequence[Array]) -> list[Array]:
        """See KernelRunner."""
        return self._runs[name](name, args)


def _runner(kind: str, functions: Sequence[LoweredFunction]) -> KernelRunner:
    if kind not in KERNEL_RUNNERS:
        raise LoweringError(
            f"kernels for target {kind!r} cannot be run here",
            fix=legal_names(kind, (_REFERENCE, *KERNEL_RUNNERS)),
        )
    factory: Callable[[Sequence[LoweredFunction]], KernelRunner]
    factory = resolve_name(KERNEL_RUNNERS[kind])
    return factory(functions)
