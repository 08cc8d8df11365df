"""Cost "ram": bytes of memory that the exported C works in, computed from its memory plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.metrics.registry import Measure, measures

if TYPE_CHECKING:
    from compiler.ir.module import IRModule


def ram_figures(module: IRModule) -> dict[str, float]:
    """Bytes of the arena of the C of a module, by the key of the measure.

    Inputs and outputs, which lie with the caller, and the stack are not in it.

    Raises:
        CompilerError: the module has no C form.
    """
    from compiler.pipeline import lower
    from compiler.targets.c.package import arena_bytes

    return {"ram_bytes": float(arena_bytes(lower(module, target="c").mod))}


measures.register("ram_bytes")(
    Measure(
        "ram_bytes",
        "ram",
        title="RAM",
        unit="bytes",
        smaller_is_better=True,
        place=14,
        meaning="bytes of the arena of the exported C, without its inputs, outputs and stack",
    )
)
