"""Tables of bytes as lines: 256 of them, each exact for its entries, fit in registers.

    entry = base + (start + slope * rest >> 8)        qk_line_table of step.h

A table of a smooth function of up to 12 bits is 256 lines of 16 entries. One line that gives no
exact entries, such as the one over a bend, may have a step in it.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from compiler.ops.number_format import Array

_LINES: Final = 256
_MOST_BITS: Final = 4
"""Largest number of bits of a rest: tables have at most 4,096 entries."""
_UNIT: Final = 256
_STEPS: Final = (-1, 1, -2, 2)


def as_lines(entries: Array) -> Array | None:
    """The bytes of a ``qk_line_table``; None where no lines are exact.

    Args:
        entries: a power of two of them, each 0 to 255.
    """
    each, over = divmod(len(entries), _LINES)
    if over or not 1 < each <= 1 << _MOST_BITS:
        return None
    bits = each.bit_length() - 1
    table = entries.reshape(_LINES, each).astype(np.int64)
    starts, slopes, exact = _fitted(table)
    (bent,) = np.nonzero(~exact)
    place = 0
    last = each
    more = 0
    if len(bent) > 1:
        return None
    if len(bent) == 1:
        place = int(bent[0])
        found = _stepped(table[place])
        if found is None:
            return None
        last, more, starts[place], slopes[place] = found
    step = np.array([bits, place, last << (_MOST_BITS - bits), more])
    parts = starts >> 8, starts, slopes, step
    return (np.concatenate(parts) & 255).astype(np.uint8)


def _fitted(table: Array) -> tuple[Array, Array, Array]:
    """Starts and slopes in 256ths, one a row of the table, and which of these lines are exact.

    Every two entries bound the slope. With a slope, every entry has an interval of starts.
    """
    low = table * _UNIT
    rests = np.arange(0, 1 << _MOST_BITS, (1 << _MOST_BITS) // table.shape[1])
    i, j = np.triu_indices(len(rests), 1)
    rise = low[:, j] - low[:, i]
    run = rests[j] - rests[i]
    least = np.maximum(-((_UNIT - 1 - rise) // run).min(axis=1), -128)
    most = np.minimum(((rise + _UNIT - 1) // run).min(axis=1), 127)
    slopes = np.clip((least + most) >> 1, -128, 127)
    ends = low - slopes[:, None] * rests
    first = ends.max(axis=1)
    last = ends.min(axis=1) + _UNIT - 1
    return (first + last) >> 1, slopes, first <= last


def _stepped(row: Array) -> tuple[int, int, int, int] | None:
    """A last place, how much more entries behind it are, and the start and slope of the line."""
    tries = [(last, more) for last in range(len(row) - 1) for more in _STEPS]
    rows = np.array([row - more * (np.arange(len(row)) > last) for last, more in tries])
    starts, slopes, exact = _fitted(rows)
    (found,) = np.nonzero(exact)
    if not len(found):
        return None
    best = int(found[0])
    return (*tries[best], int(starts[best]), int(slopes[best]))
