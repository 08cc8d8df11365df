"""Cost "latency": CPU milliseconds that one sample takes in the generated C, measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from workers.metrics.registry import Measure, measures

if TYPE_CHECKING:
    from compiler.ir.module import IRModule


def latency_figures(
    module: IRModule, inputs: Mapping[str, NDArray[Any]], batch: int
) -> dict[str, float]:
    """Time a module on this machine, in a process of its own.

    Args:
        module: what ships.
        inputs: of one run.
        batch: samples of one run.
    Raises:
        CompilerError: the module has no C form, or there is no compiler.
    """
    from compiler.targets.c.stopwatch import timed_run

    _, milliseconds = timed_run(module, inputs)
    return {"latency_ms": milliseconds / batch}


measures.register("latency_ms")(
    Measure(
        "latency_ms",
        "latency",
        title="latency",
        unit="ms",
        smaller_is_better=True,
        needs="compiler",
        place=12,
        meaning="CPU milliseconds of one sample in the generated C, measured",
        template="{:,.4g} ms",
    )
)
