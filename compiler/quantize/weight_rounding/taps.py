"""What the taps of a weight read: how layers read their data, in whole steps of each channel.

Data are taken in steps of 2^-11 of the largest magnitude of their channel, which are whole numbers,
so that sums of their products are exact: in any order and by any number of threads they have the
same bits. Weights with very many taps are seen in blocks of at most ``MAX_TAPS``, as if what one
block reads had nothing to do with another.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Function
from compiler.ops.rules.input_columns import FQInputColumns, InputColumns
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.weighted_calls import weighted_calls

MAX_TAPS: Final = 1536
"""Taps of one block: 18 MB of products."""

_STEPS: Final = 1 << 11


def column_rules(main: Function) -> list[InputColumns | None]:
    """How each weighted operator reads its data, in visiting order."""
    rules = [(call, FQInputColumns.get(call.op)) for call, _ in weighted_calls(main)]
    return [None if rule is None else rule(call) for call, rule in rules]


def units_of(ranges: ChannelRanges) -> NDArray[np.float64]:
    """The step of every channel, float64 and > 0."""
    return np.where(ranges.largest > 0, ranges.largest, 1.0) / _STEPS


def channel_steps(
    data: NDArray[np.float32], units: NDArray[np.float64], axis: int
) -> NDArray[np.int16]:
    """Data of any shape in whole steps of the unit of their channel, as ``Kernels.steps`` does.

    Raises:
        CalibrationError: a value is not a number.
    """
    shape = (math.prod(data.shape[:axis]), data.shape[axis], math.prod(data.shape[axis + 1 :]))
    found = choose_kernels().steps(np.ascontiguousarray(data, np.float32).reshape(shape), units)
    if found is None:
        raise CalibrationError("a calibration input makes values that are not numbers")
    return found.reshape(data.shape)


def blocked(rule: InputColumns) -> tuple[int, int]:
    """(groups * blocks, taps of a block), in as few equal blocks as there may be."""
    groups, taps = rule.channels.shape
    blocks = next(n for n in range(1, taps + 1) if taps % n == 0 and taps // n <= MAX_TAPS)
    return groups * blocks, taps // blocks
