"""FQInputColumns: a weighted operator as matrix products of its weight with columns of its data.

    out[g, o, p] = sum_k rows[g, o, k] * columns[g, k, p]        g: group, p: position, k: tap

What rounding a weight does to the output depends on the data only through the products of columns,
columns[g] columns[g]^T. Sequential rounding asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call
from compiler.ir.op import OpRule
from compiler.ops.nn.window import axes_of, pad_spatial
from compiler.ops.number_format import Array


@dataclass(frozen=True, slots=True)
class InputColumns:
    """One weighted operator, its data being operand 0 and its weight operand 1.

    Attributes:
        data_axis: channel axis of the data.
        channels: int64 (groups, taps): the channel of the data that each tap reads.
        columns: ``columns(data, some)`` gives pieces with the group each begins at, (groups of the
            piece, taps, positions), in the data's dtype: all groups, a few at a time, at those
            positions of each image, or those rows, that the slice ``some`` names.
        rows: ``rows(weight)``: (groups, outputs of a group, taps), a view or copy.
        weight: ``weight(rows)``: the inverse of ``rows``.
        images: of one run, and the positions of each.
    """

    data_axis: int
    channels: NDArray[np.int64]
    columns: Callable[..., Iterator[tuple[int, Array]]]
    rows: Callable[[Array], Array]
    weight: Callable[[Array], Array]
    images: tuple[int, int]


FQInputColumns: OpRule[Callable[[Call], InputColumns | None]] = OpRule(
    "FQInputColumns", asked_by="sequential rounding (compiler/quantize)"
)
"""``rule(call)`` for a typed call; None for layouts it does not know."""


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
