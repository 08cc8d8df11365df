"""Exact hypervolume by slicing along one objective after the other.

Source: While, Hingston, Barone, Huband, "A faster algorithm for calculating hypervolume", 2006.
"""

from __future__ import annotations

from collections.abc import Iterable

Point = tuple[float, ...]


def hypervolume(points: Iterable[Point], reference: Point) -> float:
    """Volume between ``reference`` and the points that are above it in every objective."""
    above = [p for p in points if all(a > r for a, r in zip(p, reference, strict=True))]
    volume = 0.0
    # Slabs still to be measured: their points, the objectives left, and the extent of the others.
    slabs: list[tuple[list[Point], int, float]] = [(above, len(reference), 1.0)]
    while slabs:
        held, left, extent = slabs.pop()
        if not held:
            continue
        axis = left - 1
        if axis == 0:
            volume += extent * (max(point[0] for point in held) - reference[0])
            continue
        levels = sorted({point[axis] for point in held}, reverse=True)
        for level, below in zip(levels, [*levels[1:], reference[axis]], strict=True):
            inside = [point for point in held if point[axis] >= level]
            slabs.append((inside, axis, extent * (level - below)))
    return volume
