"""The number that stands for minus infinity, in constants, inputs, calibration data and masks.

    weight of a masked score       exp(-LIMIT - max) = 0, in float32 and in the table of a softmax
    quantization point of a mask   24 bits over [-LIMIT, LIMIT], whatever calibration saw
    point of masked scores         16 bits, fine steps: a masked score lies far below each real one

A scale that reaches to -3.4e38 leaves nothing of the scores, and minus infinity has no scale.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Expr
from compiler.ops.annotation.attach_simulated_quantize import attach_simulated_quantize, point_attrs
from compiler.ops.rules.annotate import QAnnotateExpr
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind

LIMIT: Final = 8192.0
"""A masked score is lowered by this; a score below -LIMIT / 2 counts as masked."""
INFINITE: Final = 1e38
"""A magnitude from which on a number of a model or of its data stands for infinity, wherever it is
read: the lowest float, and its half, are masks; 1e37 may be a factor."""
MASK_BITS: Final = 24
SCORE_STEP: Final = 2.0**-6
"""Largest step of masked scores: its half is an error of 0.8 % of an exponential."""


def finite(values: NDArray[Any], most: float) -> NDArray[Any]:
    """The values with LIMIT and -LIMIT for those beyond [-most, most]; NaN stays."""
    if values.dtype.kind != "f" or not (np.abs(values) > most).any():
        return values
    return np.where(np.abs(values) > most, np.copysign(LIMIT, values), values).astype(values.dtype)


def mask_point(arg: Expr, ctx: QuantizeContext) -> Expr:
    """A value that may hold minus infinity, in integers: plain values get a point of 24 bits."""
    if isinstance(arg, QAnnotateExpr):
        return arg.expr
    return attach_simulated_quantize(arg, QAnnotateKind.ACTIVATION, context=ctx, bits=MASK_BITS)


def score_point(scores: Expr, ctx: QuantizeContext) -> Expr:
    """The quantization point of scores that may be masked."""
    return attach_simulated_quantize(scores, QAnnotateKind.INPUT, context=ctx, bits=WIDE_BITS)


def is_mask_point(point: Expr) -> bool:
    """True for a point of ``mask_point``."""
    attrs = point_attrs(point)
    return attrs is not None and attrs.bits == MASK_BITS


def is_score_point(point: Expr) -> bool:
    """True for a point of ``score_point``."""
    attrs = point_attrs(point)
    return attrs is not None and attrs.kind == QAnnotateKind.INPUT and attrs.bits == WIDE_BITS
