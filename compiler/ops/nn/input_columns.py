"""Convolutions and dense layers as products with columns of their data, for sequential rounding."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np

from compiler.ir.expr import Call
from compiler.ops.nn.window import axes_of, pad_spatial
from compiler.ops.number_format import Array
from compiler.ops.rules.input_columns import (
    FQInputColumns,
    InputColumns,
)

_PIECE_BYTES: Final = 1 << 25
"""Columns are made in pieces of about this size."""


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
    groups, taps = attrs.groups, inputs * height * width
    channels = np.arange(groups * inputs, dtype=np.int64).reshape(groups, inputs)

    @lru_cache(maxsize=4)  # of one layer: image after image reads the same places
    def reads_of(line: int, *some: int | None) -> Array:
        """Places that windows read of a padded channel of such lines, tap after tap."""
        places = np.arange(size[0] * size[1])[slice(*some)]
        down, right = (step * np.arange(n) for step, n in zip(attrs.dilation, (height, width)))
        row, column = places // size[1] * attrs.strides[0], places % size[1]
        starts = row * line + column * attrs.strides[1]
        return np.asarray((down[:, None] * line + right).reshape(-1, 1) + starts).reshape(-1)

    def columns(data: Array, some: slice) -> Iterator[tuple[int, Array]]:
        positions = len(range(size[0] * size[1])[some])
        most = -(-size[0] * size[1] // (some.step or 1))  # the same pieces wherever it begins
        step = max(_PIECE_BYTES // (8 * most * taps), 1)
        padded = pad_spatial(data.transpose(data_axes), attrs.padding, 0)
        reads = reads_of(padded.shape[3], some.start, some.stop, some.step)
        plain = padded.shape[2:] == size and taps == inputs
        for flat in padded.reshape(*padded.shape[:2], -1):
            for first in range(0, groups, step):
                part = flat[first * inputs : (first + step) * inputs]
                read = part[:, some] if plain else part.take(reads, axis=1)
                yield first, read.reshape(-1, taps, positions)

    def rows(weight: Array) -> Array:
        return weight.transpose(kernel_axes).reshape(groups, outputs // groups, taps)

    def weight(values: Array) -> Array:
        plain = values.reshape(outputs, inputs, height, width)
        return np.asarray(plain.transpose(np.argsort(kernel_axes)))

    repeated = np.repeat(channels, height * width, axis=1)
    images = result[out_axes[0]], size[0] * size[1]
    return InputColumns(data_axes[1], repeated, columns, rows, weight, images)


@FQInputColumns.register("nn.dense")
def dense_columns(call: Call) -> InputColumns:
    """A column for every row of the data."""
    units, features = call.args[1].tensor_type.concrete_shape

    def columns(data: Array, some: slice) -> Iterator[tuple[int, Array]]:
        flat = data.reshape(-1, features)[some]
        step = max(_PIECE_BYTES // (8 * features), 1)
        for first in range(0, len(flat), step):
            yield 0, flat[first : first + step].T[None]

    def rows(weight: Array) -> Array:
        return weight.reshape(1, units, features)

    def weight(values: Array) -> Array:
        return values.reshape(units, features)

    channels = np.arange(features, dtype=np.int64)[None]
    shape = call.args[0].tensor_type.concrete_shape
    images = shape[0], int(np.prod(shape[1:-1]))
    return InputColumns(len(shape) - 1, channels, columns, rows, weight, images)
