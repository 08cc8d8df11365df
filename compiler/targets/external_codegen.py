"""The table of external code generators (BYOC): ``Compiler`` attribute → function to module.

    @external_codegen.register("npu")
    def compile_for_npu(function: Function, target: Target) -> ExternalModule | None:
        '''One function; its attribute ``global_symbol`` is the name the module must answer to.'''

LowerTE asks here for every function with a ``Compiler`` attribute, which it takes off first. None
means: compiled elsewhere. To be found in a saved file again, the module's kind also registers with
``compiler.runtime.external_module.external_loaders``. Source: Relay's ``relay.ext.<compiler>``.
"""

from __future__ import annotations

from collections.abc import Callable

from compiler.errors import LoweringError
from compiler.ir.expr import Function
from compiler.named_table import NamedTable
from compiler.runtime.external_module import ExternalModule
from compiler.targets.target import Target

ExternalCodegen = Callable[[Function, Target], ExternalModule | None]

external_codegen: NamedTable[ExternalCodegen] = NamedTable("external code generator", LoweringError)
"""Name of the compiler → its code generator."""


def register_external(name: str, codegen: ExternalCodegen) -> None:
    """``external_codegen.register`` for a code generator that is there already.

    Args:
        name: the ``Compiler`` attribute of its functions, such as that of a hardware description.
        codegen: function and target to a runtime module, or None when it is compiled elsewhere.
    Raises:
        LoweringError: the name is taken.
    """
    external_codegen.register(name)(codegen)
