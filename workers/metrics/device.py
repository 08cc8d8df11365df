"""Costs on small devices: memory, flash and instructions of the exported C; nothing is compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.metrics.registry import declare_cost

if TYPE_CHECKING:
    from compiler.ir.module import IRModule

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
    made, weights = footprint(lowered), CORES[core]
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
