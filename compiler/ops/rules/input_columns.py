"""FQInputColumns: a weighted operator as matrix products of its weight with columns of its data.

    out[g, o, p] = sum_k rows[g, o, k] * columns[g, k, p]        g: group, p: position, k: tap

What rounding a weight does to the output depends on the data only through the products of columns,
columns[g] columns[g]^T. Sequential rounding asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call
from compiler.ir.op import OpRule
from compiler.ops.number_format import Array

EVERY_POSITION: Final = slice(None)


@dataclass(frozen=True, slots=True)
class Window:
    """What a depthwise convolution reads of every channel of data in layout NCHW.

    Attributes:
        padding: zeros on top, left, bottom, right.
        size, strides, dilation: of the window, (rows, columns).
        out: positions, (rows, columns).
    """

    padding: tuple[int, int, int, int]
    size: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    out: tuple[int, int]

    def reads(self, width: int, some: slice) -> NDArray[np.int64]:
        """(taps, positions): places that the window reads of a padded channel, row after row.

        Args:
            width: of the padded channel.
            some: of the positions.
        """
        places = np.arange(self.out[0] * self.out[1])[some]
        down, right = (step * np.arange(size) for step, size in zip(self.dilation, self.size))
        row, column = places // self.out[1] * self.strides[0], places % self.out[1]
        starts = row * width + column * self.strides[1]
        return np.asarray((down[:, None] * width + right).reshape(-1, 1) + starts)


@dataclass(frozen=True, slots=True)
class InputColumns:
    """One weighted operator, its data being operand 0 and its weight operand 1.

    Attributes:
        data_axis: channel axis of the data.
        channels: int64 (groups, taps): the channel of the data that each tap reads.
        columns: ``columns(data, some)`` gives float64 pieces with the group each begins at, (groups
            of the piece, taps, positions): all groups, a few at a time, at those positions of each
            image, or those rows, that the slice ``some`` names.
        rows: ``rows(weight)``: (groups, outputs of a group, taps), a view or copy.
        weight: ``weight(rows)``: the inverse of ``rows``.
        images: of one run, and the positions of each.
        depthwise: axes of the data that are N, C, H, W, and the window, where each group reads one
            channel; None elsewhere.
    """

    data_axis: int
    channels: NDArray[np.int64]
    columns: Callable[..., Iterator[tuple[int, NDArray[np.float64]]]]
    rows: Callable[[Array], Array]
    weight: Callable[[Array], Array]
    images: tuple[int, int]
    depthwise: tuple[tuple[int, ...], Window] | None = None


FQInputColumns: OpRule[Callable[[Call], InputColumns | None]] = OpRule(
    "FQInputColumns", asked_by="sequential rounding (compiler/quantize)"
)
"""``rule(call)`` for a typed call; None for layouts it does not know."""
