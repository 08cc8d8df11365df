"""FQInputColumns: a weighted operator as matrix products of its weight with columns of its data.

    out[g, o, p] = sum_k rows[g, o, k] * columns[g, k, p]        g: group, p: position, k: tap

Calibration measures the data of operators with this rule channel by channel; bias correction asks
what an error of the weight adds to the output on average.
What rounding a weight does to the output depends on the data only through the products of columns,
columns[g] columns[g]^T. Sequential rounding asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call
from compiler.ir.op import OpRule
from compiler.ops.nn.window import axes_of
from compiler.ops.number_format import Array


@dataclass(frozen=True, slots=True)
class InputColumns:
    """One weighted operator, its data being operand 0 and its weight operand 1.

    Attributes:
        data_axis: channel axis of the data.
        channels: int64 (groups, taps): the channel of the data that each tap reads.
        reads: ``reads(some)``: int32 (taps of one channel, positions), where the first channel
            lies in the flat data, or -1 for padding, at those positions of each image, or those
            rows, that the slice ``some`` names.
        stride: from one channel to the next in the flat data.
        rows: ``rows(weight)``: (groups, outputs of a group, taps), a view or copy.
        weight: ``weight(rows)``: the inverse of ``rows``.
        images: of one run, and the positions of each.
        coverage: ``coverage()``: for each tap of a channel, the fraction of positions where it lies
            on the data and not on padding.
    """

    data_axis: int
    channels: NDArray[np.int64]
    reads: Callable[[slice], Array]
    stride: int
    rows: Callable[[Array], Array]
    weight: Callable[[Array], Array]
    images: tuple[int, int]
    coverage: Callable[[], Array]

    def respond(self, weight: Array, means: Array) -> Array:
        """The mean of each output channel, float64, where a channel of the data is everywhere as
        large as its mean; padding is 0."""
        read = means[self.channels] * np.resize(self.coverage(), self.channels.shape)
        made = np.matmul(self.rows(weight).astype(np.float64), read[:, :, None])
        return np.asarray(made.reshape(-1))


FQInputColumns: OpRule[Callable[[Call], InputColumns]] = OpRule(
    "FQInputColumns",
    asked_by="channel statistics, bias correction and sequential rounding (compiler/quantize)",
)
"""``rule(call)`` for a typed call."""


@FQInputColumns.register("nn.conv2d")
def conv2d_columns(call: Call) -> InputColumns:
    """A column for every output position; taps are ordered (input channel, row, column)."""
    attrs: Any = call.attrs
    out_layout = attrs.out_layout or attrs.data_layout
    data_axes = axes_of("nn.conv2d", attrs.data_layout, "NCHW", "data_layout")
    kernel_axes = axes_of("nn.conv2d", attrs.kernel_layout, "OIHW", "kernel_layout")
    out_axes = axes_of("nn.conv2d", out_layout, "NCHW", "out_layout")
    shape = call.args[1].tensor_type.concrete_shape
    outputs, inputs, height, width = (shape[axis] for axis in kernel_axes)
    result = call.tensor_type.concrete_shape
    size = result[out_axes[2]], result[out_axes[3]]
    groups = attrs.groups
    taps = inputs * height * width
    channels = np.arange(groups * inputs, dtype=np.int64).reshape(groups, inputs)

    data = call.args[0].tensor_type.concrete_shape
    of_image, stride, *of_place = (math.prod(data[axis + 1 :]) for axis in data_axes)
    starts = of_image * np.arange(data[data_axes[0]])[:, None]
    taps_of = zip(attrs.dilation, (height, width), attrs.padding)
    down, right = (step * np.arange(count) - before for step, count, before in taps_of)

    def reads(some: slice) -> Array:
        place = np.arange(size[0] * size[1])[some]
        row = down[:, None, None] + attrs.strides[0] * (place // size[1])
        column = right[:, None] + attrs.strides[1] * (place % size[1])
        inside = (row >= 0) & (row < data[data_axes[2]])
        inside = inside & (column >= 0) & (column < data[data_axes[3]])
        found = np.where(inside, of_place[0] * row + of_place[1] * column, -1)
        found = found.reshape(height * width, 1, -1)
        found = np.where(found < 0, -1, found + starts)
        return found.reshape(height * width, -1).astype(np.int32)

    def coverage() -> Array:
        covered = []
        for k, first in enumerate((down, right)):
            places = first[:, None] + attrs.strides[k] * np.arange(size[k])
            covered.append(((places >= 0) & (places < data[data_axes[2 + k]])).mean(axis=1))
        return np.outer(*covered)

    def rows(weight: Array) -> Array:
        return weight.transpose(kernel_axes).reshape(groups, outputs // groups, taps)

    def weight(values: Array) -> Array:
        plain = values.reshape(outputs, inputs, height, width)
        return np.asarray(plain.transpose(np.argsort(kernel_axes)))

    repeated = np.repeat(channels, height * width, axis=1)
    images = result[out_axes[0]], size[0] * size[1]
    return InputColumns(data_axes[1], repeated, reads, stride, rows, weight, images, coverage)


@FQInputColumns.register("nn.dense")
def dense_columns(call: Call) -> InputColumns:
    """A column for every row of the data."""
    units, features = call.args[1].tensor_type.concrete_shape
    shape = call.args[0].tensor_type.concrete_shape

    def reads(some: slice) -> Array:
        return features * np.arange(math.prod(shape[:-1]), dtype=np.int32)[None, some]

    def rows(weight: Array) -> Array:
        return weight.reshape(1, units, features)

    def weight(values: Array) -> Array:
        return values.reshape(units, features)

    channels = np.arange(features, dtype=np.int64)[None]
    images = shape[0], int(np.prod(shape[1:-1]))
    return InputColumns(
        len(shape) - 1, channels, reads, 1, rows, weight, images, lambda: np.ones(1)
    )
