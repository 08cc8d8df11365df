"""Choose the QuantizeContext of a pass: the run's, or a fresh one for a pass called on its own."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.pass_infra import Pass
from compiler.qtypes.context import QuantizeContext


def context_or_new(context: QuantizeContext | None) -> QuantizeContext:
    """``context``, or one for the current QConfig."""
    if context is None:
        return QuantizeContext()
    return context


@dataclass(frozen=True, slots=True)
class RunPass(Pass):
    """Base of the passes of a quantization run.

    Args:
        context: the run this pass belongs to; without one, the current QConfig counts.
    """

    context: QuantizeContext | None = None

    def __str__(self) -> str:
        return self.info.name
