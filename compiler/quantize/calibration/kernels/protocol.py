"""What calibration and rounding need computed in tight loops, and what computes it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

UPPER_COUNTERS = 32768
"""Values that the upper 16 bits of a float32 pattern take once its sign is cleared."""

KeyTimes = tuple[NDArray[np.uint16], NDArray[np.int32]]
"""Keys, and how often each entry occurred; same shape."""


class Kernels(Protocol):
    """Every implementation gives the same bits. Arrays are contiguous, 1-D unless told."""

    name: str

    def count_ranges(
        self, values: NDArray[np.float32], counts: NDArray[np.int64], keys: NDArray[np.int32]
    ) -> None:
        """Add upper 16 bits of |values| to ``counts``; widen ``keys`` = (min, max) order keys."""

    def histogram(
        self, values: NDArray[np.float32], edges: NDArray[np.float32], counts: NDArray[np.int64]
    ) -> None:
        """counts[k] += values with edges[k] <= x < edges[k+1]; the last bin is closed.

        Values outside the edges are counted in the first or last bin.
        """

    def collect_low(
        self, values: NDArray[np.float32], buckets: NDArray[np.int32]
    ) -> list[KeyTimes]:
        """Per bucket (sorted, at most 255): lower 16 bits of the |values| that fall into it.

        Entries may repeat a key, in any order; the sums of their times are what counts.
        """

    def divergences(
        self,
        hist: NDArray[np.int64],
        prefix: NDArray[np.int64],
        filled: NDArray[np.int64],
        candidates: NDArray[np.int32],
        levels: int,
    ) -> NDArray[np.float32]:
        """Float32 divergence of each KL candidate; ``kl_divergence.py`` lists the steps.

        ``prefix`` and ``filled`` are the exclusive prefix sums of ``hist`` and of ``hist != 0``.
        """

    def group_terms(
        self,
        prefix: NDArray[np.int64],
        filled: NDArray[np.int64],
        candidates: NDArray[np.int32],
        levels: int,
        p_less: NDArray[np.float64],
        q_less: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """For neighbouring KL candidates, ascending: the sum of P' ln Q' over the filled bins of
        all groups but the first and the last, where P' = P - ``p_less`` and Q' = Q - ``q_less``.
        """

    def steps(
        self, values: NDArray[np.float32], units: NDArray[np.float64], limit: float
    ) -> NDArray[np.float64] | None:
        """``values`` (outer, channels, inner) in whole steps of the unit of their channel, rounded
        half to even; None where one is beyond ``limit`` or not a number.
        """

    def paired_products(
        self,
        one: NDArray[np.float64],
        other: NDArray[np.float64],
        reads: NDArray[np.int64],
        products: NDArray[np.int64],
        crossed: NDArray[np.int64],
        sums: NDArray[np.int64],
    ) -> None:
        """Add to products and crossed (groups, taps, taps) those of what two taps read of ``one``,
        and of what the first reads of ``other`` and the second of ``one``; to sums (2, groups,
        taps) those of either. ``one`` and ``other`` (groups, places) hold whole numbers, ``reads``
        (taps, positions) names places.
        """

    def grid_errors(
        self,
        magnitudes: NDArray[np.float32],
        scale: NDArray[np.float32],
        levels: float,
        out: NDArray[np.float32],
    ) -> None:
        """out[r, k] = what ``magnitudes`` (rows, columns) lose on a grid, 0 to ``levels`` times the
        scale of their row: halves go up, operations are those of float32.
        """

    def round_columns(
        self, values: NDArray[np.float64], factor: NDArray[np.float64], ends: tuple[int, int]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Whole numbers from the first to the second of ``ends`` for ``values`` (groups, rows,
        columns), column after column, and the error of each, which later columns make up for:
        ``factor`` (groups, columns, columns), upper triangular, says by how much.
        """

    def move_rows(
        self,
        found: NDArray[np.float64],
        slope: NDArray[np.float64],
        hessian: NDArray[np.float64],
        ends: tuple[int, int],
        sweeps: int,
    ) -> None:
        """Move the whole numbers ``found`` (groups, rows, taps), column after column, to where they
        are best beside the others, and ``slope`` with them, in place; at most ``sweeps`` times,
        until none of a row moves. ``hessian`` is (groups, taps, taps), symmetric.
        """


def order_key(values: NDArray[np.float32]) -> NDArray[np.int32]:
    """Signed integers in the order of the floats: -0.0 below 0.0, NaN outside the infinities."""
    bits = values.view(np.int32)
    return bits ^ ((bits >> 31) & np.int32(0x7FFFFFFF))


def key_value(keys: NDArray[np.int32]) -> NDArray[np.float32]:
    """Inverse of ``order_key``."""
    return (keys ^ ((keys >> 31) & np.int32(0x7FFFFFFF))).view(np.float32)
