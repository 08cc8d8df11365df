"""Time a module as C: export, build and run it in a process of its own.

Whoever measures keeps neither the library nor its memory. CPU time, not wall time: a busy machine
shows only in what its caches lose.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from compiler.errors import CodegenError
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ops.number_format import Array
from compiler.targets.c.board import Board
from compiler.targets.c.c_types import c_type
from compiler.targets.c.executor import flat_inputs, lowered
from compiler.targets.c.package import CPackage, c_package
from compiler.targets.c.toolchain import EXACT_FLAGS, link, required_compiler

ROUNDS: Final = 7
"""Measurements, of which the shortest counts; fewer where they take ``_ENOUGH_S`` together."""
_ROUND_S: Final = 0.01
_ENOUGH_S: Final = 1.0
_TIMEOUT_S: Final = 600.0


def timed_run(
    module: IRModule, inputs: Mapping[str, Array], board: Board | None = None
) -> tuple[list[Array], float]:
    """Outputs of one run of ``@main`` in C, and CPU milliseconds that it takes, on one core.

    Args:
        module: with static shapes and without control flow.
        inputs: array by the name of the parameter.
        board: where it is built and run; None is this machine.
    Returns:
        the results, tuples flattened from left to right, and the shortest of some measurements.
    Raises:
        LoweringError: an operator has no loops.
        CodegenError: there is no compiler, something has no C form, or the board fails.
        EvaluationError: an input does not fit.
    """
    compiler = required_compiler() if board is None else ()
    if module["main"].checked_type_or_none is None:
        module = infer_module(module)
    package = c_package(lowered(module), "module")
    entry = package.entries["main"]
    arrays = flat_inputs(module["main"], entry, inputs)
    given = b"".join(array.tobytes() for array in arrays)
    size = sum(value.nbytes for value in entry.results)
    if board is not None:
        texts = {**package.files, "stopwatch.c": _driver(package)}
        made, seconds = _parted(board.run(texts, given), size, str(board))
    else:
        with tempfile.TemporaryDirectory(prefix="qsearch-c-") as scratch:
            folder = Path(scratch)
            sources = package.write(folder)
            driver = folder / "stopwatch.c"
            program = folder / "stopwatch"
            driver.write_text(_driver(package), encoding="utf-8")
            link(compiler, [*sources, driver], ("-std=c99", *EXACT_FLAGS), program)
            made, seconds = _answer(program, given, size)
    outputs = []
    start = 0
    for value in entry.results:
        flat = np.frombuffer(made, value.dtype, value.size, start)
        outputs.append(flat.reshape(value.shape))
        start += value.nbytes
    return outputs, 1e3 * seconds


def _driver(package: CPackage) -> str:
    """A program: inputs from stdin; outputs and seconds of one run, as a double, to stdout."""
    entry = package.entries["main"]
    given = [(f"in{i}", value) for i, value in enumerate(entry.params)]
    made = [(f"out{i}", value) for i, value in enumerate(entry.results)]
    arena = ["&arena"] if entry.placement.arena_bytes else []
    call = f"{entry.symbol}({', '.join([*arena, *(n for n, _ in given), *(n for n, _ in made)])});"
    lines = [
        f'#include "{package.name}.h"',
        "#include <stdio.h>",
        "#include <time.h>",
        *(f"static {package.name}_arena arena;" for _ in arena),
        *(f"static {c_type(v.dtype)} {n}[{v.size}];" for n, v in [*given, *made]),
        "int main(void)",
        "{",
        "    double least = 0, all = 0;",
        "    long runs = 1;",
        "    int rounds = 0;",
        *(f"    if (fread({n}, sizeof {n}, 1, stdin) != 1) return 2;" for n, _ in given),
        f"    {call}",
        f"    while (rounds < {ROUNDS} && (rounds == 0 || all < {_ENOUGH_S})) {{",
        "        double took;",
        "        clock_t begin = clock();",
        f"        for (long run = 0; run < runs; run++) {call}",
        "        took = (double)(clock() - begin) / CLOCKS_PER_SEC;",
        f"        if (rounds == 0 && took < {_ROUND_S}) {{ runs *= 2; continue; }}",
        "        all += took;",
        "        if (rounds++ == 0 || took / runs < least) least = took / runs;",
        "    }",
        *(f"    if (fwrite({n}, sizeof {n}, 1, stdout) != 1) return 3;" for n, _ in made),
        "    return fwrite(&least, sizeof least, 1, stdout) != 1;",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _answer(program: Path, given: bytes, made: int) -> tuple[bytes, float]:
    """Bytes of the outputs, and seconds of a run."""
    try:
        done = subprocess.run(
            [program], input=given, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CodegenError(
            f"the module did not end within {_TIMEOUT_S:.0f} s in C", where=program.name
        ) from error
    return _parted(done.stdout, made, program.name, done.returncode)


def _parted(said: bytes, made: int, where: str, code: int = 0) -> tuple[bytes, float]:
    """Bytes of the outputs, and seconds of a run, of what a program wrote."""
    if code != 0 or len(said) != made + 8:
        raise CodegenError(
            f"the module in C ended with {code} and {len(said)} bytes",
            where=where,
            fix="report it, with the model: the generated program is at fault",
        )
    return said[:made], float(np.frombuffer(said, np.float64, 1, made)[0])
