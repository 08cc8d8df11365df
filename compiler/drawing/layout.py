"""Places for the boxes of one frame: ranks by longest path, order within a rank by barycentre.

Source of the method: Sugiyama, Tagawa, Toda, "Methods for Visual Understanding of Hierarchical
System Structures", 1981, with way-points on edges that pass over a rank. Every step is a sweep over
ranks or edges; nothing recurses.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from compiler.drawing.picture import Frame

BOX_HEIGHT = 40.0
RANK_GAP = 34.0
BOX_GAP = 24.0
CHAR_WIDTH = 6.7
MIN_BOX_WIDTH = 72.0
WAYPOINT_WIDTH = 10.0
ORDER_SWEEPS = 6
PLACE_SWEEPS = 8
# Graphs with many long edges (DenseNet) would get more way-points than boxes: beyond this number
# a long edge is drawn straight.
MAX_WAYPOINTS = 20_000

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Place:
    """A box of the drawing; ``x``, ``y`` is its upper left corner, in pixels."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Places of the boxes by key, a polyline per edge (the frame's order), the size in pixels."""

    places: dict[int, Place]
    routes: tuple[tuple[Point, ...], ...]
    width: float
    height: float


def place(frame: Frame) -> Layout:
    """Places for all boxes and edges of ``frame``; the same frame always gets the same layout."""
    if not frame.boxes:
        return Layout({}, (), MIN_BOX_WIDTH, BOX_HEIGHT)
    index = {box.key: i for i, box in enumerate(frame.boxes)}
    pairs = [(index[e.source], index[e.target]) for e in frame.edges]
    widths = [
        max(MIN_BOX_WIDTH, 16 + CHAR_WIDTH * max(len(box.title), len(box.subtitle)))
        for box in frame.boxes
    ]
    ranks = longest_path_ranks(len(frame.boxes), pairs)
    chains = _waypoints(pairs, ranks, widths)
    rows, above, below = _rows(ranks, pairs, chains)
    _order_rows(rows, above, below)
    centres = _place_rows(rows, above, below, widths)

    places = {
        box.key: Place(centres[i] - widths[i] / 2, _top(ranks[i]), widths[i], BOX_HEIGHT)
        for i, box in enumerate(frame.boxes)
    }
    routes: list[tuple[Point, ...]] = []
    for (source, target), chain in zip(pairs, chains):
        bends: list[Point] = []
        for n in chain:
            # Beside a box the edge goes straight down.
            bends.append((centres[n], _top(ranks[n])))
            bends.append((centres[n], _top(ranks[n]) + BOX_HEIGHT))
        start = (centres[source], _top(ranks[source]) + BOX_HEIGHT)
        end = (centres[target], _top(ranks[target]))
        routes.append((start, *bends, end))
    return Layout(
        places,
        tuple(routes),
        max(p.x + p.width for p in places.values()),
        max(p.y + p.height for p in places.values()),
    )


def _top(rank: int) -> float:
    return rank * (BOX_HEIGHT + RANK_GAP)


def longest_path_ranks(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Rank of every box: one below its lowest operand, and inputs just above their first user.

    Args:
        count: number of boxes, numbered so that every edge goes from a lower to a higher number.
        pairs: edges as (source, target).
    """
    ranks = [0] * count
    operands: list[list[int]] = [[] for _ in range(count)]
    users: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        operands[target].append(source)
        users[source].append(target)
    for node in range(count):
        ranks[node] = max((ranks[o] + 1 for o in operands[node]), default=0)
    for node in range(count):
        if not operands[node] and users[node]:
            ranks[node] = min(ranks[u] for u in users[node]) - 1
    return ranks


def _waypoints(
    pairs: list[tuple[int, int]], ranks: list[int], widths: list[float]
) -> list[tuple[int, ...]]:
    """New nodes, appended to ``ranks`` and ``widths``, on each rank that an edge passes over."""
    chains: list[tuple[int, ...]] = []
    room = MAX_WAYPOINTS
    for source, target in pairs:
        passed = range(ranks[source] + 1, ranks[target])
        if len(passed) > room:
            chains.append(())
            continue
        room -= len(passed)
        first = len(ranks)
        ranks.extend(passed)
        widths.extend([WAYPOINT_WIDTH] * len(passed))
        chains.append(tuple(range(first, first + len(passed))))
    return chains


Neighbours = list[list[int]]


def _rows(
    ranks: list[int], pairs: list[tuple[int, int]], chains: list[tuple[int, ...]]
) -> tuple[list[list[int]], Neighbours, Neighbours]:
    """Nodes per rank, and each node's neighbours one rank above and one below."""
    rows: list[list[int]] = [[] for _ in range(max(ranks) + 1)]
    for node, rank in enumerate(ranks):
        rows[rank].append(node)
    above: Neighbours = [[] for _ in ranks]
    below: Neighbours = [[] for _ in ranks]
    for (source, target), chain in zip(pairs, chains):
        path = (source, *chain, target)
        for upper, lower in pairwise(path):
            above[lower].append(upper)
            below[upper].append(lower)
    return rows, above, below


def _order_rows(rows: list[list[int]], above: Neighbours, below: Neighbours) -> None:
    """Sort each row by the mean position of its neighbours, downwards and upwards in turn."""
    position = [0.0] * len(above)
    for row in rows:
        for i, node in enumerate(row):
            position[node] = float(i)
    for sweep in range(ORDER_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            row.sort(key=lambda node: _mean(position, neighbours[node], position[node]))
            for i, node in enumerate(row):
                position[node] = float(i)


def _place_rows(
    rows: list[list[int]], above: Neighbours, below: Neighbours, widths: list[float]
) -> list[float]:
    """Centre of every node on the x axis, in pixels, the leftmost edge at 0."""
    centres = [0.0] * len(widths)
    for row in rows:
        _spread(row, [0.0] * len(row), widths, centres)
    for sweep in range(PLACE_SWEEPS):
        down = sweep % 2 == 0
        neighbours = above if down else below
        for row in rows if down else reversed(rows):
            wanted = [_mean(centres, neighbours[node], centres[node]) for node in row]
            _spread(row, wanted, widths, centres)
    left = min(centres[node] - widths[node] / 2 for row in rows for node in row)
    return [centre - left for centre in centres]


def _spread(row: list[int], wanted: list[float], widths: list[float], out: list[float]) -> None:
    """Centres near the wanted ones without overlap.

    One pass gives way to the right, one to the left; both keep the distances, so their mean does.
    """
    rightwards: list[float] = []
    edge = float("-inf")
    for node, want in zip(row, wanted):
        half = widths[node] / 2
        rightwards.append(max(want, edge + half))
        edge = rightwards[-1] + half + BOX_GAP
    edge = float("inf")
    for i in range(len(row) - 1, -1, -1):
        half = widths[row[i]] / 2
        leftwards = min(wanted[i], edge - half)
        edge = leftwards - half - BOX_GAP
        out[row[i]] = (rightwards[i] + leftwards) / 2


def _mean(values: list[float], chosen: list[int], default: float) -> float:
    if chosen:
        return sum(values[i] for i in chosen) / len(chosen)
    return default
