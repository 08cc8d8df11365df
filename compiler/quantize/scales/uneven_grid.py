"""Grids of narrow activations that do not reach equally far on both sides of 0.

    unsigned      0 .. 2^n - 1          step = high / 2^n                  never negative
    asymmetric    -z .. 2^n - 1 - z     step = (high - low) / (2^n - 1)    z = round(-low / step)

Both hold 0 exactly. Steps are counted from 0 here; how they are stored (unsigned, or with a zero
point) is decided by ``ops/rules/realize.py``. An even range stays symmetric: nothing has to be
folded then, and a zero point would gain less than a sixteenth of a step.
Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018, section 2.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Expr
from compiler.ir.ty import bits
from compiler.ops.annotation.attach_simulated_quantize import quantize_kind
from compiler.ops.rules.dom_scale import as_scale, chosen_scale
from compiler.ops.rules.never_negative import never_negative
from compiler.ops.rules.zero_point import may_have_zero_point
from compiler.qtypes.qconfig import QAnnotateKind, QConfig

_WORTH_IT = 15 / 16


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Real value = integer * step, integers in ``ends``, both included."""

    step: NDArray[np.float32]
    ends: tuple[int, int]


class Sidedness:
    """Points of one annotated function that may have an uneven grid, after its QConfig."""

    def __init__(self, nodes: Sequence[Expr], qconfig: QConfig) -> None:
        self.qconfig = qconfig
        scheme = qconfig.activation_scheme
        self.positive = frozenset() if scheme == "symmetric" else never_negative(nodes)
        if scheme == "asymmetric":
            self.shifted = may_have_zero_point(nodes)
        else:
            self.shifted = frozenset()

    def grid(self, point: Call, range_s: float, low: float, high: float, nbit: int) -> Grid | None:
        """The grid of a point over [low, high]; None where it is symmetric, over [-S, S]."""
        scheme = self.qconfig.activation_scheme
        if scheme == "symmetric" or quantize_kind(point) != QAnnotateKind.INPUT:
            return None
        if nbit > bits(self.qconfig.dtype_input):
            return None
        if low == 0 or point.args[0] in self.positive:
            return Grid(chosen_scale((high or 1.0) / 2.0**nbit, self.qconfig), (0, 2**nbit - 1))
        if point not in self.shifted:
            return None
        levels = 2**nbit - 1
        step = float(chosen_scale((high - low) / levels, self.qconfig))
        even = float(chosen_scale(range_s / 2.0 ** (nbit - 1), self.qconfig))
        if step >= _WORTH_IT * even:
            return None
        zero = min(max(int(np.floor(-low / step + 0.5)), 0), levels)
        return Grid(as_scale(step), (-zero, levels - zero))
