"""Flags of doubtful quantization points, derived from their measurements.

constant         one value is left of several
noisy            far noisier than its bits allow, or than the same levels over all values are
"""

from __future__ import annotations

import math
from typing import Final

from compiler.insight.audit.measure import Audit, PointAudit
from compiler.insight.records import Ratio
from compiler.ops.annotation.wide_point import wide_headroom

LOST: Final = "lost in front"
INTEGERS: Final = "integers"
DOUBTS_OF_VALUES: Final = frozenset(("constant", "noisy"))
"""Flags of points that another range or more bits may mend."""
_APART_DB: Final = 15.0
"""Below it a value of integers is not the one that is simulated."""
_NOISY_DB: Final = 28.0
"""Tensors of trained and of drawn networks have 33 to 45 dB on 8 bits by themselves."""
_BESIDE_EVEN_DB: Final = 7.0
"""Calibration sees more samples than the audit: its ranges are up to twice as wide."""
_LOST_DB: Final = 12.0


def flags_of(point: PointAudit) -> tuple[str, ...]:
    """Return the flags of a point, the worst first."""
    sums = point.sums
    values, levels = sums.distinct
    own = _db_or(math.inf, sums.local)
    total = _db_or(math.inf, sums.upstream)
    even = _db_or(-math.inf, sums.even)
    room_db = 20 * math.log10(wide_headroom((sums.levels[1] - sums.levels[0]).bit_length()))
    expected = max(_NOISY_DB, even - _BESIDE_EVEN_DB - room_db)
    doubts = {
        "constant": levels == 1 < values,
        "noisy": own < expected,
        INTEGERS: point.integer_db is not None and point.integer_db < _APART_DB,
        LOST: point.lost_db > _LOST_DB and total < own - _LOST_DB,
    }
    return tuple(name for name, holds in doubts.items() if holds)


def flagged(audit: Audit) -> dict[str, tuple[str, ...]]:
    """The doubtful points by name, those with the most noise of their own first; no weights, which
    have the names of layers."""
    computed = [point for point in audit.points if point.sums.kind != "weight"]
    doubts = [(point, flags_of(point)) for point in sorted(computed, key=_noise)]
    return {point.name: flags for point, flags in doubts if flags}


def worst_point(audit: Audit) -> PointAudit | None:
    """The first point whose integers are another value than the simulation, else the computed point
    at which most is lost that was there in front of it; None of a network without one. O(points).
    """
    computed = [point for point in audit.points if point.sums.kind != "weight"]
    apart = (point for point in computed if INTEGERS in flags_of(point))
    return next(apart, max(computed, key=lambda point: point.lost_db, default=None))


def _noise(point: PointAudit) -> float:
    return _db_or(math.inf, point.sums.local)


def _db_or(other: float, ratio: Ratio) -> float:
    if ratio.db is None:
        return other
    return ratio.db
