"""Histograms of what calibration saw, thinned out for the eye; runs in the inspector.

The stored histograms have 8001 equal bins over [-largest, largest] of every quantize point.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.qtypes.qconfig import QAnnotateKind
from compiler.quantize.calibration.stats import CalibrationStats
from qsearch.errors import DataError

BINS: Final = 96
MAX_POINTS: Final = 400
MAX_FILE_BYTES: Final = 1 << 30


def histograms_of(statistics: Path, scales: str | None) -> dict[str, Any]:
    """One entry per measured point, in binding order.

    Args:
        statistics: stored ``CalibrationStats``.
        scales: file of the stored ranges that a configuration chose from them.
    Raises:
        DataError: a file is larger than any that a search writes.
    """
    stats = CalibrationStats.from_arrays(arrays_of(statistics))
    chosen = None if scales is None else arrays_of(Path(scales))["scales"]
    points: list[dict[str, Any]] = []
    for point, (tensor, kind) in enumerate(zip(stats.point_tensor, stats.point_kind)):
        if len(points) == MAX_POINTS:
            break
        one = stats.tensor(int(tensor))
        low, high = float(one.minimum), float(one.maximum)
        hist = one.hist
        counts = [] if hist is None else _thinned(hist, low, high)
        points.append(
            {
                "label": one.label,
                "kind": QAnnotateKind(int(kind)).name.lower(),
                "low": low,
                "high": high if high > low else low + 1.0,
                "values": int(one.count),
                "counts": counts,
                "readers": list(stats.readers[point]),
                **_thresholds(chosen, point, len(stats.point_tensor)),
            }
        )
    return {"points": points, "total": len(stats.point_tensor)}


def _thresholds(chosen: NDArray[Any] | None, point: int, count: int) -> dict[str, float | None]:
    """Both ends of the range that quantization keeps."""
    if chosen is None or chosen.size not in (count, 3 * count):
        return {"threshold_low": None, "threshold_high": None}
    low, high = (-chosen, chosen) if chosen.size == count else chosen.reshape(3, count)[1:]
    return {"threshold_low": float(low[point]), "threshold_high": float(high[point])}


def _thinned(hist: NDArray[np.int64], low: float, high: float) -> list[int]:
    """Counts of BINS bins over [low, high] out of those over [-largest, largest]."""
    largest = max(abs(low), abs(high)) or 0.5
    centres = (np.arange(hist.size) + 0.5) / hist.size * 2 * largest - largest
    width = (high - low) / BINS or 1.0
    place = np.clip(((centres - low) / width).astype(np.int64), 0, BINS - 1)
    return [int(n) for n in np.bincount(place, weights=hist, minlength=BINS)]


def arrays_of(file: Path) -> dict[str, NDArray[Any]]:
    """Named arrays of a stored file.

    Raises:
        DataError: it is larger than any that a search writes.
    """
    if file.stat().st_size > MAX_FILE_BYTES:
        raise DataError("the statistics are larger than a page can show", where=file.name)
    with np.load(file, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
