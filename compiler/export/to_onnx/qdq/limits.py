"""Limits and factors of integer steps, as a QDQ graph has them.

A clip of each channel in front of a clip to 8 bits is left out where both have the same limits: the
8 bit tensor has them by itself.
"""

from __future__ import annotations

import numpy as np

from compiler.core.words import FBody, operand
from compiler.export.to_onnx.qdq.emitter import LEVELS, Floats
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range, is_integer
from compiler.ops.qnn.requantize import OP, RESCALING, TFLM, Factors, factors_in, limits_of
from compiler.ops.tensor.clip import integer_bound


def needless_clips(step: Step) -> tuple[Step, ...]:
    """Return clips of channels in front of a clip to 8 bits of the same limits, but for a level."""
    limits = limits_in(step)
    if limits is None or limits[1] - limits[0] >= LEVELS:
        return ()
    factor: Floats = np.ones(())
    low, high = (np.asarray(float(end)) for end in limits)
    clips: list[Step] = []
    alone = True
    value = step.result
    while (producer := value.producer) is not None:
        alone = alone and (len(value.users) == 1 or producer is step)
        bounds = _bounds(producer)
        known = _factors(producer)
        if known is not None and (producer is step or limits_in(producer) is None):
            factor = factor * known.scale
            if getattr(producer.attrs, "relu", False):
                low = np.maximum(low, 0)
        elif producer.name == "nn.relu":
            low = np.maximum(low, 0)
        elif producer.name == "maximum" and alone and bounds is not None:
            low = np.maximum(low, bounds * factor)
            clips.append(producer)
        elif producer.name == "minimum" and alone and bounds is not None:
            high = np.minimum(high, bounds * factor)
            clips.append(producer)
        elif producer is not step and not _adds(producer):
            break
        value = producer.args[0]
    if low.max() <= limits[0] + 1 and limits[1] - 1 <= high.min():
        return tuple(clips)
    return ()


def _adds(step: Step) -> bool:
    """Return whether a step is a cast, or the sum with a constant."""
    return step.name == "cast" or (step.name == "add" and _bounds(step) is not None)


def _bounds(step: Step) -> Floats | None:
    """Return the constant that a step reads, infinite where it is an end of its dtype."""
    constant = step.args[1].data if len(step.args) > 1 else None
    if constant is None or not is_integer(str(constant.dtype)):
        return None
    least, most = integer_range(str(constant.dtype))
    bounds = np.where(constant >= most, np.inf, constant.astype(np.float64))
    return np.where(constant <= least, -np.inf, bounds)


def is_same(step: Step) -> bool:
    """Return whether a step gives the integers of its operand."""
    return step.name == "cast" or FBody.get(step.op) is operand


def factor_of(step: Step) -> Floats | None:
    """Return the factor of a requantization without a bias or relu, or of a fixed-point
    multiplication, in a shape that broadcasts; None for others, and for computed factors."""
    known = _factors(step)
    if known is None or known.bias.any() or getattr(step.attrs, "relu", False):
        return None
    return known.scale


def _factors(step: Step) -> Factors | None:
    """The factors by which a step multiplies; the way ties go is lost in a QDQ graph."""
    if step.name not in RESCALING or getattr(step.attrs, "rounding", "") in (TFLM, "floor"):
        return None
    return factors_in(step)


def limits_in(step: Step) -> tuple[int, int] | None:
    """Return the integers that a clip or a requantization limits to, its zero point taken off; None
    for other steps."""
    if step.name == OP:
        return limits_of(step.attrs)
    if step.name != "clip":
        return None
    dtype = step.args[0].type.dtype
    low, high = (integer_bound(end, dtype) for end in (step.attrs.a_min, step.attrs.a_max))
    return low, high
