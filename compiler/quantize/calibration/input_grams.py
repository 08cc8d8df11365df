"""InputGrams: for each weighted operator the products of what two taps of its weight read.

    products[g, k, l] = sum over all positions p of columns[g, k, p] * columns[g, l, p]

Measured on the float module, once per model: what adaptive rounding needs to know of the data, in
memory that does not grow with their number. Data are taken in steps of 2^-15 of the largest
magnitude of their channel, which are whole numbers, so all sums are exact: shards in any order and
any number of threads give the same bits. Of a large image some positions are counted. Weights with
very many taps are seen in blocks of at most MAX_TAPS, as if what one block reads had nothing to do
with another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Expr, Function, Tuple
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ops.rules.input_columns import (
    EVERY_POSITION,
    FQInputColumns,
    InputColumns,
    Window,
)
from compiler.qtypes.channel_ranges import ChannelRanges, Fits, InputGram
from compiler.quantize.calibration.kernels.choice import choose_kernels
from compiler.quantize.calibration.kernels.protocol import Kernels
from compiler.quantize.calibration.weighted_calls import weighted_calls

T = TypeVar("T")

MAX_TAPS: Final = 1536
"""Taps of one block: 18 MB of products."""

_STEPS: Final = 1 << 15

_POSITIONS: Final = 1024
"""Columns that are multiplied at a time, or more: products of few columns cost memory traffic and
hardly any arithmetic."""


def blocks_of(taps: int) -> int:
    """In how many equal blocks the taps of a weight are seen."""
    return next(n for n in range(1, taps + 1) if taps % n == 0 and taps // n <= MAX_TAPS)


_POSITIONS_OF_AN_IMAGE: Final = 256
"""At most so many, about: neighbouring positions are alike, images differ."""


@dataclass(frozen=True, slots=True, eq=False)
class InputGrams:
    """Products of all weighted operators in visiting order; empty arrays where there are none.

    Attributes:
        products: int64 (groups * blocks, taps of a block, taps of a block) of each operator.
        sums: int64 (groups * blocks, taps of a block) of each operator.
        counts: positions of each operator, int64.
        fits: weights that were fitted to the products of each operator.
    """

    products: Sequence[NDArray[np.int64]]
    sums: tuple[NDArray[np.int64], ...]
    counts: NDArray[np.int64]
    fits: tuple[Fits, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fits", tuple(Fits() for _ in self.counts))

    def merge(self, other: InputGrams) -> InputGrams:
        """Products of both shards together; exact, commutative and associative.

        Raises:
            CalibrationError: they are of different modules.
        """
        if [p.shape for p in self.products] != [p.shape for p in other.products]:
            raise CalibrationError("products of different modules cannot be merged")
        return InputGrams(
            tuple(a + b for a, b in zip(self.products, other.products, strict=True)),
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            self.counts + other.counts,
        )

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays, such as an .npz holds; no pickle. Products are symmetric: one half stays."""
        read = self.products
        halves = read if isinstance(read, _Halves) else _Halves.of(read)
        return {
            "gram_shapes": halves.shapes,
            "gram_products": halves.flat,
            "gram_sums": np.concatenate(
                [*(s.reshape(-1) for s in self.sums), np.zeros(0, np.int64)]
            ),
            "gram_counts": self.counts,
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> InputGrams | None:
        """Inverse of ``to_arrays``; None where the arrays hold none."""
        if "gram_shapes" not in arrays:
            return None
        shapes, flat, sums = (arrays[f"gram_{name}"] for name in ("shapes", "products", "sums"))
        ends = np.cumsum(shapes.prod(axis=1))
        parts = zip(np.split(sums, ends), shapes.tolist())  # behind the last end is an empty rest
        return InputGrams(
            _Halves(shapes, flat),
            tuple(part.reshape(shape) for part, shape in parts),
            np.asarray(arrays["gram_counts"]),
        )


class _Halves(Sequence[NDArray[np.int64]]):
    """Products, which are symmetric, by their upper halves; each is made whole when first read.

    Args:
        shapes: int64 (operators, 2): groups * blocks and taps of each.
        flat: int64: of each operator and group, row after row from the diagonal on.
    """

    def __init__(self, shapes: NDArray[np.int64], flat: NDArray[np.int64]) -> None:
        self.shapes, self.flat = shapes, flat
        groups, taps = shapes[:, 0], shapes[:, 1]
        self._ends = np.cumsum(groups * taps * (taps + 1) // 2).tolist()
        self._whole: dict[int, NDArray[np.int64]] = {}

    @staticmethod
    def of(products: Sequence[NDArray[np.int64]]) -> _Halves:
        """The halves of whole products."""
        shapes = np.asarray([one.shape[:2] for one in products], np.int64).reshape(-1, 2)
        rows = [_upper_half(one) for one in products]
        return _Halves(shapes, np.concatenate([*rows, np.zeros(0, np.int64)]))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: Any) -> Any:
        if index not in self._whole:
            self._whole[index] = self._made_whole(range(len(self))[index])
        return self._whole[index]

    def _made_whole(self, index: int) -> NDArray[np.int64]:
        groups, taps = self.shapes[index].tolist()
        begin = self._ends[index - 1] if index else 0
        half = self.flat[begin : self._ends[index]].reshape(groups, -1)
        whole = np.zeros((groups, taps, taps), np.int64)
        begin = 0
        for row in range(taps):
            stop = begin + taps - row
            whole[:, row, row:] = whole[:, row:, row] = half[:, begin:stop]
            begin = stop
        return whole


def _upper_half(products: NDArray[np.int64]) -> NDArray[np.int64]:
    """Row after row of each group from the diagonal on, flat."""
    rows = [products[:, row, row:] for row in range(products.shape[1])]
    return np.concatenate([products[:, 0:0].reshape(len(products), 0), *rows], axis=1).reshape(-1)


def column_rules(main: Function) -> list[InputColumns | None]:
    """How each weighted operator reads its data, in visiting order."""
    rules = [(call, FQInputColumns.get(call.op)) for call, _ in weighted_calls(main)]
    return [None if rule is None else rule(call) for call, rule in rules]


class GramCollector:
    """Runs over outputs of ``profile``: products of the columns of every weighted operator's data.

    Args:
        mod: result of ``prerequisite_optimize``.
        ranges: of the data of each weighted operator over all of the dataset.
        kernels: implementation; None chooses.
    """

    def __init__(
        self, mod: IRModule, ranges: Iterable[ChannelRanges], kernels: Kernels | None = None
    ) -> None:
        self._kernels = kernels or choose_kernels()
        main: Function = mod["main"]
        self._rules = column_rules(main)
        places: dict[Expr, int] = {}
        self._place: list[int] = []
        for call, _ in weighted_calls(main):
            self._place.append(places.setdefault(call.args[0], len(places)))
        self.profile = infer_module(IRModule.from_expr(Function(main.params, Tuple(tuple(places)))))
        self._units = [units_of(one) for one in ranges]
        self._products: list[NDArray[np.int64]] = []
        self._sums: list[NDArray[np.int64]] = []
        for rule in self._rules:
            groups, taps = (0, 0) if rule is None else blocked(rule)
            self._products.append(np.zeros((groups, taps, taps), np.int64))
            self._sums.append(np.zeros((groups, taps), np.int64))
        self._counts = np.zeros(len(self._rules), np.int64)
        self._held: dict[tuple[int, int], tuple[list[NDArray[Any]], int]] = {}

    def update(self, outputs: list[NDArray[Any]]) -> None:
        """Add one run.

        Raises:
            CalibrationError: a value is not finite, or beyond the ranges.
        """
        for index, rule in enumerate(self._rules):
            if rule is None:
                continue
            data = np.asarray(outputs[self._place[index]], np.float32)
            depthwise = _window_of(rule)
            if depthwise is not None:
                axes, window = depthwise
                plain = np.ascontiguousarray(data.transpose(axes))
                self._hold(index, 0, plain, len(plain) * window.out[0] * window.out[1])
            else:
                self._hold_columns(index, data, rule)

    def _hold_columns(self, index: int, data: NDArray[np.float32], rule: InputColumns) -> None:
        units = self._units[index]
        steps = _within(channel_steps(self._kernels, data, units, rule.data_axis, _STEPS))
        groups, taps = blocked(rule)
        blocks = groups // rule.channels.shape[0]
        for first, piece in rule.columns(steps, _some(rule)):
            cut = piece.reshape(len(piece) * blocks, taps, -1)
            self._hold(index, first * blocks, cut, cut.shape[2])

    def _hold(self, index: int, first: int, part: NDArray[Any], positions: int) -> None:
        """Keep data of one operator, from group ``first`` on, until they are worth a product."""
        held, count = self._held.get((index, first), ([], 0))
        self._held[index, first] = [*held, part], count + positions
        self._counts[index] += positions if first == 0 else 0
        if count + positions >= _POSITIONS:
            self._multiply(index, first)

    def _multiply(self, index: int, first: int) -> None:
        """Add the products of what is held."""
        parts, _ = self._held.pop((index, first))
        depthwise = _window_of(self._rules[index])
        if depthwise is not None:
            data = parts[0] if len(parts) == 1 else np.concatenate(parts)
            units = self._units[index]
            into = self._products[index], self._sums[index]
            found = self._kernels.window_products(data, units, _STEPS, depthwise[1], *into)
            _within(found or None)
            return
        cut = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=2)
        some = slice(first, first + len(cut))
        # Whole numbers below 2^53: exact in any order.
        into = self._products[index][some], self._sums[index][some]
        for total, found in zip(into, (cut @ cut.transpose(0, 2, 1), cut.sum(axis=2)), strict=True):
            np.add(total, found, out=total, casting="unsafe")

    def result(self) -> InputGrams:
        """The products so far; ``update`` counts on in them."""
        for index, first in list(self._held):
            self._multiply(index, first)
        return InputGrams(tuple(self._products), tuple(self._sums), self._counts)


