"""Values for tests of single steps: ends, neighbours of ends, ties, noise.

    %2 = right_shift(%1, 5)     %1 in [-900, 900]: -900, -899, 899, 900, -1, 0, 1, multiples of 32
                                and of 16, each with both neighbours, and numbers in between

What is interesting of a result is traced back through elementwise operators to their operands, so
that ties are met in steps that compute several of them at once; ties behind a product are met by
numbers in between only. Numbers about some bits of a value (``x & 65535``, ``x >> 16``) are joined
to numbers about all. Values are mixed element by element: one tensor holds many cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Dataflow, Step, Value
from compiler.ir.ty import is_float
from compiler.ops.number_format import storage_dtype
from compiler.ops.qnn.requantize import RESCALING, factors_in
from compiler.ranges.interval import Interval

Array = NDArray[Any]

MIXED, BETWEEN, LOWEST, HIGHEST = range(4)
ROUNDS: Final = (MIXED, BETWEEN, LOWEST, HIGHEST)
"""Kinds of rounds; beyond these the first two take turns."""

TIES = 64
LIMITS = 1024
"""Kinds of interesting numbers, and how many of a value are kept, by a random choice: ties of
rounding, and numbers that are compared, of which each decides about something."""
_SPREAD: Final = 12
"""Ties of one rounding, beside those next to 0."""
_TABLE: Final = 1 << 16
"""Interesting numbers of a value, a column for each channel with points of its own."""
_INT64: Final = (-(1 << 63) + 1, (1 << 63) - 1)
_SAME: Final = frozenset(("cast", "nn.relu", "copy", "clip", "maximum", "minimum"))
_EXACT: Final = ("add", "subtract", "left_shift", "nn.bias_add")
_COMPARED: Final = ("clip", "maximum", "minimum", "equal", "not_equal", "less", "greater")
"""Prefixes of the names of comparisons."""


class Drives:
    """Numbers for the values of one flow.

    Args:
        flow: steps with their operands.
        bounds: of every integer in it.
        rng: draws.
    """

    def __init__(
        self, flow: Dataflow, bounds: Mapping[Value, Interval], rng: np.random.Generator
    ) -> None:
        self._bounds = bounds
        self._rng = rng
        self._points: dict[tuple[Value, int], list[Array]] = {}
        self._fields: dict[Value, list[tuple[int, list[int]]]] = {}
        self._tables: dict[Value, tuple[Array, Array, Array]] = {}
        self._drawn: dict[Value, int] = {}
        self._deciding: dict[Value, int] = {}
        with np.errstate(all="ignore"):
            # Bodies first: what is interesting in a turn is traced out of the loop.
            for step in (step for one in reversed(flow.flows()) for step in reversed(one.steps)):
                for place, arg in enumerate(step.args):
                    for kind in (TIES, LIMITS) if arg in bounds else ():
                        points = self._points.setdefault((arg, kind), [])
                        points += self._traced(kind, step, place, arg)

    def draw(self, value: Value, kind: int) -> Array:
        """An array of the value's shape and dtype, within its bounds.

        Args:
            kind: of round; floats are drawn the same way in each.
        """
        shape = value.type.concrete_shape
        dtype = storage_dtype(value.type.dtype)
        if value not in self._bounds:
            return np.asarray(self._rng.normal(size=shape) * 4).astype(dtype)
        low, high, table = self._tables.get(value) or self._tabled(value)
        if kind in (LOWEST, HIGHEST):
            return np.broadcast_to((low, high)[kind == HIGHEST], shape).astype(dtype)
        if kind == BETWEEN:
            return self._rng.integers(low, high, shape, endpoint=True).astype(dtype)
        count = int(np.prod(shape))
        if count < len(table):
            index = self._next(value, count, len(table)).reshape(shape)
        else:
            index = self._rng.integers(len(table), size=shape, dtype=np.uint16)
        if table.size == len(table):
            return np.asarray(table.reshape(-1)[index])
        places = np.ogrid[tuple(slice(n) for n in shape)]
        along = [p if n > 1 else 0 for p, n in zip(places, table.shape[1:])]
        return np.asarray(table[(index, *along)])

    def _next(self, value: Value, count: int, size: int) -> Array:
        """Return so many numbers of a small tensor that every number has its turn."""
        last = self._deciding[value]
        begun = self._drawn.get(value, 0)
        self._drawn[value] = begun + count
        order = np.random.default_rng([size, begun // size]).permutation(size)
        # Numbers that decide something stand last in the table, and are the first to be drawn.
        order = np.concatenate([order[order >= size - last], order[order < size - last]])
        return order[(begun + self._rng.permutation(count)) % size]

    def _tabled(self, value: Value) -> tuple[Array, Array, Array]:
        bounds = self._bounds[value]
        low, high = (
            np.asarray(np.clip(ends, *_INT64), np.int64)
            for ends in np.broadcast_arrays(bounds.low, bounds.high)
        )
        known = [np.broadcast_to(np.int64(n), (1,) * (low.ndim + 1)) for n in (-1, 0, 1)]
        rows = [low[None], high[None], low[None] + (low < high), high[None] - (low < high)]
        limits = self._limits_behind(value)
        rows += [*known, *self._points.pop((value, TIES), ())]
        deciding = sum(map(len, limits))
        # Few numbers decide something: they are a third of the table.
        if not deciding:
            times = 1
        else:
            times = max(1, sum(map(len, rows)) // (2 * deciding))
        rows += limits * times
        self._deciding[value] = deciding * times
        shape = np.broadcast_shapes(*(row.shape[1:] for row in rows))
        if int(np.prod(shape)) * sum(map(len, rows)) > 4 * _TABLE:
            low, high = (end.reshape((1,) * low.ndim) for end in (low.max(), high.min()))
            if low > high:
                low, high = bounds.scalar(low.ndim).low, bounds.scalar(low.ndim).high
            rows = [low[None], high[None], *known]
            rows = [np.asarray(row, np.int64) for row in rows]
            shape = low.shape
            self._deciding[value] = 0
        table = np.concatenate([np.broadcast_to(row, (len(row), *shape)) for row in rows])
        stored = np.clip(table, low, high).astype(storage_dtype(value.type.dtype))
        self._tables[value] = low, high, stored
        return self._tables[value]

    # ---- points ------------------------------------------------------------------------------

    def _limits_behind(self, value: Value) -> list[Array]:
        """The numbers that decide something about a value, those about some of its bits joined."""
        points = self._points.setdefault((value, LIMITS), [])
        joined: dict[int, list[int]] = {0: [0]}
        for mask, parts in self._fields.pop(value, ()):
            for known, numbers in list(joined.items())[:TIES]:
                if not known & mask:
                    both = joined.setdefault(known | mask, [])
                    both += [n | part for n in numbers for part in parts][: LIMITS - len(both)]
        del joined[0]
        for numbers in filter(None, joined.values()):
            points.append(np.array(numbers, np.int64).reshape(-1, *(1,) * len(value.type.shape)))
        return points

    def _traced(self, kind: int, step: Step, place: int, arg: Value) -> list[Array]:
        """Numbers of an operand that are interesting for one step, and for those behind it."""
        if step.body is not None:
            # A state and a constant are what they are in a turn, an input has an axis of turns.
            rank = len(arg.type.shape)
            inner = step.body.inputs[place]
            return [
                points.reshape(len(points), *(1,) * (rank + 1 - points.ndim), *points.shape[1:])
                for points in self._points.get((inner, kind), ())
            ]
        own = self._limits if kind == LIMITS else self._ties
        if len(step.results) == 1:
            found = list(own(step, place, arg))
        else:
            found = []
        if kind == LIMITS:
            behind = [p for r in step.results for p in self._limits_behind(r)]
        else:
            behind = [p for r in step.results for p in self._points.get((r, kind), ())]
        field = _field(step, place) if kind == LIMITS else None
        if field is not None:
            up, mask = field
            parts = {int(n) << up & mask for points in behind for n in points.reshape(-1)}
            self._fields.setdefault(arg, []).append((mask, sorted(parts)[:LIMITS]))
            behind = []
        back = _inverse(step, place)
        for points in behind:
            if back is not None and points.ndim == len(arg.type.shape) + 1:
                found += [_whole(back(points), step)]
            elif points.size == len(points):
                found.append(points.reshape(-1, *(1,) * len(arg.type.shape)))
        fitting = [p for p in found if _fits(p, arg.type.concrete_shape)]
        if not fitting:
            return []
        shape = np.broadcast_shapes(*(p.shape[1:] for p in fitting))
        every = np.concatenate([np.broadcast_to(p, (len(p), *shape)) for p in fitting])
        most = min(kind, _TABLE // max(1, int(np.prod(shape))))
        if len(every) > most:
            every = every[self._rng.choice(len(every), most, replace=False)]
        return [every]

    def _ties(self, step: Step, place: int, arg: Value) -> Iterator[Array]:
        """Operands at which the rounding of one step turns."""
        back = _inverse(step, place)
        # Of two operands: a concatenation may have 100,000.
        data = [other.data for other in step.args[:2] if other is not arg]
        if step.name in RESCALING and place == 0:
            if back is not None:
                yield _beside(back(self._steps_of(step.result) + 0.5))
        elif step.name == "right_shift" and place == 0 and data and data[0] is not None:
            assert back is not None
            yield _beside(back(self._steps_of(step.result)))
            yield _beside(back(self._steps_of(step.result) + 0.5))
        elif "divide" in step.name and place == 0 and data and data[0] is not None:
            assert back is not None
            yield _beside(back(self._steps_of(step.result)))

    def _limits(self, step: Step, place: int, arg: Value) -> Iterator[Array]:
        """Constants that one step compares an operand with."""
        if step.name.startswith(_COMPARED):
            limits = [a.data for a in step.args if a is not arg and a.data is not None]
            if step.name == "clip":
                limits = [np.asarray(step.attrs.a_min), np.asarray(step.attrs.a_max)]
            for limit in limits:
                yield _beside(_lifted(limit, len(arg.type.shape)))

    def _steps_of(self, result: Value) -> Array:
        """Some integers of a result, those next to 0 among them, one more axis in front."""
        bounds = self._bounds[result]
        low, high = float(bounds.lowest), float(bounds.highest)
        many = np.floor(self._rng.uniform(low, high + 1, _SPREAD))
        near = np.array([-2.0, -1.0, 0.0, 1.0, low, high - 1])
        return np.concatenate([near, many]).reshape(-1, *(1,) * len(result.type.shape))


def _fits(points: Array, shape: tuple[int, ...]) -> bool:
    return points.ndim == len(shape) + 1 and all(
        n in (1, size) for n, size in zip(points.shape[1:], shape)
    )


def _lifted(data: Array, rank: int) -> Array:
    """A constant operand with one more axis in front of the result's."""
    if data.ndim <= rank:
        return data.reshape(1, *(1,) * (rank - data.ndim), *data.shape)
    return data


