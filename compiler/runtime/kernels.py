"""Kernels: how the lowered and the external functions of a module are run, by target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pkgutil import resolve_name

from compiler.errors import LoweringError, check_known
from compiler.ir.expr import Array
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.runtime.external_module import ExternalModule

# Named as text: the runtime has no knowledge of targets, and may not import them (import layers).
KERNEL_RUNNERS = {"c": "compiler.targets.c.kernel_library:KernelLibrary"}
"""Kind of target → the class that takes a sequence of PrimFuncs and has ``run(name, args)``: the
outputs of one of them for one array per parameter, or EvaluationError where these do not fit."""
_REFERENCE = "reference"
"""The kind of target whose PrimFuncs the executor of the graph evaluates by itself, with numpy."""


Kernel = Callable[[Sequence[Array]], list[Array]]
"""The outputs of one callee for one array per parameter."""


def module_kernels(mod: IRModule, kind: str | None = None) -> dict[str, Kernel]:
    """All callees of a module's ``call_lowered``: PrimFuncs by their targets, external functions.

    Args:
        mod: after LowerTE.
        kind: runs every PrimFunc on this kind of target instead of its own.
    Raises:
        LoweringError: a target that nothing here can run.
        CodegenError: the code generator of a target failed.
    """
    by_kind: dict[str, list[LoweredFunction]] = {}
    for fn in mod.functions.values():
        if isinstance(fn, LoweredFunction):
            own = str(fn.attrs.get("target", _REFERENCE)).split(" ", 1)[0]
            by_kind.setdefault(kind or own, []).append(fn)
    by_kind.pop(_REFERENCE, None)
    found: dict[str, Kernel] = {}
    for name, functions in by_kind.items():
        what = f"kernels for target {name!r} cannot be run here"
        check_known(name, (_REFERENCE, *KERNEL_RUNNERS), what, LoweringError)
        runner = resolve_name(KERNEL_RUNNERS[name])(functions)
        found |= {f.name: partial(runner.run, f.name) for f in functions}
    externals: Sequence[ExternalModule] = mod.attrs.get("external_mods", ())
    for external in externals:
        found |= {symbol: partial(external.run, symbol) for symbol in external.symbols}
    return found
