"""Costs "size" and "bit_operations": bytes of the packed weights, and bit operations of one run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.metrics.registry import Measure, measures

if TYPE_CHECKING:
    from compiler.quantize import Candidate


def size_figures(candidate: Candidate) -> dict[str, float]:
    """Figures of a candidate, as keys of a score."""
    cost = candidate.cost
    return {"model_bytes": float(cost.weight_bytes), "bit_operations": float(cost.bit_operations)}


measures.register("model_bytes")(
    Measure(
        "model_bytes",
        "size",
        title="model size",
        unit="bytes",
        smaller_is_better=True,
        place=10,
        meaning="bytes of the packed weights",
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
