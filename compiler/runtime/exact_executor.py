"""The executors of a module, and the one that runs it where nobody asked for one.

All give the bits of the reference; a module that the faster one cannot take is run by the next:

    engine       kernels of the wheel, or a C compiler
    integer      onnxruntime, the module as ONNX in its own dtypes
    reference    numpy
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from pkgutil import resolve_name
from typing import Final, NamedTuple

from compiler.errors import CodegenError, OnnxExportError
from compiler.ir.module import IRModule
from compiler.runtime.executor import Executor

_log = logging.getLogger("compiler.runtime")

# Named as text: the runtime has no knowledge of targets, and may not import them (import layers).
EXECUTOR_FACTORIES: Final = {
    "reference": "compiler.targets.reference.executor:ReferenceExecutor",
    "engine": "compiler.targets.engine.executor:EngineExecutor",
    "integer": "compiler.targets.ort.integer_executor:IntegerExecutor",
    "c": "compiler.targets.c.executor:CExecutor",
}
SLOWER: Final = "up to 8 times slower than the engine"
"""The integer ONNX; the ratios of README's table."""


def executor_named(name: str, module: IRModule) -> Executor:
    """An executor of ``EXECUTOR_FACTORIES``.

    Raises:
        CompilerError: it cannot run the module, or not here.
        ImportError: what it needs is not installed.
    """
    factory: Callable[[IRModule], Executor] = resolve_name(EXECUTOR_FACTORIES[name])
    return factory(module)


class Chosen(NamedTuple):
    """An executor, its name in ``EXECUTOR_FACTORIES``, and why no faster one; "" for the engine."""

    name: str
    executor: Executor
    note: str = ""


def exact_executor(module: IRModule) -> Chosen:
    """The fastest executor of a module's integers; a warning, once, where that is not the engine.

    Args:
        module: typed, after QuantizeRealize.
    """
    try:
        return Chosen("engine", executor_named("engine", module))
    except CodegenError as error:
        why = error.what
        fix = error.fix
    try:
        name = "integer"
        executor = executor_named("integer", module)
        note = f"{why}: onnxruntime runs the module in integers, {SLOWER}"
    except (ImportError, OnnxExportError) as error:
        name = "reference"
        executor = executor_named("reference", module)
        if isinstance(error, ImportError):
            also = "no onnxruntime"
        else:
            also = error.what
        note = f"{why}; {also}: the reference runs the module, much slower"
    note = note if fix is None else f"{note}; {fix}"
    _say_once(note)
    return Chosen(name, executor, note)


@functools.cache
def _say_once(message: str) -> None:
    _log.warning("%s", message)
