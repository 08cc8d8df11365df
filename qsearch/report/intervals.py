"""How far a score could be off, were the evaluation samples drawn anew: 95 % intervals.

Accuracies have Wilson's interval; SQNR and metrics of the user the delta method's on their ratios
of sums (see ``workers.metrics.sqnr.standard_error_db``, ``workers.metrics.custom.standard_error``).
Source: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from qsearch.search.objectives import UNCERTAIN
from workers.metrics.registry import known_measures

Z: Final = 1.959963984540054
"""Standard normal deviate of 95 %."""

Interval = tuple[float, float]


def wilson(fraction: float, count: float) -> Interval:
    """Of a fraction (0..1) of ``count`` > 0 decisions."""
    shrunk = 1.0 + Z * Z / count
    centre = (fraction + Z * Z / (2.0 * count)) / shrunk
    spread = fraction * (1.0 - fraction) / count + Z * Z / (4.0 * count * count)
    half = Z / shrunk * math.sqrt(max(spread, 0.0))
    return max(centre - half, 0.0), min(centre + half, 1.0)


def intervals(score: Mapping[str, float | None], samples: int | None) -> dict[str, Interval]:
    """Low and high end by the name of the metric; metrics without one are left out.

    Args:
        score: of a trial or of the float model.
        samples: that were scored. A model with several decisions a sample (a segmentation) has
            wider intervals here than it needs.
    """
    found: dict[str, Interval] = {}
    for each in known_measures():
        value = score.get(each.name)
        if each.interval == "wilson" and value is not None and samples:
            found[each.name] = wilson(value, samples)
    for name, value in score.items():
        error = score.get(f"{name}{UNCERTAIN}")
        if value is not None and error is not None:
            found[name] = (value - Z * error, value + Z * error)
    return found
