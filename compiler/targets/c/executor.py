"""CExecutor: a whole module compiled to one library and called through ctypes.

The same C that ``qsearch export --format c`` writes, loaded instead of written. Control flow has no
C form; ``compiler.lower(mod).run`` walks such modules and runs their kernels in C.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pkgutil import resolve_name

import numpy as np

from compiler.errors import CodegenError, EvaluationError
from compiler.ir.expr import Function
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.lir.nodes import PrimFunc
from compiler.ops.number_format import Array
from compiler.runtime.executor import Inputs
from compiler.targets.c.entry import Entry
from compiler.targets.c.package import c_package
from compiler.targets.c.toolchain import EXACT_FLAGS, call_c, load_library
from compiler.targets.reference.inputs import checked_inputs

# Lowering is a layer above: named as text, imported when a module has not been lowered yet.
_LOWER = "compiler.pipeline:lower"
KERNELS = "qsearch_kernels"
"""Name of the table of a library that says where kernels, which are static, lie."""


class CExecutor:
    """Runs one function of a module in C; implements ``runtime.executor.Executor``.

    Every call has an arena of its own, so one executor may be used from several threads.

    Args:
        mod: any module with static shapes and without control flow.
        function: name of the global function.
        flags: of the compiler.
    Attributes:
        package: the generated C.
    Raises:
        LoweringError: an operator has no loops.
        CodegenError: there is no compiler, or something has no C form.
    """

    def __init__(
        self, mod: IRModule, function: str = "main", flags: Sequence[str] = EXACT_FLAGS
    ) -> None:
        if mod[function].checked_type_or_none is None:
            mod = infer_module(mod)
        self._mod = mod
        self._function = mod[function]
        self.package = c_package(lowered(mod), "module", function=function)
        symbols = (f"(void (*)(void)){symbol}" for symbol in self.package.functions.values())
        table = f"void (*const {KERNELS}[])(void) = {{{', '.join(symbols) or 0}}};"
        texts = dict(self.package.files)
        texts["module.c"] += f"\n{table}\n"
        self._library = load_library("module", texts, flags)
        self._entry = self.package.entries[function]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return tuple(p.name_hint for p in self._function.params)

    def callee(self, function: str) -> CExecutor:
        """A function that this one calls, in the same library.

        Raises:
            CodegenError: the library has no such function.
        """
        if function not in self.package.entries:
            raise CodegenError(f"the C of @{self._entry.function} has no function @{function}")
        found = copy.copy(self)
        found._function = self._mod[function]
        found._entry = self.package.entries[function]
        return found

    def run(self, inputs: Inputs) -> list[Array]:
        """The results, tuples flattened from left to right.

        Raises:
            EvaluationError: an input does not fit.
        """
        given = flat_inputs(self._function, self._entry, inputs)
        made = [np.empty(value.shape, value.dtype) for value in self._entry.results]
        arena = np.empty(self._entry.placement.arena_bytes // 8 + 2, np.int64)
        memory = [arena] if self._entry.placement.arena_bytes else []
        call_c(self._library, self._entry.symbol, [*memory, *given, *made])
        return made


def flat_inputs(function: Function, entry: Entry, inputs: Inputs) -> list[Array]:
    """The arrays that the C function of ``function`` takes, in order.

    Raises:
        EvaluationError: an input does not fit.
    """
    given = [
        np.ascontiguousarray(array)
        for value in checked_inputs(function, inputs)
        for array in (value if isinstance(value, tuple) else (value,))
    ]
    if len(given) != len(entry.params):
        raise EvaluationError("a nested tuple cannot be handed to C", fix="pass it flat")
    return given


def lowered(mod: IRModule) -> IRModule:
    """The module after LowerTE for C; itself when it is that already."""
    if any(isinstance(function, PrimFunc) for function in mod.functions.values()):
        return mod
    result: IRModule = resolve_name(_LOWER)(mod, target="c").mod
    return result
