"""FQInputColumns: a weighted operator as matrix products of its weight with columns of its data.

    out[g, o, p] = sum_k rows[g, o, k] * columns[g, k, p]        g: group, p: position, k: tap

What rounding a weight does to the output depends on the data only through the products of columns,
columns[g] columns[g]^T. Sequential rounding asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call
from compiler.ir.op import OpRule
from compiler.ops.number_format import Array


@dataclass(frozen=True, slots=True)
class InputColumns:
    """One weighted operator, its data being operand 0 and its weight operand 1.

    Attributes:
        data_axis: channel axis of the data.
        channels: int64 (groups, taps): the channel of the data that each tap reads.
        columns: ``columns(data, some)`` gives pieces with the group each begins at, (groups of the
            piece, taps, positions), in the data's dtype: all groups, a few at a time, at those
            positions of each image, or those rows, that the slice ``some`` names.
        rows: ``rows(weight)``: (groups, outputs of a group, taps), a view or copy.
        weight: ``weight(rows)``: the inverse of ``rows``.
        images: of one run, and the positions of each.
    """

    data_axis: int
    channels: NDArray[np.int64]
    columns: Callable[..., Iterator[tuple[int, Array]]]
    rows: Callable[[Array], Array]
    weight: Callable[[Array], Array]
    images: tuple[int, int]


FQInputColumns: OpRule[Callable[[Call], InputColumns | None]] = OpRule(
    "FQInputColumns", asked_by="sequential rounding (compiler/quantize)"
)
"""``rule(call)`` for a typed call; None for layouts it does not know."""
