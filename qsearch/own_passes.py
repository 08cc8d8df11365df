"""The user's own compiler passes on the float model, before a search quantizes it."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.module import IRModule
from compiler.ir.pass_infra import Pass
from compiler.transform import InferType, PassContext, create_pass, run_named
from qsearch.errors import SettingsError
from qsearch.import_path import load_object
from qsearch.settings import is_import_path


def run_own_passes(module: IRModule, passes: Sequence[str]) -> IRModule:
    """Run passes in order and infer types anew; workers get what comes out.

    Args:
        passes: a registered pass as text (``FoldConstant``), or ``package.module:Name``: a pass, or
            a class or function without parameters that makes one.
    Raises:
        SettingsError: one of them is no pass.
        CompilerError: what the passes raise.
    """
    made = [_pass_of(word) for word in passes]
    with PassContext(opt_level=3):
        return run_named(module, [*made, InferType()], "own passes")


def _pass_of(word: str) -> Pass:
    if not is_import_path(word):
        return create_pass(word)
    found = load_object(word, "pass")
    made = found if isinstance(found, Pass) else found()
    if not isinstance(made, Pass):
        raise SettingsError(
            f"{word} is a {type(made).__name__}, no pass",
            where="passes",
            fix="give a pass, or a class of passes; see compiler/passes/README.md",
        )
    return made
