"""InputGrams: for each weighted operator the products of what two taps of its weight read.

    products[g, k, l] = sum over all positions p of columns[g, k, p] * columns[g, l, p]

Measured on the float module, once per model: what adaptive rounding needs to know of the data, in
memory that does not grow with their number. Data are taken in steps of 2^-15 of the largest
magnitude of their channel, which are whole numbers, so all sums are exact: shards in any order and
any number of threads give the same bits. Weights with very many taps are seen in blocks of at most
MAX_TAPS, as if what one block reads had nothing to do with another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Expr, Function, Tuple
from compiler.ir.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ops.rules.input_columns import FQInputColumns, InputColumns
from compiler.qtypes.channel_ranges import ChannelRanges, Fits, InputGram
from compiler.quantize.calibration.weighted_calls import weighted_calls

MAX_TAPS: Final = 1536
"""Taps of one block: 18 MB of products."""

_STEPS: Final = 1 << 15


def blocks_of(taps: int) -> int:
    """In how many equal blocks the taps of a weight are seen."""
    return next(n for n in range(1, taps + 1) if taps % n == 0 and taps // n <= MAX_TAPS)


@dataclass(frozen=True, slots=True, eq=False)
class InputGrams:
    """Products of all weighted operators in visiting order; empty arrays where there are none.

    Attributes:
        products: int64 (groups * blocks, taps of a block, taps of a block) of each operator.
        sums: int64 (groups * blocks, taps of a block) of each operator.
        counts: positions of each operator, int64.
        fits: weights that were fitted to the products of each operator.
    """

    products: tuple[NDArray[np.int64], ...]
    sums: tuple[NDArray[np.int64], ...]
    counts: NDArray[np.int64]
    fits: tuple[Fits, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "fits", tuple(Fits() for _ in self.products))

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
        halves = [p[:, *np.triu_indices(p.shape[1])].reshape(-1) for p in self.products]
        return {
            "gram_shapes": np.asarray([p.shape[:2] for p in self.products], np.int64),
            "gram_products": np.concatenate([*halves, np.zeros(0, np.int64)]),
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
        products, sums, taken, summed = [], [], 0, 0
        for groups, taps in arrays["gram_shapes"].tolist():
            above = np.triu_indices(taps)
            size = groups * above[0].size
            half = arrays["gram_products"][taken : taken + size].reshape(groups, -1)
            whole = np.zeros((groups, taps, taps), np.int64)
            whole[:, *above] = half
            whole[:, above[1], above[0]] = half
            products.append(whole)
            sums.append(arrays["gram_sums"][summed : summed + groups * taps].reshape(groups, taps))
            taken, summed = taken + size, summed + groups * taps
        return InputGrams(tuple(products), tuple(sums), np.asarray(arrays["gram_counts"]))


def column_rules(main: Function) -> list[InputColumns | None]:
    """How each weighted operator reads its data, in visiting order."""
    rules = [(call, FQInputColumns.get(call.op)) for call, _ in weighted_calls(main)]
    return [None if rule is None else rule(call) for call, rule in rules]


class GramCollector:
    """Runs over outputs of ``profile``: products of the columns of every weighted operator's data.

    Args:
        mod: result of ``prerequisite_optimize``.
        ranges: of the data of each weighted operator over all of the dataset.
    """

    def __init__(self, mod: IRModule, ranges: Iterable[ChannelRanges]) -> None:
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
            groups, taps = (0, 0) if rule is None else _blocked(rule)
            self._products.append(np.zeros((groups, taps, taps), np.int64))
            self._sums.append(np.zeros((groups, taps), np.int64))
        self._counts = np.zeros(len(self._rules), np.int64)

    def update(self, outputs: list[NDArray[Any]]) -> None:
        """Add one run.

        Raises:
            CalibrationError: a value is not finite, or beyond the ranges.
        """
        for index, rule in enumerate(self._rules):
            if rule is None:
                continue
            steps = self._steps(index, rule, outputs[self._place[index]])
            groups, taps = _blocked(rule)
            blocks = groups // rule.channels.shape[0]
            for first, piece in rule.columns(steps):
                count, _, positions = piece.shape
                cut = piece.reshape(count * blocks, taps, positions)
                some = slice(first * blocks, (first + count) * blocks)
                # Whole numbers below 2^53: exact in any order.
                self._products[index][some] += (cut @ cut.transpose(0, 2, 1)).astype(np.int64)
                self._sums[index][some] += cut.sum(axis=2).astype(np.int64)
                self._counts[index] += positions if first == 0 else 0

    def _steps(self, index: int, rule: InputColumns, data: NDArray[Any]) -> NDArray[np.float64]:
        shape = [1] * data.ndim
        shape[rule.data_axis] = -1
        steps = np.rint(data / self._units[index].reshape(shape))
        if not np.abs(steps).max(initial=0) <= _STEPS:
            raise CalibrationError(
                "the data of a weighted operator leave the range that was measured",
                fix="measure channel ranges over the same data first",
            )
        return np.asarray(steps, np.float64)

    def result(self) -> InputGrams:
        """The products so far."""
        products = tuple(p.copy() for p in self._products)
        return InputGrams(products, tuple(s.copy() for s in self._sums), self._counts.copy())


def units_of(ranges: ChannelRanges) -> NDArray[np.float64]:
    """The step of every channel, float64 and > 0."""
    return np.where(ranges.largest > 0, ranges.largest, 1.0) / _STEPS


def _blocked(rule: InputColumns) -> tuple[int, int]:
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
            channels = rule.channels.reshape(_blocked(rule))
            gram = InputGram(
                grams.products[index],
                grams.sums[index],
                int(grams.counts[index]),
                units_of(one)[channels],
                channels,
                grams.fits[index],
            )
        found.append(ChannelRanges(one.largest, one.mean, gram))
    return found
