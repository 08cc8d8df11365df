"""Check a certificate of bounds with one rule a word: ``python -m compiler.proof.checker FILE``.

A certificate lists every integer word that a module computes, with bounds of each value. The
checker derives the bounds of each result again, from the bounds that are stated for the operands:

    %3 = add(%1, %2)     %1 in [0, 9], %2 in [-1, 5]: the stated bounds of %3 must hold [-1, 14]

It accepts, or names the first bound that does not follow. Inputs of the module may be anything that
their dtypes hold, NaN and infinities included. Every partial sum of a product or a reduction, in
any order, must fit the dtype that it is added up in.

The file imports numpy and the standard library only, and shares no code with ``compiler.ranges``.
Trusted are this file, numpy, and ``certificate.py``, which writes the words of a module down.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import product
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Bounds = tuple[Any, Any]
"""Lower and upper bounds of a tensor: numbers, or arrays that broadcast to its shape."""
Attrs = dict[str, Any]

FORMAT: Final = 1
MOST_ELEMENTS: Final = 1 << 16
"""The elements of a larger tensor have one pair of bounds behind a move."""
_RADICANDS: Final = 1 << 62
_MALFORMED: Final = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError)
ANY_FLOAT: Final = (-math.inf, math.inf)


class RefusedError(Exception):
    """A bound that does not follow, or a file that is not a certificate."""


@dataclass(slots=True, eq=False)
class Tensor:
    """A value of the certificate.

    Attributes:
        low, high: stated bounds, arrays of Python's numbers, whose axes are 1 or as long as the
            tensor's; of a constant its elements.
        data: elements of a constant.
        known: whether it is an input, a constant, or the result of a step that was checked.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: Array
    high: Array
    data: Array | None = None
    known: bool = False

    @property
    def is_float(self) -> bool:
        """Return whether it holds floats."""
        return self.dtype.startswith("float")

    @property
    def ends(self) -> tuple[Any, Any]:
        """The least lower and the greatest upper bound."""
        if self.low.size:
            return (self.low.min(), self.high.max())
        return (0, 0)

    def along(self, axes: Sequence[int]) -> tuple[Array, Array]:
        """One pair of bounds for all elements along the axes, which become 1 long."""
        kept: Any = {"axis": tuple(axes), "keepdims": True}
        return numbers(self.low.min(**kept)), numbers(self.high.max(**kept))

    def per(self, axis: int) -> tuple[Array, Array]:
        """Bounds of each index of one axis, as two vectors."""
        low, high = self.along([k for k in range(len(self.shape)) if k != axis])
        size = (self.shape[axis],)
        return np.broadcast_to(low.reshape(-1), size), np.broadcast_to(high.reshape(-1), size)


Rule = Callable[[Attrs, Sequence[Tensor], Tensor], Bounds]
"""``rule(attrs, operands, result)``: bounds of the result for all operands within theirs."""


def numbers(value: Any) -> Array:
    """An array of Python's numbers, which never wrap."""
    return np.array(value, object)