def _beside(points: Array) -> Array:
    """The integers around some numbers."""
    whole = _floor(points)
    return np.concatenate([whole - 1, whole, whole + 1])


def _floor(points: Array) -> Array:
    if points.dtype.kind == "f":
        points = np.clip(np.floor(points), -(2.0**62), 2.0**62)
    return points.astype(np.int64)


def _whole(points: Array, step: Step) -> Array:
    """Return the points as integers; where a step rounds, the integers around them."""
    found = _floor(points)
    if step.name in _SAME or step.name in _EXACT:
        return found
    return np.concatenate([found, found + 1])


def _field(step: Step, place: int) -> tuple[int, int] | None:
    """The bits of an operand that a result shows, and by how many it is shifted to the right."""
    others = [arg.data for arg in step.args if arg is not step.args[place]]
    if len(others) != 1 or others[0] is None or not others[0].size or np.ptp(others[0]):
        return None
    number = int(others[0].flat[0])
    if step.name == "bitwise_and":
        return 0, number
    if step.name == "bitwise_or":
        return 0, ~number
    if step.name == "right_shift" and place == 0 and 0 <= number < 64:
        return number, -1 << number
    return None


def _inverse(step: Step, place: int) -> Callable[[Array], Array] | None:
    """Results -> numbers of one operand that give about them; None where there is no such thing."""
    rank = len(step.args[place].type.shape)
    if step.name == "nn.bias_add" and step.args[1].data is not None and place == 0:
        shape = [1] * (rank + 1)
        shape[1 + step.attrs.axis % rank] = -1
        bias = step.args[1].data.reshape(shape).astype(np.int64)
        return lambda points: points - bias
    if step.name in RESCALING and place == 0:
        found = factors_in(step)
        if found is None:
            return None
        scale, bias = (_lifted(each, rank) for each in (found.scale, found.bias))
        safe = np.where(scale == 0, 1, scale)
        zero_point = getattr(step.attrs, "zero_point", 0)
        return lambda points: (points - zero_point) / safe - bias
    others = [arg.data for arg in step.args[:3] if arg is not step.args[place]]
    if step.name in _SAME:
        return lambda points: points
    if step.name == "multiply" and not others:  # a square
        return lambda points: np.concatenate([root := np.sqrt(np.abs(points)), -root])
    if len(others) != 1 or others[0] is None or is_float(str(others[0].dtype)):
        return None
    other = _lifted(others[0], rank).astype(np.int64 if step.name in _EXACT else np.float64)
    if step.name == "add":
        return lambda points: points - other
    if step.name == "subtract":
        return lambda points: points + other if place == 0 else other - points
    if place == 0 and step.name == "left_shift":
        return lambda points: _floor(points) >> np.clip(other, 0, 63)
    if place == 0 and step.name == "right_shift":
        return lambda points: points * np.exp2(other)
    if step.name == "multiply" or "divide" in step.name:
        safe = np.where(other == 0, 1, other)
        return lambda points: points / safe if step.name == "multiply" else points * safe
    return None
