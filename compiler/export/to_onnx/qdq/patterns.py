"""What QDQ rules recognise: identities, and what a requantization multiplies by.

Roundings are to nearest; the way ties go is lost in a QDQ graph. Factors are float64 and broadcast
against x.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_onnx.integer.rules.fixed_point import fixed_point_factors
from compiler.ir.dataflow import Step
from compiler.ops.qnn.requantize import OP, TFLM, factors_in

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
    if step.name == OP:
        known = None if step.attrs.rounding in TFLM else factors_in(step)
        return None if known is None else known.scale
    found = fixed_point_factors(step)
    if found is None:
        return None
    factor = np.ldexp(found[0].astype(np.float64), (found[1] - 31).astype(np.int32))
    return factor.reshape(factor.shape[step.attrs.axis % factor.ndim :]) if factor.ndim else factor
