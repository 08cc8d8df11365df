"""Weights as rows of taps, group by group, and the data that the taps read, in whole steps.

Data are taken in steps of 2^-11 of the largest magnitude of their channel, which are whole numbers,
so that sums of their products are exact: in any order and by any number of threads they have the
same bits. Weights with very many taps are seen in blocks of at most ``MAX_TAPS``, as if what one
block reads had nothing to do with another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Call, Constant, Expr
from compiler.ir.rebuild import with_operands
from compiler.ops.annotation.attach_simulated_quantize import point_attrs
from compiler.ops.rules.input_columns import InputColumns
from compiler.ops.rules.integer_calls import along_axis
from compiler.qtypes.channel_ranges import ChannelRanges, Levels
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.scales.weight_grid import whole_units

Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class PointRows:
    """The constant behind a weight point, as the rows that rounding works on.

    Attributes:
        point: simulated_quantize of a constant, its scale bound.
        rule: of the call that reads the point.
        scales: float64 (groups, outputs of a group).
        limit: largest magnitude of the grid.
        own_scales: whether each output has a scale.
    """

    point: Call
    rule: InputColumns
    scales: NDArray[np.float64]
    limit: int
    own_scales: bool

    @staticmethod
    def of(point: Call, rule: InputColumns) -> PointRows:
        """The rows of a weight point."""
        held, scale, _, high = point.args
        assert isinstance(held, Constant)
        assert isinstance(scale, Constant)
        assert isinstance(high, Constant)
        attrs = point_attrs(point)
        rank = held.data.ndim
        assert attrs is not None
        if attrs.axis is None:
            trailing = None
        else:
            trailing = rank - attrs.axis % rank - 1
        along = along_axis(scale.data, trailing, "float64").data
        scales = rule.rows(np.broadcast_to(along, held.data.shape))[:, :, 0]
        return PointRows(point, rule, scales, int(high.data), attrs.axis is not None)

    @property
    def rows(self) -> NDArray[np.float64]:
        """Weights in units of their scale, float64 (groups, outputs of a group, taps). They are
        twice as large as the weights, so nobody keeps them."""
        held = self.point.args[0]
        assert isinstance(held, Constant)
        return np.asarray(self.rule.rows(held.data) / self.scales[:, :, None])

    @property
    def is_whole(self) -> bool:
        """Return whether the weights lie on the grid of their scales, but for rounding to
        float32."""
        return all(
            whole_units(np.abs(row)).all() for group in self.rows for row in group
        )  # most: not the first

    def point_of(self, levels: Levels) -> Expr:
        """The point around other weights, whole numbers of the shape of ``rows``."""
        held, scale = self.point.args[:2]
        end = max(self.limit, int(np.abs(levels.astype(np.int64)).max(initial=0)))
        ends = (Constant(np.array(each, np.float32)) for each in (-end, end))
        data = self.rule.weight(levels * self.scales[:, :, None]).astype(np.float32)
        operands = (self.point.op, Constant(data, span=held.span), scale, *ends)
        return with_operands(self.point, operands)


def cut_rows(rows: NDArray[np.float64], inside: int) -> NDArray[np.float64]:
    """(groups, outputs, taps) as (groups * blocks, outputs, taps of a block: ``inside``)."""
    groups, outputs, taps = rows.shape
    cut = rows.reshape(groups, outputs, taps // inside, inside).transpose(0, 2, 1, 3)
    return np.asarray(cut.reshape(-1, outputs, inside))


def joined_rows(blocks: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
    """The inverse of ``cut_rows``."""
    groups, outputs, taps = shape
    inside = blocks.shape[2]
    apart = blocks.reshape(groups, taps // inside, outputs, inside)
    return apart.transpose(0, 2, 1, 3).reshape(shape)


MAX_TAPS: Final = 1536
"""Taps of one block: 18 MB of products."""

_STEPS: Final = 1 << 11


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