def range_of(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype or bool."""
    if dtype == "bool":
        return 0, 1
    digits = int(dtype.removeprefix("u").removeprefix("int"))
    if dtype.startswith("u"):
        return 0, (1 << digits) - 1
    return -(1 << (digits - 1)), (1 << (digits - 1)) - 1


def around(candidates: Sequence[Any]) -> Bounds:
    """Bounds that hold all candidates."""
    arrays = [numbers(each) for each in candidates]
    return reduce(np.minimum, arrays), reduce(np.maximum, arrays)


def require(holds: Any, what: str) -> None:
    """Refuse the certificate if a condition does not hold."""
    if not holds:
        raise RefusedError(what)


def require_fits(low: Any, high: Any, dtype: str, what: str) -> None:
    """Refuse numbers that a dtype does not hold."""
    least, most = range_of(dtype)
    fits = least <= low and high <= most
    require(fits, f"{what} is in [{low}, {high}], which {dtype} does not hold")


def _product(a: Tensor, b: Tensor) -> Bounds:
    """The extreme corners; a square is never negative."""
    low, high = around([x * y for x, y in product((a.low, a.high), (b.low, b.high))])
    if a is not b:
        return low, high
    low, high = around([a.low * a.low, a.high * a.high])
    return np.where(_bools((a.low <= 0) & (a.high >= 0)), 0, low), high


def _quotient(a: Tensor, b: Tensor) -> Bounds:
    """Monotone on both sides of the divisor 0, over which the quotient is 0."""
    near = [np.maximum(np.minimum(b.high, number), b.low) for number in (-1, 0, 1)]
    found: list[Any] = []
    for divisor in map(numbers, (b.low, b.high, *near)):
        is_zero = _bools(divisor == 0)
        safe = numbers(np.where(is_zero, 1, divisor))
        found += [np.where(is_zero, 0, numbers(end // safe)) for end in (a.low, a.high)]
    return around(found)


def _bools(condition: Any) -> Array:
    return np.asarray(condition).astype(bool)


def _truth(always: Any, never: Any) -> Bounds:
    """Bounds of a bool that is always or never true."""
    return numbers(_bools(always).astype(int)), numbers(1 - _bools(never).astype(int))


def _equal(a: Tensor, b: Tensor) -> Bounds:
    same = (a.low == a.high) & (b.low == b.high) & (a.low == b.low)
    return _truth(same, (a.low > b.high) | (b.low > a.high))


def _where(chosen: Tensor, a: Tensor, b: Tensor) -> Bounds:
    always = _bools(chosen.low == 1)
    never = _bools(chosen.high == 0)
    low = np.where(always, a.low, np.where(never, b.low, np.minimum(a.low, b.low)))
    high = np.where(always, a.high, np.where(never, b.high, np.maximum(a.high, b.high)))
    return low, high


ELEMENTWISE: dict[str, Callable[..., Bounds]] = {
    "add": lambda a, b: (a.low + b.low, a.high + b.high),
    "subtract": lambda a, b: (a.low - b.high, a.high - b.low),
    "multiply": _product,
    "minimum": lambda a, b: (np.minimum(a.low, b.low), np.minimum(a.high, b.high)),
    "maximum": lambda a, b: (np.maximum(a.low, b.low), np.maximum(a.high, b.high)),
    "floor_divide": _quotient,
    "less": lambda a, b: _truth(a.high < b.low, a.low >= b.high),
    "equal": _equal,
    "where": _where,
}


def elementwise(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Operands are broadcast to the shape of the result."""
    shapes = [arg.shape for arg in args]
    require(np.broadcast_shapes(*shapes) == result.shape, f"{shapes} give no {result.shape}")
    return ELEMENTWISE[attrs["word"]](*args)


def bitwise(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """ "and": bits that both ends share are fixed behind a mask, else no more than a natural
    operand; "or": no less than both; else of the bits of both."""
    lows, highs = zip(*(arg.ends for arg in args))
    natural = [high for low, high in zip(lows, highs) if low >= 0]
    if attrs["word"] == "bitwise_or":
        low = max(lows) if len(natural) == len(args) else min(lows)
        return low, -1 if min(highs) < 0 else (1 << int(max(highs)).bit_length()) - 1
    first, second = (arg.ends for arg in args)
    for (mask, most), (low, high) in ((first, second), (second, first)):
        if mask == most and (low >= 0 or high < 0):
            free = int(low ^ high).bit_length()
            fixed = (low >> free << free) & mask
            return fixed, fixed | (((1 << free) - 1) & mask)
    if natural:
        return 0, min(natural)
    return -(1 << int(-min(lows) - 1).bit_length()), max(highs)


def shift(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """The corners; counts lie in [0, bits)."""
    data, count = args
    least, most = range_of(result.dtype)
    fewest, largest = count.ends
    require(fewest >= 0 and largest < (most - least).bit_length(), "it shifts by too many bits")
    corners = product((data.low, data.high), (count.low, count.high))
    if attrs["word"] == "left_shift":
        return around([x << n for x, n in corners])
    return around([x >> n for x, n in corners])


def isqrt(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Monotone, of 62 bits."""
    low, high = args[0].ends
    require(low >= 0 and high < _RADICANDS, f"the radicand is in [{low}, {high}]")
    return math.isqrt(low), math.isqrt(high)


def lookup(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """The entries between those of the smallest and the largest operand."""
    source, table = args
    least = range_of(source.dtype)[0]
    return _entries(table, source.ends[0] - least, source.ends[1] - least)


def _entries(table: Tensor, first: int, last: int) -> Bounds:
    """Bounds of the entries between two places, which are limited to the table."""
    if table.data is None:
        return table.ends
    entries = table.data.reshape(-1)
    begin, end = (min(max(int(place), 0), entries.size - 1) for place in (first, last))
    return int(entries[begin : end + 1].min()), int(entries[begin : end + 1].max())


def _weighted(weight: Array, low: Array, high: Array) -> list[Array]:
    """Lowest and highest partial sum, then lowest and highest sum, of each output.

    Args:
        weight: (groups, outputs, terms, taps); all taps of a term have its bounds.
        low, high: (groups, terms).
    """
    reach = max((abs(int(end)) for end in (*low.flat, *high.flat)), default=0)
    if weight.size:
        largest = max(abs(int(weight.min())), abs(int(weight.max())))
    else:
        largest = 0
    room = 2 * max(reach, 1) * max(largest, 1) * max(math.prod(weight.shape[2:]), 1)
    kind: Any = np.float64 if room < 1 << 53 else np.int64 if room < 1 << 62 else object
    wide = weight.astype(object if kind is object else np.int64)
    positive = np.maximum(wide, 0).sum(axis=3).astype(kind)
    negative = np.minimum(wide, 0).sum(axis=3).astype(kind)
    below = np.minimum(low, 0)
    above = np.maximum(high, 0)
    on_positive = np.stack([below, above, low, high], -1).astype(kind)
    on_negative = np.stack([above, below, high, low], -1).astype(kind)
    sums = positive @ on_positive + negative @ on_negative
    whole = sums if kind is object else sums.astype(np.int64)
    return [numbers(whole[..., k].reshape(-1)) for k in range(4)]


def _added(args: Sequence[Tensor], result: Tensor, sums: Sequence[Any], padded: bool) -> Bounds:
    """Bounds of sums whose partial sums fit; padding leaves terms out."""
    for arg in args:
        require_fits(*arg.ends, result.dtype, f"the operand {arg.name}")
    if sums[0].size:
        require_fits(sums[0].min(), sums[1].max(), result.dtype, "a partial sum")
    if padded:
        return (sums[0], sums[1])
    return (sums[2], sums[3])


def _of_two(args: Sequence[Tensor], result: Tensor, terms: int, padded: bool) -> Bounds:
    """Sums of products of two computed tensors."""
    corners = [x * y for x, y in product(args[0].ends, args[1].ends)]
    sums = (min(*corners, 0), max(*corners, 0), min(corners), max(corners))
    low, high = _added(args, result, [numbers(terms * end) for end in sums], padded)
    return low.item(), high.item()


def convolution(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Each output channel with its own weights."""
    data, kernel = args
    groups = attrs["groups"]
    padded = attrs["padded"]
    outputs, terms, *taps = kernel.shape
    fit = data.shape[1] == groups * terms and outputs == result.shape[1]
    require(fit, "the channels do not fit")
    if kernel.data is None:
        return _of_two(args, result, terms * math.prod(taps), padded)
    low, high = (end.reshape(groups, terms) for end in data.per(1))
    weight = kernel.data.reshape(groups, outputs // groups, terms, -1)
    least, most = _added(args, result, _weighted(weight, low, high), padded)
    return least.reshape(1, -1, 1, 1), most.reshape(1, -1, 1, 1)


def matmul(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Each column of a constant on the right, or row of one on the left."""
    left, right = args
    terms = left.shape[-1]
    require(terms == right.shape[-2], f"{terms} terms meet {right.shape[-2]}")
    if right.data is not None:
        known = np.swapaxes(right.data, -1, -2)
        ends = left.per(len(left.shape) - 1)
    elif left.data is not None:
        known = left.data
        ends = right.per(len(right.shape) - 2)
    else:
        return _of_two(args, result, terms, False)
    *lead, units, _ = known.shape
    weight = known.reshape(math.prod(lead), units, terms, 1)
    low, high = (np.broadcast_to(end, (len(weight), terms)) for end in ends)
    least, most = _added(args, result, _weighted(weight, low, high), False)
    if right.data is None:
        shape = (*lead, units, 1)
    else:
        shape = (*lead, 1, units)
    return least.reshape(shape), most.reshape(shape)


def reduction(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """The sum, the maximum or the position of the maximum of the elements along some axes."""
    data = args[0]
    axes = tuple(attrs["axes"])
    count = math.prod(data.shape[axis] for axis in axes)
    if attrs["word"] == "argmax":
        return 0, count - 1
    ends = [numbers(end.max(axis=axes, keepdims=True)) for end in (data.low, data.high)]
    if attrs["word"] == "sum":
        ends = [numbers(count * end) for end in data.along(axes)]
        _check_sum(ends[0].min(), ends[1].max(), count, result.dtype)
    shape = [n for axis, n in enumerate(ends[0].shape) if attrs["keepdims"] or axis not in axes]
    return ends[0].reshape(shape), ends[1].reshape(shape)


def _check_sum(low: Any, high: Any, count: int, dtype: str) -> None:
    """Partial sums have at least 32 bits."""
    if range_of(dtype)[1] >= range_of("int32")[1]:
        wide = dtype
    else:
        wide = "int32"
    require_fits(min(low, 0), max(high, 0), wide, f"a sum of {count} elements")


def max_pool(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """One of the elements; the smallest number of the dtype if a window may meet none."""
    low, high = args[0].along((2, 3))
    for axis in (0, 1):
        starts = np.arange(result.shape[2 + axis], dtype=object) * attrs["strides"][axis]
        starts = starts - attrs["padding"][axis]
        step = attrs["dilation"][axis]
        first = np.maximum(-(starts // step), 0)
        beyond = starts + first * step >= args[0].shape[2 + axis]
        if np.any((first >= attrs["pool_size"][axis]) | beyond):
            low = np.minimum(low, range_of(result.dtype)[0])
    return low, high


def avg_pool(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Between the elements of a window, and 0 if it may reach beyond the data.

    The operator is no word: as words, windows at an edge would have as many elements as others.
    """
    low, high = args[0].along(attrs["spatial"])
    dtype = "int64" if result.dtype == "uint64" else result.dtype
    count = math.prod(attrs["pool_size"])
    _check_sum(count * low.min(), count * high.max(), count, dtype)
    if attrs["padded"]:
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    return low.transpose(attrs["order"]), high.transpose(attrs["order"])


def _padded(attrs: Attrs, data: Array, value: Array) -> Array:
    width = attrs["pad_width"]
    shape = [n + before + behind for n, (before, behind) in zip(data.shape, width, strict=True)]
    found = np.full(shape, value.reshape(()), object)
    found[tuple(slice(w[0], w[0] + n) for n, w in zip(data.shape, width))] = data
    return found


MOVES: dict[str, Callable[..., Array]] = {
    "reshape": lambda attrs, x: x.reshape(attrs["shape"]),
    "broadcast_to": lambda attrs, x: np.broadcast_to(x, attrs["shape"]),
    "concatenate": lambda attrs, *parts: np.concatenate(parts, attrs["axis"]),
    "strided_slice": lambda attrs, x: x[tuple(slice(*each) for each in attrs["slices"])],
    "nn.pad": _padded,
}


def move(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """The elements of the operands, one by one if they are few; a transpose axis by axis."""
    if attrs["word"] == "transpose":
        return args[0].low.transpose(attrs["axes"]), args[0].high.transpose(attrs["axes"])
    largest = max(math.prod(value.shape) for value in (*args, result))
    if largest > MOST_ELEMENTS or (len(args) == 1 and args[0].low.size == 1):
        lows, highs = zip(*(arg.ends for arg in args))
        return min(lows), max(highs)
    function = MOVES[attrs["word"]]
    low = function(attrs, *(np.broadcast_to(arg.low, arg.shape) for arg in args))
    high = function(attrs, *(np.broadcast_to(arg.high, arg.shape) for arg in args))
    require(low.shape == result.shape, f"it has the shape {low.shape}, not {result.shape}")
    return low, high


def take(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Any element along the axis; of a table, the entries between the extreme places."""
    data, places = args
    axis = attrs["axis"]
    if data.data is not None and len(data.shape) == 1:
        wraps = attrs["mode"] == "wrap"
        return _entries(data, *((0, data.shape[0]) if wraps else places.ends))
    low, high = data.along([axis])
    between = (1,) * (len(places.shape) - attrs["batch_dims"])
    shape = (*low.shape[:axis], *between, *low.shape[axis + 1 :])
    return low.reshape(shape), high.reshape(shape)


def scatter(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Data and rows of updates; sums of as many updates as can meet at a row."""
    data, places, updates = args
    first = data.along([0])
    new = updates.along([0])
    small = max(math.prod(arg.shape) for arg in args) <= MOST_ELEMENTS
    rows = None
    if small and bool(np.all(places.low == places.high)):
        wide = np.broadcast_to(places.low, places.shape).reshape(-1)
        rows = [min(max(int(n), 0), data.shape[0] - 1) for n in wide]
    if attrs["mode"] == "add":
        known = rows is not None and len(rows) and places.data is not None
        if known:
            most = int(np.bincount(np.array(rows)).max())
        else:
            most = places.shape[1]
        low = first[0] + most * np.minimum(new[0], 0)
        high = first[1] + most * np.maximum(new[1], 0)
        require_fits(low.min(), high.max(), result.dtype, f"a sum of {most} updates")
        return low, high
    combine: Callable[..., Any] | None = {"max": np.maximum, "min": np.minimum}.get(attrs["mode"])
    if rows is None:
        if not math.prod(updates.shape):
            return first
        return np.minimum(first[0], new[0]), np.maximum(first[1], new[1])
    found = []
    for old, row in ((data.low, updates.low), (data.high, updates.high)):
        found.append(np.broadcast_to(old, data.shape).copy())
        for place, update in zip(rows, np.broadcast_to(row, updates.shape)):
            found[-1][place] = update if combine is None else combine(found[-1][place], update)
    return found[0], found[1]


def cast(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """The number itself; a bool says whether it is not 0.

    A float is truncated and saturated, and NaN becomes 0.
    """
    source = args[0]
    if result.is_float:
        return _real(lambda x: x, result.dtype, args, lambda x: x)
    if not source.is_float:
        if result.dtype != "bool":
            return source.low, source.high
        zero = (source.low == 0) & (source.high == 0)
        return _truth((source.low > 0) | (source.high < 0), zero)
    require(result.dtype != "bool", "a float becomes a bool")
    least, most = range_of(result.dtype)
    inside = [min(max(end, least), most) for end in source.ends]
    return min(math.trunc(inside[0]), 0), max(math.trunc(inside[1]), 0)


def _real(
    function: Callable[..., Any], dtype: str, args: Sequence[Tensor], exact: Any = None
) -> Bounds:
    """A monotone function at the corners; anything if it is NaN at one.

    Args:
        exact: the same of fractions: a result that is rounded is one unit wider to both sides.
    """
    kind = np.dtype(dtype).type
    lows = []
    highs = []
    for corner in product(*(arg.ends for arg in args)):
        value = kind(function(*map(kind, corner)))
        if np.isnan(value):
            return ANY_FLOAT
        rounded = exact is not None and all(map(math.isfinite, corner))
        if rounded and np.isfinite(value):
            rounded = exact(*map(Fraction, corner)) != Fraction(float(value))
        lows.append(float(np.nextafter(value, kind(-math.inf)) if rounded else value))
        highs.append(float(np.nextafter(value, kind(math.inf)) if rounded else value))
    return min(lows), max(highs)


def _half_away(x: Any) -> Any:
    whole = np.trunc(x)
    if np.isfinite(x):
        return whole + np.sign(x) * (np.abs(x - whole) >= 0.5)
    return x


_EXACT: Final[dict[str, Callable[..., Any]]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}
_MOVED: Final = ("reshape", "transpose", "squeeze", "expand_dims", "copy")
_HINTS: Final = ("annotation.cast_hint", "annotation.stop_fusion")


def real(attrs: Attrs, args: Sequence[Tensor], result: Tensor) -> Bounds:
    """Bounds of floats; anything where nothing is known."""
    word = attrs["word"]
    if word in _MOVED or word in _HINTS:
        return args[0].ends
    if word == "clip":
        low, high = (np.dtype(result.dtype).type(attrs[key]) for key in ("a_min", "a_max"))
        return _real(lambda x: np.maximum(np.minimum(x, high), low), result.dtype, args)
    if word in ("round", "round_even"):
        return _real(_half_away if word == "round" else np.rint, result.dtype, args)
    if word in _EXACT:
        return _real(_EXACT[word], result.dtype, args, _EXACT[word])
    return ANY_FLOAT


RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys((*MOVES, "transpose"), move),
    **dict.fromkeys(("bitwise_and", "bitwise_or"), bitwise),
    **dict.fromkeys(("left_shift", "right_shift"), shift),
    **dict.fromkeys(("sum", "max", "argmax"), reduction),
    **dict.fromkeys(("nn.matmul", "nn.batch_matmul"), matmul),
    "nn.conv2d": convolution,
    "nn.max_pool2d": max_pool,
    "nn.avg_pool2d": avg_pool,
    "isqrt": isqrt,
    "lookup": lookup,
    "take": take,
    "scatter_nd": scatter,
    "cast": cast,
}


class Checker:
    """Checks the steps of one certificate in order.

    Attributes:
        derived: how many bounds were derived again.
    """

    def __init__(self, program: dict[str, Any], constants: dict[str, Array]) -> None:
        require(program["format"] == FORMAT, f"it has the format {program['format']!r}")
        self._program = program
        self._values = [_stated(*row) for row in program["values"]]
        self.derived = 0
        for number, key in program["constants"].items():
            _hold(self._values[int(number)], constants[key])

    def run(self) -> None:
        """Check every bound.

        Raises:
            RefusedError: a bound does not follow.
        """
        for number in self._program["inputs"]:
            value = self._values[number]
            if value.is_float:
                anything = ANY_FLOAT
            else:
                anything = range_of(value.dtype)
            self._follows(value, anything)
        self._check(self._program["steps"])

    def _check(self, steps: Sequence[Any]) -> None:
        for word, attrs, operands, results in steps:
            args = [self._values[number] for number in operands]
            made = [self._values[number] for number in results]
            try:
                for arg in args:
                    require(arg.known, f"it reads {arg.name}, which nothing computes before")
                if word == "scan":
                    self._loop(attrs, args, made)
                    continue
                (result,) = made
                floats = result.is_float or any(arg.is_float for arg in args)
                require(result.is_float or word == "cast" or not floats, "floats become integers")
                require(floats or word in RULES, "it is no word")
                derive = real if floats and word != "cast" else RULES[word]
                self._follows(result, derive({**attrs, "word": word}, args, result))
            except RefusedError as error:
                raise RefusedError(f"{made[0].name}, {word}: {error}") from None

    def _follows(self, value: Tensor, ends: Bounds) -> None:
        """Take the stated bounds of a value, which must hold the derived ones."""
        require(not value.known, f"{value.name} is computed twice")
        value.known = True
        self.derived += 1
        if 0 in value.shape:
            return
        low, high = map(numbers, ends)
        if not value.is_float:
            require_fits(*value.ends, value.dtype, f"the stated bound of {value.name}")
        require(
            np.all(value.low <= low) and np.all(value.high >= high),
            f"{list(value.ends)} is stated of {value.name}, [{low.min()}, {high.max()}] follows",
        )

    def _loop(self, attrs: Attrs, args: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        """A loop: bounds of a state hold its first value and what the body makes of any state."""
        inner = [self._values[number] for number in attrs["inputs"]]
        outputs = [self._values[number] for number in attrs["outputs"]]
        states = attrs["states"]
        moving = attrs["states"] + attrs["moving"]
        fits = len(inner) == len(args) and len(outputs) == len(made) and attrs["length"] > 0
        require(fits, "it has other operands or results")
        for place, (value, arg) in enumerate(zip(inner, args)):
            if value.data is not None:
                require(value is arg, f"{value.name} is another constant")
            elif states <= place < moving:
                low, high = arg.along([0])
                self._follows(value, (low[0], high[0]))
            else:
                self._follows(value, (arg.low, arg.high))
        self._check(attrs["steps"])
        for place, (result, output) in enumerate(zip(made, outputs)):
            require(output.known, f"{output.name} is not computed")
            low, high = output.low, output.high
            if place < states:
                state = inner[place]
                holds = np.all(state.low <= low) and np.all(state.high >= high)
                require(holds, f"the next state {output.name} leaves the bounds of the state")
            self._follows(result, (low, high) if place < states else (low[None], high[None]))


def _stated(name: str, dtype: str, shape: Sequence[int], low: Any, high: Any) -> Tensor:
    """A value with its stated bounds."""
    ends = [numbers(end) for end in (low, high)]
    ends = [end.reshape((1,) * (len(shape) - end.ndim) + end.shape) for end in ends]
    for end in ends:
        fits = all(n in (1, size) for n, size in zip(end.shape, shape, strict=True))
        require(fits or 0 in shape, f"{name} has bounds of the shape {end.shape}")
    return Tensor(name, dtype, tuple(shape), ends[0], ends[1])


def _hold(value: Tensor, data: Array) -> None:
    """Give a constant its elements, and their bounds: of a large one along its longest axes."""
    require(data.shape == value.shape, f"{value.name} has the shape {data.shape}")
    value.data = data
    value.known = True
    low: Any = data
    high: Any = data
    if value.is_float:
        if data.size:
            ends = (float(data.min()), float(data.max()))
        else:
            ends = (0.0, 0.0)
        ends = ANY_FLOAT if any(map(math.isnan, ends)) else ends
        low, high = (np.full((1,) * data.ndim, end) for end in ends)
    while low.size > MOST_ELEMENTS:
        axis = int(np.argmax(low.shape))
        low = low.min(axis=axis, keepdims=True)
        high = high.max(axis=axis, keepdims=True)
    value.low = numbers(low)
    value.high = numbers(high)
    if not value.is_float and data.size:
        require_fits(*value.ends, value.dtype, value.name)


def check(file: Any) -> int:
    """Check a certificate.

    Args:
        file: path or binary stream.
    Returns:
        The number of bounds that were derived again.
    Raises:
        RefusedError: a bound does not follow, or the file is not a certificate.
        OSError: the file cannot be read.
    """
    try:
        with np.load(file, allow_pickle=False) as archive, np.errstate(all="ignore"):
            program = json.loads(archive["program"].tobytes())
            checker = Checker(program, {name: archive[name] for name in archive.files})
            checker.run()
    except (*_MALFORMED, RecursionError) as error:
        raise RefusedError(f"it is not a certificate: {type(error).__name__}: {error}") from error
    return checker.derived


def main(words: Sequence[str]) -> int:
    """Check the certificate that the command line names; 0 accepted, 1 refused, 2 not readable."""
    if len(words) != 1:
        print("usage: python -m compiler.proof.checker FILE", file=sys.stderr)
        return 2
    try:
        print(f"{words[0]}: {check(words[0])} bounds follow")
    except RefusedError as error:
        print(f"{words[0]}: REFUSED: {error}")
        return 1
    except OSError as error:
        print(f"error: {words[0]} cannot be read: {error.strerror}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
