"""quantized_constant: the integers that realization makes of a constant with a bound point."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr
from compiler.ops.annotation.attach_simulated_quantize import point_attrs
from compiler.ops.rules.dom_scale import as_scale
from compiler.ops.rules.integer_calls import along_axis
from compiler.ops.tensor.unary import round_half_away


def quantized_constant(point: Expr) -> NDArray[np.int64] | None:
    """clip(round(data * fl(1 / scale)), clip_min, clip_max) in float32, as integers.

    Args:
        point: a simulated_quantize whose scale and bounds are constants.
    Returns:
        None for any other expression.
    """
    attrs = point_attrs(point)
    if attrs is None or not isinstance(point, Call):
        return None
    values = [arg.data for arg in point.args if isinstance(arg, Constant)]
    if len(values) != len(point.args):
        return None
    data, scale, low, high = values
    trailing = None if attrs.axis is None else data.ndim - attrs.axis % data.ndim - 1
    reciprocal = along_axis(as_scale(np.float32(1) / scale), trailing, "float32").data
    return np.asarray(np.clip(round_half_away(data * reciprocal), low, high), np.int64)
