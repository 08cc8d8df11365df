"""Convolutions: depthwise, by runs of a window, and transposed ones by phases."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ops.nn.conv2d import turned_kernel
from compiler.ops.number_format import Array
from compiler.targets.engine.epilogue import put_epilogue, repeated
from compiler.targets.engine.layouts import MOST_IMAGES, channels_last
from compiler.targets.engine.packing import (
    depthwise_columns,
    dot_unit,
    filled_rows,
    least_columns,
    pack_depthwise,
    rows_together,
)
from compiler.targets.engine.planner import Planner, rule
from compiler.targets.engine.products import (
    bias_of,
    constant_product,
    weights_fit,
    write_product,
)
from compiler.targets.engine.steps import number
from compiler.targets.engine.transposed import convolutions_of, pixels_joined, transposed
from compiler.targets.engine.values import Epilogue, Item, Product
from compiler.targets.engine.views import Address, View

_MOST_SEGMENTS = 1024
_MOST_GROUPS = 1 << 16
_MOST_WINDOW = 1 << 14
"""Products of one sum of a convolution of several pixels."""


@rule("nn.conv2d", "nn.conv2d_transpose")
def conv2d(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Depthwise ones by taps, all others as products over the runs of a window.

    A transposed one is such a convolution for every place modulo its stride.
    """
    attrs: Any = step.attrs
    data, kernel = args
    spread = transposed(step)
    if spread is not None:
        data = planner.item(planner.root(spread.value))
        if len(data.shape) == 6:
            view = planner.materialise(data).reshaped(
                tuple(data.shape[axis] for axis in (0, 1, 2, 4))
            )
            assert view is not None
            data = Item(view.shape, data.low, data.high, view=view)
    layout, out_layout = attrs.data_layout, attrs.out_layout or attrs.data_layout
    if kernel.data is None or data.data is not None or len(data.shape) != 4:
        return False
    if sorted(layout) != sorted("NCHW") or sorted(out_layout) != sorted("NCHW"):
        return False
    if sorted(attrs.kernel_layout) != sorted("OIHW"):
        return False
    turned = step.name == "nn.conv2d_transpose"
    letters = "IOHW" if turned else "OIHW"
    weight = kernel.data.transpose([attrs.kernel_layout.index(c) for c in letters])
    weight = turned_kernel(weight, attrs.groups) if turned else weight
    if not weights_fit(weight, data) or data.shape[layout.index("N")] > MOST_IMAGES:
        return False
    channels, inner, height, width = weight.shape
    if height * width > _MOST_SEGMENTS:
        return False
    depthwise = inner == 1 and attrs.groups == channels and channels > 1
    if attrs.groups > _MOST_GROUPS and not depthwise:
        return False
    flat = weight.reshape(channels, -1)
    padding = attrs.padding if spread is None else spread.padding()

    def emit(part: Item, item: Item, epilogue: Epilogue, product: Product) -> View:
        source = _bordered(planner, part, layout, padding)
        source = source.permuted([layout.index(c) for c in "NHWC"])
        out = planner.emitter.allocate(item, channels_last(out_layout))
        target = out.permuted(channels_last(out_layout))
        groups = 1 if depthwise else attrs.groups
        write = _write_depthwise if depthwise else _write_convolution
        whole, least = (attrs, weight, source, target), least_columns(planner.library)
        parts = convolutions_of(spread, *whole, least) if spread else [whole]
        for how, taps, one, made in parts:
            if attrs.groups == 1:
                how, taps, made = _pixels_as_channels(how, taps, made, least)
            one_run = attrs.groups == 1 and taps[0, 0].size == 1
            pixels = prod(made.shape[1:3]) if one_run else 0
            bias, crossed = bias_of(planner, source, taps.reshape(len(taps), -1), pixels)
            rows = _filled_rows(planner, how, taps, one, made) if depthwise else 0
            ends = repeated(epilogue, product, len(taps) // channels)
            fields = put_epilogue(planner, *ends, item, groups, bias, rows > 0)
            fields |= {} if depthwise else {"crossed": crossed}
            write(planner, how, taps, one, made, fields)
        return out

    axis = out_layout.index("C")
    return constant_product(planner, step, flat, data, axis, emit, out_layout)


def _pixels_as_channels(
    attrs: Any, weight: Array, target: View, least: int
) -> tuple[Any, Array, View]:
    """A convolution with few channels of several pixels at once, which fill a vector.

    Their windows lie in one, with zeros where another pixel's window is; pixels that lie one behind
    the other are the channels of one of that stride.
    """
    channels, inner, height, width = weight.shape
    by = attrs.strides[1]
    pixel = channels * target.buffer.item
    if attrs.dilation[1] != 1 or target.strides[2:] != (pixel, target.buffer.item):
        return attrs, weight, target
    counts = [n for n in range(1, least // channels + 1) if target.shape[2] % n == 0]
    spans = {n: width + (n - 1) * by for n in counts}
    best = min(counts, key=lambda n: spans[n] / n, default=1)
    if best == 1 or spans[best] * inner * height > _MOST_WINDOW or spans[best] / best > 0.8 * width:
        return attrs, weight, target
    wide = np.zeros((best, channels, inner, height, spans[best]), weight.dtype)
    for place in range(best):
        wide[place, ..., place * by : place * by + width] = weight
    made = pixels_joined(target, best)
    how = replace(attrs, strides=(attrs.strides[0], best * by))
    return how, wide.reshape(best * channels, inner, height, spans[best]), made


def _bordered(planner: Planner, data: Item, layout: str, padding: Sequence[int]) -> View:
    """The data with the border that the convolution reads, starting in its corner."""
    top, left, bottom, right = padding
    view = planner.materialise(data)
    h, w, c = (layout.index(letter) for letter in "HWC")
    need = {h: (top, bottom), w: (left, right)}
    pads = [need.get(axis, (0, 0)) for axis in range(4)]
    held = data.border
    enough = not any(padding) or (
        held is not None
        and held[1] == 0
        and all(b >= x and a >= y for (b, a), (x, y) in zip(held[0], pads))
    )
    if not enough or (view.shape[c] > 1 and view.strides[c] != view.buffer.item):
        order = tuple(layout.index(letter) for letter in "NHWC")
        storage = view.buffer.storage
        made = planner.emitter.bordered(storage, data.shape, order, pads, view.buffer.zero)
        planner.emitter.copy(view, made)
        view = made
    offset = view.offset - top * view.strides[h] - left * view.strides[w]
    shape = list(view.shape)
    shape[h] += top + bottom
    shape[w] += left + right
    return View(view.buffer, offset, tuple(shape), view.strides)


def _filled_rows(planner: Planner, attrs: Any, weight: Array, source: View, target: View) -> int:
    """Output rows together in depthwise kernels that fill registers; 0 where there are none."""
    if planner.library.depthwise_block == 1:
        return 0
    unit = dot_unit(source.buffer.type, planner.library)
    kernel = weight.shape[2], weight.shape[3]
    return filled_rows(kernel, attrs.strides, attrs.dilation, target.shape[1], unit)


def _write_depthwise(
    planner: Planner, attrs: Any, weight: Array, source: View, target: View, fields: dict[str, Any]
) -> None:
    emitter, library = planner.emitter, planner.library
    channels, _, height, width = weight.shape
    (sy, sx), (dy, dx), block = attrs.strides, attrs.dilation, fields.get("block", 1)
    unit = dot_unit(source.buffer.type, library)
    together = rows_together(height, sy, dy, target.shape[1], unit)
    if block > 1:
        together = _filled_rows(planner, attrs, weight, source, target)
    elif library.columns_outside:
        together = 1
    lines = (together - 1) * sy + height
    packed = pack_depthwise(weight[:, 0], sy, together, block, unit, library)
    fields |= {"weight": emitter.put(packed), "block": block}
    columns = depthwise_columns(target.shape[2], width, sx, dx, block)
    for one, made in zip(source.images(), target.images()):
        scratch = emitter.scratch(columns * -(-lines // unit) * block * 64)
        emitter.step(
            "depthwise",
            [one],
            [made, scratch],
            macs=prod(made.shape) * height * width,
            constants=packed.size,
            type=number(one.buffer.type),
            channels=channels,
            kernel_y=height,
            kernel_x=width,
            stride_y=sy,
            stride_x=sx,
            dilation_y=dy,
            dilation_x=dx,
            together=together,
            scratch=Address(scratch),
            **one.fields_to(made),
            **fields,
        )


def _write_convolution(
    planner: Planner, attrs: Any, weight: Array, source: View, target: View, fields: dict[str, Any]
) -> None:
    channels, inner, height, width = weight.shape
    groups = attrs.groups
    (sy, sx), (dy, dx) = attrs.strides, attrs.dilation
    taps = weight.transpose(0, 2, 3, 1)
    # The taps of a window's row lie one behind the other: one run.
    joined = dx == 1 and source.strides[2] == inner * source.buffer.item and groups == 1
    runs = taps.reshape(channels, height, width * inner)
    if not joined:
        runs = taps.reshape(channels, height * width, inner)
    for one, made in zip(source.images(), target.images()):
        write_product(
            planner,
            runs,
            groups,
            fields,
            one,
            made,
            one.fields_to(made)
            | {
                "in_row": one.strides[0] * sy,
                "in_pixel": one.strides[1] * sx,
                "in_group": inner * one.strides[2],
                "out_group": channels // groups * made.strides[2],
                "seg_y": height,
                "seg_x": 1 if joined else width,
                "seg_row": one.strides[0] * dy,
                "seg_pixel": one.strides[1] * dx,
            },
        )
