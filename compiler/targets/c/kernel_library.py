"""PrimFuncs as callable functions: one library for all of them, called through ctypes.

    functions = KernelLibrary([f, g])
    out, = functions.run("f", [a, b])

The C ABI: ``void symbol(const T *p0, …, T *o0, …, T *t0, …)`` over row-major arrays; the caller
owns all memory, so calls from several threads do not meet.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.errors import EvaluationError
from compiler.lir.nodes import Extern, PrimFunc
from compiler.lir.reference import checked_arguments
from compiler.ops.number_format import Array
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.constants import ConstantPool
from compiler.targets.c.kernel import kernel_of
from compiler.targets.c.names import Names
from compiler.targets.c.product_form import with_scratch
from compiler.targets.c.routines import c_routines
from compiler.targets.c.source_file import source_text
from compiler.targets.c.toolchain import EXACT_FLAGS, call_c, load_library


class KernelLibrary:
    """Compiled kernels; one that calls a routine without C form is evaluated with numpy.

    Args:
        functions: verified; names differ.
        flags: of the compiler.
    Raises:
        CodegenError: there is no compiler, or a dtype has no C form.
    """

    def __init__(self, functions: Sequence[PrimFunc], flags: Sequence[str] = EXACT_FLAGS) -> None:
        self._functions = {func.name: with_scratch(func) for func in functions}
        self._symbols, text = kernels_text([f for f in self._functions.values() if _is_c(f)])
        self._library = load_library("kernels", {"kernels.c": text}, flags)

    def run(self, name: str, args: Sequence[Array]) -> list[Array]:
        """The outputs of one function for one array per parameter.

        Raises:
            EvaluationError: an argument does not fit its parameter, or there is no such function.
        """
        func = self._functions.get(name)
        if func is None:
            raise EvaluationError(f"the library has no @{name}")
        if name not in self._symbols:
            return func.evaluate(args)
        given = checked_arguments(func, args)
        made = [np.empty(b.shape, b.dtype) for b in (*func.outputs, *func.temps)]
        call_c(self._library, self._symbols[name], [*given, *made])
        return made[: len(func.outputs)]


def _is_c(func: PrimFunc) -> bool:
    return all(not isinstance(block, Extern) or block.symbol in c_routines for block in func.blocks)


def kernels_text(functions: Sequence[PrimFunc]) -> tuple[dict[str, str], str]:
    """C file with the functions, visible to others, and the symbol of each by name."""
    use = Arithmetic()
    pool = ConstantPool()
    names = Names()
    symbols: dict[str, str] = {}
    definitions: list[str] = []
    for func in functions:
        # Not the plain name: a kernel may be called like a function of the C library.
        symbols[func.name] = names.fresh(f"kernel_{func.name}")
        held = {b.name: pool.name_of(array, f"{func.name}_{b.name}") for b, array in func.consts}
        definitions.append(kernel_of(func, symbols[func.name], held, use, linkage=""))
    return symbols, source_text("Kernels.", use, pool, definitions)