def units_of(ranges: ChannelRanges) -> NDArray[np.float64]:
    """The step of every channel, float64 and > 0."""
    return np.where(ranges.largest > 0, ranges.largest, 1.0) / _STEPS


def channel_steps(
    kernels: Kernels,
    data: NDArray[np.float32],
    units: NDArray[np.float64],
    axis: int,
    limit: float,
) -> NDArray[np.float64] | None:
    """Data of any shape in whole steps of the unit of their channel, as ``Kernels.steps`` does."""
    shape = (math.prod(data.shape[:axis]), data.shape[axis], math.prod(data.shape[axis + 1 :]))
    found = kernels.steps(np.ascontiguousarray(data, np.float32).reshape(shape), units, limit)
    return None if found is None else found.reshape(data.shape)


def _within(found: T | None) -> T:
    """What a kernel found.

    Raises:
        CalibrationError: nothing, since a value is beyond the limit.
    """
    if found is None:
        raise CalibrationError(
            "the data of a weighted operator leave the range that was measured",
            fix="measure channel ranges over the same data first",
        )
    return found


def _window_of(rule: InputColumns | None) -> tuple[tuple[int, ...], Window] | None:
    """Axes and window of a depthwise convolution whose taps are one block."""
    return None if rule is None or rule.channels.shape[1] > MAX_TAPS else rule.depthwise


def _some(rule: InputColumns) -> slice:
    """Positions of each image that are counted, evenly spread but not in the same columns."""
    _, positions = rule.images
    if positions <= _POSITIONS_OF_AN_IMAGE:
        return EVERY_POSITION
    stride = -(-positions // _POSITIONS_OF_AN_IMAGE)
    return slice(None, None, stride + 1 - stride % 2)


def blocked(rule: InputColumns) -> tuple[int, int]:
    """(groups * blocks, taps of a block)."""
    groups, taps = rule.channels.shape
    blocks = blocks_of(taps)
    return groups * blocks, taps // blocks


def with_grams(
    ranges: list[ChannelRanges], grams: InputGrams, rules: Iterable[InputColumns | None]
) -> list[ChannelRanges]:
    """``ranges`` with the products of each operator."""
    found = []
    for index, (one, rule) in enumerate(zip(ranges, rules, strict=True)):
        gram = None
        if rule is not None:
            channels = rule.channels.reshape(blocked(rule))
            gram = InputGram(
                grams.products[index],
                grams.sums[index],
                int(grams.counts[index]),
                units_of(one)[channels],
                channels,
                fits=grams.fits[index],
            )
        found.append(replace(one, gram=gram))
    return found
