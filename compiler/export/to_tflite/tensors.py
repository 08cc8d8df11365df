"""The tensors of a LiteRT file, and operators that move them or compute with int32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from compiler.export.to_tflite.file import FileWriter
from compiler.export.to_tflite.values import Ints, Tensor
from compiler.ir.ty import integer_range
from compiler.ops.nn.softmax import OUT_BITS

_SAME = 0
_VALID = 1
_MOST_AXES = 5
"""Largest rank that TFLM pads and transposes."""
MOST_BROADCAST = 4
"""Axes of operands that TFLM broadcasts."""
_MOST_JOINED = 10
"""Tensors that TFLM concatenates at once."""
Limit = int | Ints | None


class TensorWriter:
    """Writes operators whose operands and results are tensors."""

    def __init__(self, writer: FileWriter) -> None:
        self.writer = writer

    def operator(
        self,
        name: str,
        inputs: Sequence[Tensor | int],
        like: Tensor,
        shape: Sequence[int],
        **fields: Any,
    ) -> Tensor:
        """The result of an operator, whose integers mean what those of ``like`` do.

        Args:
            inputs: tensors; constants by their numbers.
            fields: options of the operator.
        """
        title = f"value_{len(self.writer.tensors)}"
        grid = like.grid if like.scale else None
        made = self.writer.tensor(title, shape, like.dtype, grid)
        numbers = [one.tensor if isinstance(one, Tensor) else one for one in inputs]
        self.writer.operator(name, numbers, made, **fields)
        return replace(like, tensor=made, shape=tuple(shape))

    def whole(self, name: str, shape: Sequence[int]) -> Tensor:
        """An input of integers, which the model takes as they are."""
        return Tensor(self.writer.tensor(name, shape, "int32"), tuple(shape), dtype="int32")

    def worth(self, source: Tensor, scale: float) -> Tensor:
        """A tensor whose steps are worth this: a factor of the model stands in no operator."""
        known = source.scale == scale or (
            not source.scale and self.writer.worth(source.tensor, scale)
        )
        if known:
            return source
        return self.copied(replace(source, scale=scale))

    def padded(self, source: Tensor, width: Sequence[tuple[int, int]], value: int) -> Tensor:
        """PAD with the file's zero, PADV2 with another of its integers."""
        if not any(map(any, width)):
            return source
        shape = [n + a + b for n, (a, b) in zip(source.shape, width, strict=True)]
        if len(shape) > _MOST_AXES:
            merged = _merged(source.shape, width)
            if len(merged) < len(shape):
                whole = self.reshaped(source, [n for n, _ in merged])
                return self.reshaped(self.padded(whole, [ends for _, ends in merged], value), shape)
        inputs: list[Tensor | int] = [source, self.list_of(width)]
        if value == source.grid.zero:
            return self.operator("PAD", inputs, source, shape)
        filled = self.writer.constant(np.array([value]), source.dtype, source.grid)
        return self.operator("PADV2", [*inputs, filled], source, shape)

    def covered(
        self, source: Tensor, padding: Sequence[int], windows: Windows, value: int
    ) -> tuple[Tensor, int]:
        """Return the tensor that windows read, with padding that is not SAME or VALID, and the
        padding that is left."""
        place = _padding_of(padding, windows)
        if place is not None:
            return source, place
        rows, columns = _missing(padding, windows)
        width = (0, 0), (padding[0], rows), (padding[1], columns), (0, 0)
        return self.padded(source, width, value), _VALID

    def reshaped(self, source: Tensor, shape: Sequence[int]) -> Tensor:
        """RESHAPE, where the shape is another."""
        if source.shape == tuple(shape):
            return source
        return self.copied(source, shape)

    def copied(self, source: Tensor, shape: Sequence[int] | None = None) -> Tensor:
        """The integers of a tensor with the scale and shape that are said."""
        shape = source.shape if shape is None else shape
        known = self.writer.known.get(source.tensor)
        if known is not None:
            grid = source.grid if source.scale else None
            tensor = self.writer.constant(known.reshape(shape), source.dtype, grid)
            return replace(source, tensor=tensor, shape=tuple(shape))
        sizes = [int(n) for n in shape]
        return self.moved("RESHAPE", [source], shape, [shape], newShape=sizes)

    def moved(
        self,
        name: str,
        parts: Sequence[Tensor],
        shape: Sequence[int],
        lists: Sequence[Any] = (),
        **fields: Any,
    ) -> Tensor:
        """An operator that moves elements, with lists of numbers as further inputs."""
        return self.operator(name, [*parts, *map(self.list_of, lists)], parts[0], shape, **fields)

    def sliced(
        self, source: Tensor, begins: Sequence[int], out: Sequence[int], strides: Sequence[int]
    ) -> Tensor:
        """STRIDED_SLICE; of too many axes, whole ones side by side are one."""
        if source.shape == tuple(out):
            return source
        cut = [(int(size != n), 0) for size, n in zip(source.shape, out, strict=True)]
        merged = _merged(source.shape, cut)
        cuts = (each for each, (own, _) in zip(zip(begins, out, strides), cut) if own)
        laid = [next(cuts) if own else (0, size, 1) for size, (own, _) in merged]
        held = self.reshaped(source, [size for size, _ in merged])
        ends = [begin + (n - 1) * by + 1 for begin, n, by in laid]
        lists = [[begin for begin, _, _ in laid], ends, [by for _, _, by in laid]]
        shape = [n for _, n, _ in laid]
        return self.reshaped(self.moved("STRIDED_SLICE", [held], shape, lists), out)

    def run(self, source: Tensor, axis: int, first: int, count: int) -> Tensor:
        """Elements side by side along an axis."""
        begins = [0] * len(source.shape)
        out = list(source.shape)
        begins[axis], out[axis] = first, count
        return self.sliced(source, begins, out, [1] * len(out))

    def part(self, source: Tensor, at: int) -> Tensor:
        """One element of the first axis, which goes."""
        return self.reshaped(self.run(source, 0, at, 1), source.shape[1:])

    def stacked(self, rows: Sequence[Tensor]) -> Tensor:
        """Tensors along a new first axis."""
        return self.joined([self.reshaped(row, (1, *row.shape)) for row in rows], 0)

    def joined(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """CONCATENATION of tensors that count alike, of as many at a time as TFLM takes."""
        if len(parts) > _MOST_JOINED:
            tens = range(0, len(parts), _MOST_JOINED)
            return self.joined([self.joined(parts[n : n + _MOST_JOINED], axis) for n in tens], axis)
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        alike = [self.worth(part, parts[0].scale) for part in parts]
        return self.moved("CONCATENATION", alike, shape, axis=axis)

    def transposed(self, source: Tensor, axes: Sequence[int]) -> Tensor:
        """TRANSPOSE; of too many axes, those that stay side by side are one."""
        if list(axes) == sorted(axes):
            return source
        shape = [source.shape[axis] for axis in axes]
        if len(axes) > _MOST_AXES:
            long = [axis for axis, size in enumerate(source.shape) if size > 1]
            runs: list[list[int]] = []
            for axis in (long.index(axis) for axis in axes if axis in long):
                if runs and axis == runs[-1][-1] + 1:
                    runs[-1].append(axis)
                else:
                    runs.append([axis])
            before = sorted(runs)
            whole = [math.prod(source.shape[long[axis]] for axis in run) for run in before]
            order = [before.index(run) for run in runs]
            if len(order) < len(axes):
                merged = self.transposed(self.reshaped(source, whole), order)
                return self.reshaped(merged, shape)
        return self.moved("TRANSPOSE", [source], shape, [axes])

    def entries(self, entries: Ints, places: Tensor, like: Tensor) -> Tensor:
        """The entries of a table at computed places.

        TFLM gathers bytes: wider entries are put together from several of them, in int32.
        """
        if like.dtype == "int8":
            return self._bytes(entries, places, like)
        reach = int(np.abs(entries).max()).bit_length() + 1
        last = (reach - 1) // 8
        made = self.cast(self._bytes(entries >> (8 * last), places, Tensor(-1, ())), "int32")
        for lower in reversed(range(last)):
            digits = (entries >> (8 * lower) & 255) - 128
            digit = self.moved_by(self._bytes(digits, places, Tensor(-1, ())), 128)
            made = self.arithmetic("ADD", self.arithmetic("MUL", made, self.number(256)), digit)
        return made

    def _bytes(self, entries: Ints, places: Tensor, like: Tensor) -> Tensor:
        table = self.writer.constant(entries, "int8", like.grid if like.scale else None)
        shape = (*places.shape, *entries.shape[1:])
        return self.operator("GATHER", [table, places], like, shape, axis=0)

    # ---- wide arithmetic -----------------------------------------------------------------------

    def list_of(self, numbers: Any) -> int:
        """A constant of an operator: axes, shapes, places."""
        return self.writer.constant(np.asarray(numbers), "int32")

    def number(self, value: int) -> Tensor:
        """One number of int32."""
        return self.constant(np.array([value]))

    def constant(self, data: Ints) -> Tensor:
        """Numbers of int32."""
        return Tensor(self.writer.constant(data, "int32"), data.shape, dtype="int32")

    def cast(self, source: Tensor, dtype: str, scale: float = 0.0) -> Tensor:
        """CAST, whose steps are worth this."""
        return self.operator("CAST", [source], Tensor(-1, (), scale, dtype=dtype), source.shape)

    def arg_max(self, source: Tensor, axis: int, shape: Sequence[int]) -> Tensor:
        """ARG_MAX, int32."""
        at = self.list_of([axis])
        kind = self.writer.tensors[at].type
        like = Tensor(-1, (), dtype="int32")
        return self.operator("ARG_MAX", [source, at], like, shape, outputType=kind)

    def moved_by(self, source: Tensor, amount: int) -> Tensor:
        """The integers of a tensor, and so much more, in int32."""
        wide = self.cast(source, "int32")
        if amount:
            return self.arithmetic("ADD", wide, self.number(amount))
        return wide

    def within(self, places: Tensor, size: int, wraps: bool = False) -> Tensor:
        """Places of an axis, limited to it; what counts from its end (-1, …) moved up first."""
        if wraps:
            like = Tensor(-1, (), dtype="bool")
            below = self.operator("LESS", [places, self.number(0)], like, places.shape)
            more = self.arithmetic("MUL", self.cast(below, "int32"), self.number(size))
            places = self.arithmetic("ADD", places, more)
        return self.limited(places, 0, size - 1)

    def limited(self, made: Tensor, low: Limit, high: Limit) -> Tensor:
        """MAXIMUM and MINIMUM with numbers that count as the tensor does."""
        for name, limit in (("MAXIMUM", low), ("MINIMUM", high)):
            if limit is not None:
                data = np.atleast_1d(limit)
                grid = made.grid if made.scale else None
                number = self.writer.constant(data, made.dtype, grid)
                made = self.arithmetic(name, made, replace(made, tensor=number, shape=data.shape))
        return made

    def arithmetic(self, name: str, lhs: Tensor, rhs: Tensor) -> Tensor:
        """ADD, SUB, MUL of int32, MAXIMUM or MINIMUM of tensors that count alike."""
        if name == "SUB":  # whose result may not say in TFLM what its steps are worth
            return self.arithmetic("ADD", lhs, self.arithmetic("MUL", rhs, self.number(-1)))
        shape = np.broadcast_shapes(lhs.shape, rhs.shape)
        if name in ("ADD", "MUL"):
            like = Tensor(-1, (), dtype="int32")
        else:
            like = lhs
        return self.operator(name, self.sides(lhs, rhs, shape), like, shape)

    def sides(self, lhs: Tensor, rhs: Tensor, shape: Sequence[int]) -> list[Tensor]:
        """Operands with as many axes as the result, which kernels broadcast over four at most."""
        ones = (((1,) * (len(shape) - len(own.shape)), own) for own in (lhs, rhs))
        return [self.reshaped(own, (*missing, *own.shape)) for missing, own in ones]

    # ---- operators of their own ----------------------------------------------------------------

    def softmax(self, source: Tensor) -> Tensor:
        """SOFTMAX, whose int16 count from the smallest one."""
        like = Tensor(-1, (), 2.0**-OUT_BITS, 0, 1 << (OUT_BITS - 1), "int16")
        return self.operator("SOFTMAX", [source], like, source.shape, beta=1.0)

    def max_pool(self, source: Tensor, attrs: Any, shape: tuple[int, ...]) -> Tensor:
        """MAX_POOL_2D; other padding than SAME is a tensor's."""
        windows = Windows(source.shape[1:3], attrs.pool_size, attrs.strides, (1, 1), shape[1:3])
        least = integer_range(source.dtype)[0]
        source, place = self.covered(source, attrs.padding, windows, least)
        return self.moved(
            "MAX_POOL_2D",
            [source],
            shape,
            padding=place,
            strideH=attrs.strides[0],
            strideW=attrs.strides[1],
            filterHeight=attrs.pool_size[0],
            filterWidth=attrs.pool_size[1],
        )


def _merged(
    shape: Sequence[int], width: Sequence[tuple[int, int]]
) -> list[tuple[int, tuple[int, int]]]:
    """Axes with their padding, those side by side that have none as one."""
    merged: list[tuple[int, tuple[int, int]]] = []
    for size, ends in zip(shape, width, strict=True):
        if merged and not any(ends) and not any(merged[-1][1]):
            size *= merged.pop()[0]
        merged.append((size, ends))
    return merged


class Windows(NamedTuple):
    """Geometry of windows over an image; a pair of numbers each, for rows and columns."""

    data: Sequence[int]
    window: Sequence[int]
    strides: Sequence[int]
    dilation: Sequence[int]
    out: Sequence[int]

    @property
    def beyond(self) -> list[int]:
        """Elements that the windows span beyond the data; below 0 where they leave some."""
        return [
            (out - 1) * stride + (taps - 1) * apart + 1 - size
            for size, taps, stride, apart, out in zip(*self, strict=True)
        ]


def _padding_of(padding: Sequence[int], windows: Windows) -> int | None:
    """SAME or VALID, where one of them is this padding; None where neither is."""
    if not any(padding) and not any(_missing(padding, windows)):
        return _VALID
    for axis, (before, after) in enumerate(zip(padding[:2], padding[2:])):
        whole = max(windows.beyond[axis], 0)
        same = -(-windows.data[axis] // windows.strides[axis])
        if windows.out[axis] != same or before != whole // 2 or after < whole - before:
            return None
    return _SAME


def _missing(padding: Sequence[int], windows: Windows) -> list[int]:
    """Elements behind the data and its leading padding that the last windows reach."""
    return [max(more - before, 0) for more, before in zip(windows.beyond, padding)]
