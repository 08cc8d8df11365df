"""Functions of narrow integers as tables: for every stored integer the real value it stands for.

    real values v[i] at the integers i      lookup(data, round(v / s))      at any scale s

A requantization that follows a table does not round a second time: it reads the real values again
and makes a table at its own scale, so every entry is the function correctly rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr
from compiler.ops.rules.integer_calls import lookup, worth

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class RealTable:
    """A function of narrow integers.

    Attributes:
        data: the integers, of 8 or 16 bits.
        values: float64, the real value at every integer of the dtype of ``data``, smallest first;
            those behind the last that ``data`` can reach may be missing.
        first, last: places of ``values`` that ``data`` can reach, both included.
    """

    data: Expr
    values: NDArray[np.float64]
    first: int
    last: int

    @property
    def magnitude(self) -> float:
        """Largest absolute value that can be reached and is finite; 0 where none is."""
        reached = np.abs(self.values[self.first : self.last + 1])
        return float(reached.max(where=np.isfinite(reached), initial=0.0))

    def rounded(self, scale: float, low: int, high: int) -> Ints:
        """Every value in units of ``scale``, half away from zero, within [low, high]."""
        with np.errstate(over="ignore", invalid="ignore"):
            units = np.clip(np.nan_to_num(self.values, nan=0.0) / scale, low, high)
        whole = np.trunc(units)
        away = np.where(np.abs(units - whole) >= 0.5, whole + np.sign(units), whole)
        return np.asarray(away.astype(np.int64))

    def at(
        self,
        scale: float,
        low: int,
        high: int,
        dtype: str,
        zero_point: int = 0,
    ) -> Call:
        """The lookup at one scale.

        Args:
            low, high: bounds of the entries in units of ``scale``.
            zero_point: added to all entries.
        """
        entries = self.rounded(scale, low, high) + zero_point
        # Entries that nothing reaches repeat the nearest one, so that the table tells its range.
        entries[: self.first] = entries[self.first]
        entries[self.last + 1 :] = entries[self.last]
        table: Any = Constant(entries.astype(dtype))
        return worth(lookup(self.data, table), scale, zero_point)
