"""Numpy functions of the named routines of the loop-level form, filled beside the operators.

The reference executor computes with the very functions that FNumpyCompute uses, so that both have
the same bits; this package knows no numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.errors import LoweringError
from compiler.ir.lowered_function import Array
from compiler.named_table import NamedTable

Intrinsic = Callable[..., Any]
"""``function(*arrays) -> array`` of the dtype of the first; arrays broadcast. ``cast`` and
``saturating_cast`` take an array and the name of a dtype, ``truncdiv`` two integer arrays."""

intrinsics: NamedTable[Intrinsic] = NamedTable("intrinsic", LoweringError, filled_by="compiler.ops")

Routine = Callable[[Mapping[str, Any], Sequence[Array]], Sequence[Array]]
"""``routine(attrs, inputs) -> outputs``."""

externs: NamedTable[Routine] = NamedTable("routine", LoweringError, filled_by="compiler.ops")
