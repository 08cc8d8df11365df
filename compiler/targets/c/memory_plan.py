"""One arena for values that do not live at the same time.

A value has a size and the steps between which it must be kept. Values whose steps overlap get
separate bytes, others may share. The order in which values are placed decides how well they fit;
several are tried and the smallest arena wins: the largest value first, each in the smallest gap
that holds it, or in the order of the program, in turn from both ends of an arena as large as the
lower bound, which is exact for a chain.

O(values x (values alive with each + steps of its life)); where that is too much, values take the
smallest free piece in the order of the program. Nothing is searched, so equal inputs give equal
plans.
Source: greedy by size, Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
Inference", 2020.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate

ALIGNMENT = 16
"""Bytes; a multiple of the size of every dtype and of the usual vector registers."""
_MOST_WORK = 1 << 20
"""About half a second."""


def rounded(size: int) -> int:
    """Bytes up to a whole multiple of the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Memory of a value, and the steps during which it is needed.

    Attributes:
        size: bytes, >= 0.
        first: step that writes it.
        last: last step that reads it, >= first; both steps included.
    """

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Places of all values.

    Attributes:
        offsets: byte offset of each value in the arena, multiples of the alignment.
        arena_bytes: size of the arena.
        lower_bound_bytes: the largest sum of sizes alive in one step; no plan can be smaller.
    """

    offsets: tuple[int, ...]
    arena_bytes: int
    lower_bound_bytes: int


def plan_memory(lifetimes: Sequence[Lifetime], alignment: int = ALIGNMENT) -> MemoryPlan:
    """Offsets for all values.

    Args:
        lifetimes: one per value.
        alignment: every offset is a multiple of it.
    """
    bound = lower_bound(lifetimes)
    if _work(lifetimes) > _MOST_WORK:
        offsets = _stream(lifetimes, alignment)
        size = max(o + v.size for o, v in zip(offsets, lifetimes))
        return MemoryPlan(offsets, size, bound)
    best: tuple[int, tuple[int, ...]] | None = None
    for key, both_ends in _ORDERS:
        order = sorted(range(len(lifetimes)), key=lambda i: (*key(lifetimes[i]), i))
        ceiling = -(-bound // alignment) * alignment if both_ends else 0
        offsets = _place(lifetimes, order, alignment, ceiling)
        size = max((o + v.size for o, v in zip(offsets, lifetimes)), default=0)
        if best is None or size < best[0]:
            best = size, offsets
        if size <= bound:
            break
    assert best is not None
    return MemoryPlan(best[1], best[0], bound)


def lower_bound(lifetimes: Sequence[Lifetime]) -> int:
    """Bytes of the largest set of values alive in one step."""
    return max(held_bytes(lifetimes), default=0)


def held_bytes(lifetimes: Sequence[Lifetime]) -> list[int]:
    """Bytes of the values alive in each step, up to the last that needs one."""
    change: Counter[int] = Counter()
    for value in lifetimes:
        change[value.first] += value.size
        change[value.last + 1] -= value.size
    return list(accumulate(change[step] for step in range(max(change, default=0))))


_ORDERS: tuple[tuple[Callable[[Lifetime], tuple[int, ...]], bool], ...] = (
    (lambda value: (-value.size, value.first), False),
    (lambda value: (value.first, -value.size), True),
    (lambda value: (-value.size * (value.last - value.first + 1), value.first), False),
    (lambda value: (-value.last, -value.size), True),
    (lambda value: (value.first, -value.size), False),
)


def _work(lifetimes: Sequence[Lifetime]) -> int:
    """Pairs of values that live together, and steps of all lives."""
    ends = sorted(value.last for value in lifetimes)
    begun = sorted(value.first for value in lifetimes)
    pairs = sum(turn - bisect_left(ends, first) for turn, first in enumerate(begun))
    return pairs + sum(value.last - value.first for value in lifetimes)


def _stream(lifetimes: Sequence[Lifetime], alignment: int) -> tuple[int, ...]:
    """Offsets in the order of the program: the smallest free piece that fits, or a new one."""
    offsets = [0] * len(lifetimes)
    alive: list[tuple[int, int, int]] = []  # (last step, bytes, offset), a heap
    free: list[tuple[int, int]] = []  # (bytes, offset), sorted
    top = 0
    for index in sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i].first, i)):
        value = lifetimes[index]
        while alive and alive[0][0] < value.first:
            insort(free, heappop(alive)[1:])
        size = -(-value.size // alignment) * alignment
        place = bisect_left(free, (size, 0))
        if place < len(free):
            size, offsets[index] = free.pop(place)
        else:
            offsets[index], top = top, top + size
        heappush(alive, (value.last, size, offsets[index]))
    return tuple(offsets)


def _place(
    lifetimes: Sequence[Lifetime], order: Sequence[int], alignment: int, ceiling: int
) -> tuple[int, ...]:
    """Offsets; with a ceiling every second value lies as high below it as it can."""
    offsets = [0] * len(lifetimes)
    alive: dict[int, list[int]] = {}
    begun: dict[int, list[int]] = {}
    for turn, index in enumerate(order):
        value = lifetimes[index]
        if value.size == 0:
            continue
        # Either there before this value, or begun while it lives: nothing is met twice.
        later = range(value.first + 1, value.last + 1)
        beside = [*alive.get(value.first, ()), *(i for step in later for i in begun.get(step, ()))]
        taken = sorted((offsets[b], offsets[b] + lifetimes[b].size) for b in beside)
        place = None
        if ceiling and turn % 2:
            place = _highest_gap(taken, value.size, alignment, ceiling)
        if place is None:
            place = _smallest_gap(taken, value.size, alignment)
        offsets[index] = place
        begun.setdefault(value.first, []).append(index)
        for step in (value.first, *later):
            alive.setdefault(step, []).append(index)
    return tuple(offsets)


def _smallest_gap(taken: Sequence[tuple[int, int]], size: int, alignment: int) -> int:
    """Start of the smallest gap between sorted pieces that holds ``size``, else behind them all."""
    best: tuple[int, int] | None = None
    end = 0
    for start, stop in taken:
        if start - end >= size and (best is None or start - end < best[0]):
            best = start - end, end
        end = max(end, -(-stop // alignment) * alignment)
    if best is not None:
        return best[1]
    return end


def _highest_gap(
    taken: Sequence[tuple[int, int]], size: int, alignment: int, ceiling: int
) -> int | None:
    """Highest place below the ceiling between sorted pieces; None where there is none."""
    best: int | None = None
    end = 0
    for start, stop in (*taken, (ceiling, ceiling)):
        place = (min(start, ceiling) - size) // alignment * alignment
        if place >= end:
            best = place
        end = max(end, stop)
    return best
