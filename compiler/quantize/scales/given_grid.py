"""given_grid: integers for the weights of a model that brings quantization points along."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr
from compiler.ir.ty import bits
from compiler.ops.annotation.attach_simulated_quantize import point_attrs
from compiler.ops.rules.dom_scale import keeps_scale
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.scales.weight_grid import OwnGrid, channel_rows, range_on_wide_grid
from compiler.quantize.scales.weight_scale import weight_range

BitsOf = Callable[[Call], int]


def given_grid(
    weight: NDArray[np.float32],
    axis: int | None,
    consumer: Call | None,
    qconfig: QConfig,
    bits_of: BitsOf | None = None,
) -> OwnGrid:
    """The grid of the weights, of at most 16 bits; where they lie on none, such as blocks with
    scales of their own, or where sums of theirs leave the accumulator, the finest that it holds.

    Args:
        axis: of the channels; None for one scale.
        consumer: the product that reads them, and beside them data behind a point.
        bits_of: see ``room_of``.
    """
    room = room_of(weight, axis, None, consumer, qconfig, bits_of)
    grid = range_on_wide_grid(weight, axis)
    if grid is not None and max(-grid.low, grid.high) <= max(room, 128):
        return grid
    nbit = min(max(int(room).bit_length(), qconfig.nbit_weight), WIDE_BITS)
    limit = 2 ** (nbit - 1) - 1
    range_s = weight_range(weight, "max", nbit, axis, "a weight", None)
    return OwnGrid(range_s, nbit, -limit, limit, exact=False)


def room_of(
    weight: NDArray[np.float32],
    axis: int | None,
    scale: NDArray[np.float32] | None,
    consumer: Call | None,
    qconfig: QConfig,
    bits_of: BitsOf | None = None,
) -> float:
    """Return the number of times that the sums of a product fit into half of the accumulator.

    Args:
        scale: of the weights; None counts the largest of each channel as 1.
        bits_of: the bits of a point whose ends are not bound yet; None: those of the QConfig.
    """
    rows = np.abs(channel_rows(weight, axis).astype(np.float64))
    largest = rows.max(axis=1, initial=0.0)
    if scale is None:
        units = np.where(largest > 0, largest, 1)
    else:
        units = scale
    terms = (rows.sum(axis=1) / units).max(initial=1.0)
    return float(
        2.0 ** (bits(qconfig.dtype_activation) - 2) / (_reach(consumer, qconfig, bits_of) * terms)
    )


def _reach(consumer: Call | None, qconfig: QConfig, bits_of: BitsOf | None) -> float:
    """The largest integer that a product reads beside its weight."""
    data: Expr | None = None if consumer is None else consumer.args[0]
    while isinstance(data, Call) and point_attrs(data) is None and keeps_scale(data.op):
        data = data.args[0]
    if isinstance(data, Call) and point_attrs(data) is not None:
        ends = [abs(float(end.data)) for end in data.args[2:] if isinstance(end, Constant)]
        return max(ends, default=2.0 ** (qconfig.nbit_input if bits_of is None else bits_of(data)))
    return 2.0**qconfig.nbit_input
