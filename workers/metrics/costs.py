"""Costs that are computed or measured: on an accelerator, on small devices, CPU time of a sample.

"latency" is of the engine, which runs a module by default, "c_latency" of the C that is exported.
Memory, flash and instructions are of that C too; nothing is compiled for them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from timeit import Timer
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from workers.metrics.registry import declare_cost

if TYPE_CHECKING:
    from compiler.ir.module import IRModule

    Inputs = Mapping[str, NDArray[Any]]

TIMED: Final = ("latency", "c_latency")
ROUNDS: Final = 7
"""Measurements, of which the shortest counts."""
_ROUND_S: Final = 0.01


def latency_figures(
    timed: Sequence[str], module: IRModule, inputs: Inputs, batch: int, board: str | None = None
) -> dict[str, float]:
    """Time a module on one core, of this machine or of a board.

    Args:
        timed: which of "latency" and "c_latency".
        module: what ships.
        inputs: of one run.
        batch: samples of one run.
        board: ``ssh://…`` of a machine that builds and runs the C, for both; its integers are
            compared with those of this machine.
    Returns:
        milliseconds of CPU time a sample, by the key of each measure.
    Raises:
        CompilerError: the module has no form for it, there is no compiler, or the board computes
            something else.
    """
    if board is not None:
        return dict.fromkeys((f"{n}_ms" for n in timed), _board_ms(module, inputs, board) / batch)
    from compiler.targets.c.stopwatch import timed_run

    took = {
        name: _engine_ms(module, inputs) if name == "latency" else timed_run(module, inputs)[1]
        for name in timed
    }
    return {f"{name}_ms": ms / batch for name, ms in took.items()}


def timed_by(cost: str, board: str | None = None) -> dict[str, Any] | None:
    """Plain facts of what ``cost`` is measured with, here or on a board; None where nothing can.

    Raises:
        CodegenError: the board cannot be reached, or has no compiler.
    """
    from compiler.targets.c.board import Board
    from compiler.targets.c.toolchain import build_facts, cpu_features, find_compiler
    from compiler.targets.engine.library import detected_isa, is_available

    if board is not None:
        return {"board": board, "about": Board.of(board).about()}
    if cost == "latency":
        if is_available():
            return {"engine": detected_isa(), "cpu": cpu_features()}
        return None
    compiler = find_compiler()
    if compiler is None:
        return None
    return {"build": build_facts(compiler)}


def _engine_ms(module: IRModule, inputs: Inputs) -> float:
    from compiler.runtime.exact_executor import exact_executor

    engine = exact_executor(module).executor
    timer = Timer(lambda: engine.run(inputs), timer=time.thread_time)
    runs = 1
    engine.run(inputs)
    while (took := timer.timeit(runs)) < _ROUND_S:
        runs *= 2
    return 1e3 * min(took, *timer.repeat(ROUNDS - 1, runs)) / runs


def _board_ms(module: IRModule, inputs: Inputs, board: str) -> float:
    from compiler.errors import CodegenError
    from compiler.runtime.exact_executor import exact_executor
    from compiler.targets.c.board import Board
    from compiler.targets.c.stopwatch import timed_run

    found, took = timed_run(module, inputs, Board.of(board))
    wanted = exact_executor(module).executor.run(inputs)
    if [a.tobytes() for a in found] != [b.tobytes() for b in wanted]:
        raise CodegenError(
            "the board computes something else than this machine",
            where=board,
            fix="this is a defect there or here, please report the module",
        )
    return took


for _place, _option, _title in ((12, "latency", "latency"), (13, "c_latency", "latency in C")):
    _about = {"unit": "ms", "needs": "compiler", "template": "{:,.4g} ms"}
    declare_cost(f"{_option}_ms", _option, title=_title, place=_place, **_about)


DEVICE: Final = ("ram", "flash", "instructions")
"""Options of the costs."""


def device_figures(module: IRModule, core: str | None) -> dict[str, float]:
    """Figures of the C of a module, by the keys of the measures.

    Args:
        core: a key of ``CORES``; without it only memory is known.
    Raises:
        CompilerError: the module has no C form.
    """
    from compiler.pipeline import lower
    from compiler.targets.c.cores import CORES
    from compiler.targets.c.package import arena_bytes, footprint

    lowered = lower(module, target="c").mod
    if core is None:
        return {"ram_bytes": float(arena_bytes(lowered))}
    made = footprint(lowered)
    weights = CORES[core]
    return {
        "ram_bytes": float(made.arena_bytes),
        "flash_bytes": made.constant_bytes + float(round(weights.code_bytes_of(made.work))),
        "instructions": float(round(weights.instructions_of(made.work))),
    }


for _place, (_key, _option, _title, _unit, _meaning) in enumerate(
    (
        (
            "ram_bytes", "ram", "RAM", "bytes",
            "bytes of the arena of the exported C, without its inputs, outputs and stack",
        ),
        (
            "flash_bytes", "flash", "flash", "bytes",
            "bytes of packed constants and code of the exported C, on the core of --for",
        ),
        (
            "instructions", "instructions", "instructions", "",
            "instructions of one sample in C, on the core of --for; not cycles",
        ),
    ),
    14,
):  # fmt: skip
    _needs = "" if _option == "ram" else "core"
    declare_cost(
        _key, _option, title=_title, unit=_unit, needs=_needs, place=_place, meaning=_meaning
    )


def hardware_figures(module: IRModule, hardware: tuple[str, str]) -> dict[str, float]:
    """Groups, bytes of traffic, cycles and calls on the host, as keys of a score.

    Args:
        module: the integers of a candidate.
        hardware: text and name of the description.
    """
    from compiler.fusion.hardware.cost import hardware_cost
    from compiler.fusion.hardware.description import parse_hdfg

    return hardware_cost(module, parse_hdfg(*hardware)).totals()


_FIGURES = (
    ("hw_groups", "hardware groups", ""),
    ("hw_traffic", "hardware traffic", "bytes"),
    ("hw_cycles", "hardware cycles", ""),
    ("hw_host_calls", "calls on the host", ""),
)
for _place, (_name, _words, _unit) in enumerate(_FIGURES, 20):
    declare_cost(_name, _name, title=_words, unit=_unit, needs="hardware", place=_place)
