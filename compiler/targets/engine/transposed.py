"""Transposed convolutions: one convolution of stride 1 for every place modulo the stride.

    out[y] = sum_r spread[y + r*d - before] * weight[r],  spread[i*s] = data[i], zeros between

The taps r of one y are those where y + r*d - before is a multiple of s, the same ones for every y
of one remainder p = y mod s. With y = q*s + p they read data[q + offset + t*step]: no zero is
multiplied, and no memory holds the zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.dataflow import Value as FlowValue
from compiler.ops.number_format import Array
from compiler.ops.transform.strided_slice import slices_of
from compiler.targets.engine.views import View


@dataclass(frozen=True, slots=True)
class Phase:
    """Reads of the outputs of one remainder along one axis.

    Attributes:
        taps: of the weight; none, or evenly apart.
        offset: of the first element that output 0 of the phase reads.
        step: elements from tap to tap.
        count: outputs.
    """

    taps: range
    offset: int
    step: int
    count: int


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a transposed convolution: see the formula above; sizes of data and result."""

    kernel: int
    dilation: int
    stride: int
    before: int
    size: int
    outputs: int

    def phases(self) -> list[Phase]:
        """Return the phases by remainder; without the remainders that no output has."""
        common = gcd(self.stride, self.dilation)
        found = []
        for p in range(min(self.stride, self.outputs)):
            places = [p + r * self.dilation - self.before for r in range(self.kernel)]
            first = next((r for r, at in enumerate(places) if at % self.stride == 0), self.kernel)
            taps = range(first, self.kernel, self.stride // common)
            offset = places[first] // self.stride if taps else 0
            count = -(-(self.outputs - p) // self.stride)
            found.append(Phase(taps, offset, self.dilation // common, count))
        return found

    def padding(self) -> tuple[int, int]:
        """Zeros that the phases read before and behind the data."""
        # A phase without taps is a convolution by one zero.
        reach = [(f, (max(len(f.taps), 1) - 1) * f.step) for f in self.phases()]
        ends = [(f.offset, f.count + f.offset + further) for f, further in reach]
        return max(0, *(-a for a, _ in ends)), max(0, *(b - self.size for _, b in ends))


@dataclass(frozen=True, slots=True)
class Transposed:
    """A transposed convolution of ``value``: rows and columns."""

    value: FlowValue
    rows: Axis
    columns: Axis

    def padding(self) -> tuple[int, int, int, int]:
        """Zeros around the data: top, left, bottom, right."""
        (top, bottom), (left, right) = self.rows.padding(), self.columns.padding()
        return top, left, bottom, right


def transposed(step: Step) -> Transposed | None:
    """``nn.conv2d`` of data that were given zeros between elements, as a transposed one is."""
    attrs: Any = step.attrs
    if step.name != "nn.conv2d":
        return None
    kernel = [step.args[1].type.concrete_shape[attrs.kernel_layout.index(c)] for c in "HW"]
    if attrs.data_layout != "NCHW" or tuple(attrs.strides) != (1, 1):
        return None
    top, left, bottom, right = attrs.padding
    found = _spread(step.args[0], {2: (top, bottom), 3: (left, right)})
    if found is None:
        return None
    value, strides, cut = found
    before = [p - c for p, c in zip(attrs.padding, cut)]
    shape = value.type.concrete_shape
    out = step.results[0].type.concrete_shape
    sizes = shape[2:5:2] if len(shape) == 6 else shape[2:]  # (N, C, H, 1, W, 1)
    outputs = [out[(attrs.out_layout or attrs.data_layout).index(c)] for c in "HW"]
    axes = zip(kernel, attrs.dilation, strides, before, sizes, outputs)
    return Transposed(value, *(Axis(*axis) for axis in axes))


def _spread(
    value: FlowValue, pads: Mapping[int, tuple[int, int]]
) -> tuple[FlowValue, Sequence[int], tuple[int, int]] | None:
    """(data, strides, cut) of a value that ``nn.conv2d_transpose`` made of data.

    It is ``reshape(nn.pad(data))`` of data (N, C, H, 1, W, 1), cut at the ends; or of a reshape,
    which may be a conversion of the model's input.

    Args:
        pads: zeros before and behind the value, by axis.
    """
    step = value.producer
    cut = (0, 0)
    if step is not None and step.name == "strided_slice":
        shape = step.args[0].type.concrete_shape
        kept = {
            a: slice(*part).indices(shape[a]) for a, part in slices_of(shape, step.attrs).items()
        }
        begins = [kept.get(axis, (0, 0, 1))[0] for axis in range(len(shape))]
        ends = [kept.get(axis, (0, size, 1))[1] for axis, size in enumerate(shape)]
        # Zeros of the padding must not stand where elements were cut.
        for axis, (begin, end, size) in enumerate(zip(begins, ends, shape)):
            before, behind = pads.get(axis, (1, 1))
            if (begin and before) or (end < size and behind):
                return None
        if len(shape) != 4 or any(by != 1 for _, _, by in kept.values()):
            return None
        step = step.args[0].producer
        cut = (begins[2], begins[3])
    names: list[str] = []
    sources: list[Step] = []
    while step is not None and len(names) < 2:
        names.append(step.name)
        sources.append(step)
        step = step.args[0].producer
    if names != ["reshape", "nn.pad"]:
        return None
    whole, padded = sources
    data = padded.args[0]
    zero = padded.args[1].data
    shape = data.type.concrete_shape
    if len(shape) != 6 or zero is None or np.any(zero) or padded.attrs.pad_mode != "constant":
        return None
    n, c, h, one, w, other = shape
    width = [tuple(pair) for pair in padded.attrs.pad_width]
    if (one, other) != (1, 1):
        return None
    if step is not None and step.name == "reshape":
        if step.args[0].type.concrete_shape == (n, c, h, w):
            data = step.args[0]
        else:
            data = data
    strides = width[3][1] + 1, width[5][1] + 1
    if width != [(0, 0)] * 3 + [(0, strides[0] - 1), (0, 0), (0, strides[1] - 1)]:
        return None
    if whole.results[0].type.concrete_shape != (n, c, h * strides[0], w * strides[1]):
        return None
    return data, strides, cut


def convolutions_of(
    spread: Transposed, attrs: Any, weight: Array, source: View, target: View, least: int
) -> Iterator[tuple[Any, Array, View, View]]:
    """Attributes, weight, source and target of the convolutions of a transposed one.

    Args:
        source: batch, rows, columns, channels, with ``spread.padding()`` around them.
        target: of the whole result, in the same order.
        least: channels that cost as much as one.
    """
    top, left, _, _ = spread.padding()
    columns = spread.columns.phases()
    for y, row in enumerate(spread.rows.phases()):
        lines = weight[:, :, row.taps]
        start = source.offset + (top + row.offset) * source.strides[1]
        made = target.sliced(1, y, target.shape[1], spread.rows.stride)
        how = replace(attrs, strides=(1, 1), dilation=(row.step, columns[0].step))
        if attrs.groups == 1:
            joined = _joined(columns, lines, made, least)
        else:
            joined = None
        parts = [(x, f.offset, lines[:, :, :, f.taps]) for x, f in enumerate(columns)]
        for x, first, taps in parts if joined is None else [(0, *joined)]:
            if not taps.size:
                taps = np.zeros_like(weight[:, :, :1, :1])
            offset = start + (left + first) * source.strides[2]
            corner = View(source.buffer, offset, source.shape, source.strides)
            if joined is None:
                one = made.sliced(2, x, target.shape[2], spread.columns.stride)
            else:
                one = pixels_joined(made, len(columns))
            yield how, taps, corner, one


def _joined(
    columns: Sequence[Phase], weight: Array, made: View, least: int
) -> tuple[int, Array] | None:
    """The first element, and the taps of the phases of a row as channels of one convolution, where
    the phases have few channels and equal counts."""
    channels = len(weight)
    pixel = len(weight) * made.buffer.item
    if len(columns) * channels > least or made.strides[2:] != (pixel, made.buffer.item):
        return None
    if len({f.count for f in columns}) > 1 or {f.step for f in columns} != {1} or not weight.size:
        return None
    first = min(f.offset for f in columns)
    span = max(f.offset + max(len(f.taps), 1) for f in columns) - first
    taps = np.zeros((len(columns), *weight.shape[:3], span), weight.dtype)
    for number, f in enumerate(columns):
        taps[number, ..., f.offset - first : f.offset - first + len(f.taps)] = weight[..., f.taps]
    return first, taps.reshape(-1, *taps.shape[2:])


def pixels_joined(view: View, count: int) -> View:
    """Images of which pixels one behind the other are the channels of one."""
    images, rows, columns, channels = view.shape
    strides = (*view.strides[:2], count * view.strides[2], view.strides[3])
    return View(
        view.buffer, view.offset, (images, rows, columns // count, count * channels), strides
    )
