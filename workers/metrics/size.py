"""Costs "size" and "bit_operations": bytes of the packed constants, and bit operations of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.runtime.artifact import constants_of
from compiler.runtime.packed import member_bytes
from workers.metrics.registry import Measure, measures

if TYPE_CHECKING:
    from compiler.quantize import Candidate


def size_figures(candidate: Candidate) -> dict[str, float]:
    """Figures of a candidate, as keys of a score."""
    size = member_bytes(constants_of(candidate.module))
    return {"model_bytes": float(size), "bit_operations": float(candidate.cost.bit_operations)}


measures.register("model_bytes")(
    Measure(
        "model_bytes",
        "size",
        title="model size",
        unit="bytes",
        smaller_is_better=True,
        place=10,
        meaning="bytes of the constants in the .qmod, packed",
    )
)
measures.register("bit_operations")(
    Measure(
        "bit_operations",
        "bit_operations",
        title="bit operations",
        smaller_is_better=True,
        place=11,
        meaning="multiplications of one run, each times the bits of both factors",
    )
)
