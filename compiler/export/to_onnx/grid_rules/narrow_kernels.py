"""Convolutions on onnxruntime's 8 bit kernels, where a float32 product does the requantization.

    QLinearConv(x + z, W, bias, factor a) = clip(rint(fl(acc * a)), -z', 255 - z') + z'

with the sum ``acc`` in int32, exact, and below 2^24 by the bounds of the grid. So it gives the
module's integers wherever ``fixed_point`` proves a float32 product without addend, which
``requantization="float_product"`` sees to in every channel. Activations are held in uint8, 0 being
z: signed ones have no fast kernel. Padding is z.

Measured on EfficientNet-Lite0: two fifths of the cost of float32 tensors that hold integers.
"""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.grid_emitter import Bound, Carried, GridEmitter, Narrow, NarrowConv
from compiler.export.to_onnx.grid_rules.fixed_point import Factor, plain_product_holds
from compiler.export.to_onnx.windows import window_attributes
from compiler.ir.dataflow import Step
from compiler.ops.number_format import Array

LEVELS = 256


def zero_point(low: int, high: int) -> int | None:
    """What to add so that [low, high] fits in uint8: 0, or -low; None where it is too wide."""
    if low >= 0 and high < LEVELS:
        return 0
    return -low if high - low < LEVELS and low < 0 else None


def narrow_conv(step: Step, x: Carried, weight: Array, grid: GridEmitter) -> NarrowConv | None:
    """How to write a convolution with its requantization; None where 8 bits do not hold it."""
    held = x.narrow
    shift = held.zero_point if held is not None else zero_point(x.low, x.high)
    if not grid.narrow_kernels or shift is None:
        return None
    if int(weight.min(initial=0)) < -128 or int(weight.max(initial=0)) > 127:
        return None
    attrs = step.attrs

    def emit(bias: Array | None, factor: Array, out_zero: int) -> str | None:
        channels = weight.shape[0]
        if factor.size > 1 and factor.shape != (channels, 1, 1):
            return None  # factors of rows or of samples
        scales = np.broadcast_to(factor.astype("float32").reshape(-1), channels).copy()
        one = grid.float_constant(1)
        inputs = [
            narrowed(x, shift, grid),
            one,
            grid.writer.constant(np.asarray(shift, "uint8")),
            grid.writer.constant(weight.astype("int8")),
            grid.writer.constant(scales),
            grid.writer.constant(np.zeros(channels, "int8")),
            one,
            grid.writer.constant(np.asarray(out_zero, "uint8")),
        ]
        if bias is not None:
            inputs.append(grid.writer.constant(bias.astype("int32")))
        return grid.node(
            "QLinearConv", inputs, group=attrs.groups, **window_attributes(attrs, weight.shape[2:])
        )

    return emit


def narrowed(x: Carried, shift: int, grid: GridEmitter) -> str:
    """x + shift as uint8."""
    if x.narrow is not None:
        return x.narrow.name
    name = grid.as_float(x)
    if shift:
        name = grid.node("Add", [name, grid.float_constant(shift)])
    return grid.writer.cast(name, "uint8")


def requantized_narrow(
    source: Carried,
    factor: Factor,
    bounds: tuple[Bound, Bound],
    limits: tuple[int, int],
    grid: GridEmitter,
) -> Carried | None:
    """The product with its requantization in one node; None where the kernels have no such form.

    Args:
        source: a sum below 2^24.
        factor: what it is multiplied by.
        bounds: of the sum, one for all channels or one per channel.
        limits: all that is told apart later.
    """
    product = source.product
    shift = zero_point(*limits)
    if product is None or product.narrow is None or shift is None:
        return None
    if not plain_product_holds(factor, *bounds, *limits):
        return None
    name = product.narrow(product.bias, factor.real(), shift)
    if name is None:
        return None
    if limits[1] + shift < LEVELS - 1 or (shift == 0 and limits[0] > 0):
        ends = [grid.writer.constant(np.asarray(b + shift, "uint8")) for b in limits]
        name = grid.node("Clip", [name, *ends])
    return from_narrow(name, shift, limits, grid)


def from_narrow(name: str, shift: int, limits: tuple[int, int], grid: GridEmitter) -> Carried:
    """Integers computed in uint8, also in float32 where an operator asks for that."""
    real = grid.writer.cast(name, "float32")
    if shift:
        real = grid.node("Sub", [real, grid.float_constant(shift)])
    return Carried(real, "float32", *limits, narrow=Narrow(name, shift))
