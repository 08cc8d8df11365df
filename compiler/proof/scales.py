"""Multipliers against scales: each requantization is computed anew from the scales of its values.

    q = scale of what is multiplied / scale of the result      per channel where one of them is
    rounding       multiplier * 2^(shift - 31) is
    tflm           q in double, 31 digits, as TFLM prepares it
    all others     q in float32: a power of two where it is one; else of 31 digits, or the next
                   float32 to either side, up to 64, whose float product has the same results
                   (``requantization`` "float_product")

No bound depends on a scale. A multiplier whose values do not both carry one, such as the slope of a
PRelu, is counted as one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from compiler.ir.dataflow import Dataflow, Step, Value, dataflow
from compiler.ir.module import IRModule
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import OP, TFLM, Factors, factors_in, limits_of
from compiler.ops.rules.dom_scale import as_scale
from compiler.ops.rules.float_product import EXACT, same_as_float_product
from compiler.ops.rules.requantize import TIES, exact_log2, multiplier_and_shift, tflm_multiplier
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO
from compiler.proof.wiring import CORE, PREFIX
from compiler.ranges.analysis import RangeContext
from compiler.ranges.finding import Finding

_NEAR: Final = 64
_DIGITS: Final = 24
_CONVERTS: Final = ("cast", "clip", "round", "round_even", "reshape", "transpose", "squeeze")
_LEAST: Final = -63
"""Shift of a requantization."""


def wrong_multipliers(flow: Dataflow, ctx: RangeContext) -> tuple[int, int]:
    """Report the multipliers that are not those of the scales.

    Returns:
        How many requantizations agree with both scales, and how many there are.
    """
    steps = [step for one in flow.flows() for step in one.steps if step.name == OP]
    told = [step for step in steps if step.args[0].quant and step.result.quant]
    told = [step for step in told if not step.attrs.own_factor]
    found = {step: what for step in told if (what := _difference(step, ctx)) is not None}
    for step, what in found.items():
        ctx.operator = step
        ctx.report(step, what)
    return len(told) - len(found), len(steps)


def wrong_conversions(mod: IRModule) -> Iterator[Finding]:
    """Find inputs of the core that carry other scales than @quantize_inputs gives them.

    It multiplies by 1 / scale, rounds and adds the zero point. What is converted otherwise is left
    alone, and so are outputs: a factor of the model may be part of what they are multiplied by.
    """
    before = dataflow(mod, PREFIX)
    for value, param in zip(before.outputs, mod[CORE].params):
        found = _conversion(value)
        quant = param.quant
        if quant is None or found is None:
            continue
        factor, zero_point = found
        wanted = (np.float32(1) / quant.scales).reshape(-1)
        if not np.array_equal(wanted, factor) or quant.zero_point != zero_point:
            yield Finding(
                "ranges",
                f"input %{param.name_hint}",
                f"is multiplied by {factor[0]:.9g} and has the zero point {zero_point:g}; its "
                f"scale says {wanted[0]:.9g} and {quant.zero_point}",
            )
    before.unlink()


def _conversion(value: Value) -> tuple[Array, float] | None:
    """The factor and the zero point of an input; None where it is not converted by these."""
    zero_point = 0.0
    while (step := value.producer) is not None:
        held = step.args[1].data if len(step.args) == 2 else None
        if step.name == "multiply" and held is not None:
            return held.reshape(-1), zero_point
        if step.name == "add" and held is not None and held.size == 1:
            zero_point += float(held.reshape(()))
        elif step.name not in _CONVERTS:
            return None
        value = step.args[0]
    return None


def _difference(step: Step, ctx: RangeContext) -> str | None:
    """Describe the difference between the factors of a requantization and its scales; None where
    there is none."""
    read = step.args[0].quant
    made = step.result.quant
    factors = factors_in(step)
    assert read is not None
    assert made is not None
    if factors is None:
        return "has scales, but a multiplier that is computed"
    if made.zero_point != step.attrs.zero_point:
        return f"adds {step.attrs.zero_point}, its scale has the zero point {made.zero_point}"
    shape = step.result.type.concrete_shape
    if not read.fits(shape) or not made.fits(shape):
        return f"has scales that lie along no axis of {shape}"
    multiplier, shift = np.broadcast_arrays(factors.multiplier, factors.shift)
    wrong = np.ones(np.broadcast_shapes(multiplier.shape, read.scales.shape, made.scales.shape))
    for wanted, amount in _by_rule(read.scales, made.scales, step.attrs.rounding):
        amount = np.where(wanted == 0, 0, np.maximum(amount, _LEAST))
        wrong = wrong * ((wanted != multiplier) | (amount != shift))
    if wrong.any() and step.attrs.rounding != TFLM:
        quotient = np.broadcast_to(as_scale(read.scales / made.scales), wrong.shape)
        wrong = wrong * ~_is_float_product(step, factors, quotient, ctx)
    if not wrong.any():
        return None
    at = tuple(np.argwhere(wrong)[0])
    names = (multiplier, shift, wanted, amount, read.scales, made.scales)
    m, s, other, there, before, behind = (np.broadcast_to(n, wrong.shape)[at] for n in names)
    return (
        f"multiplies by {m} * 2^({s} - 31); the scales {before:.9g} and {behind:.9g} give "
        f"{other} * 2^({there} - 31)"
    )


def _by_rule(read: Array, made: Array, rounding: str) -> Iterator[tuple[Array, Array]]:
    """The multipliers and shifts that the quotient of two scales may become."""
    if rounding == TFLM:
        double = read.astype(np.float64) / made.astype(np.float64)
        yield tflm_multiplier(double)
        return
    with np.errstate(over="ignore"):
        quotient = as_scale(read / made)
        powers = exact_log2(as_scale(made / read))
    if powers is not None:
        yield np.full_like(powers, POWER_OF_TWO), 1 - powers
    yield multiplier_and_shift(np.minimum(quotient, np.float32(2.0**30)))


def _is_float_product(step: Step, factors: Factors, quotient: Array, ctx: RangeContext) -> Array:
    """Per channel: the factor is a float32 near the quotient that one float product replaces."""
    attrs = step.attrs
    limits = limits_of(step.attrs)
    bounds = ctx.of(step.args[0])
    exact = np.broadcast_to(factors.scale, quotient.shape)
    chosen = exact.astype(np.float32)
    apart = chosen.view(np.int32).astype(np.int64) - quotient.view(np.int32)
    near = (chosen == exact) & (np.abs(apart) <= _NEAR)
    if limits is None or attrs.rounding not in TIES.values() or not near.any():
        return np.zeros(quotient.shape, bool)
    low = int((bounds.low + factors.bias).min())
    high = int((bounds.high + factors.bias).max())
    ends = max(low, 0 if attrs.relu else -EXACT), min(high, EXACT)
    fraction, exponent = np.frexp(exact.reshape(-1))
    whole = np.ldexp(fraction, _DIGITS).astype(np.int64)
    same = same_as_float_product(whole, _DIGITS - exponent, attrs.rounding, *ends, limits)
    return np.asarray(near & same.reshape(near.shape))
