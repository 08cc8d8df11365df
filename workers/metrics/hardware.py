"""Costs of the hardware groups on the accelerator of ``--hw``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.metrics.registry import declare_cost

if TYPE_CHECKING:
    from compiler.ir.module import IRModule


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
