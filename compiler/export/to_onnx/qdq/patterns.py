"""What QDQ rules recognise: identities, and what a requantization multiplies by.

Roundings are to nearest; the way ties go is lost in a QDQ graph. Factors are float64 and broadcast
against x.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step
from compiler.ops.qnn.requantize import RESCALING, TFLM, factors_in

Floats = NDArray[np.float64]

IDENTITIES: Final = (
    "annotation.stop_fusion",
    "annotation.cast_hint",
    "on_device",
    "device_copy",
    "copy",
    "round",
    "round_even",
    "floor",
    "ceil",
    "trunc",
)
"""The value itself; roundings change nothing on integers."""


def fixed_point_factor(step: Step) -> Floats | None:
    """The factor of a bare requantization or a fixed-point multiplication; None for others
    and what is not constant."""
    if step.name not in RESCALING or getattr(step.attrs, "rounding", "") in TFLM:
        return None
    known = factors_in(step)
    return None if known is None else known.scale
