"""Places of values: buffers of the arena, and strided views of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from compiler.errors import PlanError

ALIGN: Final = 64
"""Bytes; of every buffer and constant."""

STORED: Final[dict[str, np.dtype[Any]]] = {
    "U8": np.dtype(np.uint8),
    "S16": np.dtype(np.int16),
    "S32": np.dtype(np.int32),
    "S64": np.dtype(np.int64),
}
"""Elements as they lie in memory, by the name that step.h gives their type."""

Shape = tuple[int, ...]

_MOST_POSITIONS: Final = 4096


class NoProgramError(PlanError):
    """The kernels have no program for a chain, or no loops for a copy."""


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory of one value.

    Attributes:
        size: bytes.
        type: "U8", "S16", "S32" or "S64".
        zero: the value is the stored byte minus this; 0 for wider types.
        place: offset in the arena, known at the end of planning.
    """

    size: int
    type: str = "U8"
    zero: int = 0
    place: int = -1

    @property
    def item(self) -> int:
        """Bytes of an element."""
        return STORED[self.type].itemsize

    @property
    def storage(self) -> tuple[str, int]:
        """Type and zero."""
        return self.type, self.zero


@dataclass(frozen=True, slots=True)
class Address:
    """A place in a buffer, in bytes; a number once memory is planned."""

    buffer: Buffer
    offset: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a buffer.

    Attributes:
        buffer: where they lie.
        offset: of the first one, bytes.
        shape: elements per axis.
        strides: bytes per axis.
    """

    buffer: Buffer
    offset: int
    shape: Shape
    strides: Shape

    @property
    def address(self) -> Address:
        """Address of the first element."""
        return Address(self.buffer, self.offset)

    @property
    def axis_order(self) -> Shape:
        """The axes from the outermost to the innermost in memory."""
        return tuple(sorted(range(len(self.shape)), key=lambda a: (-self.strides[a], a)))

    def permuted(self, axes: Sequence[int]) -> View:
        """The axes in another order."""
        return View(
            self.buffer,
            self.offset,
            tuple(self.shape[a] for a in axes),
            tuple(self.strides[a] for a in axes),
        )

    def sliced(self, axis: int, start: int, stop: int, step: int = 1) -> View:
        """A part of one axis."""
        shape = list(self.shape)
        strides = list(self.strides)
        shape[axis] = max(0, -(-(stop - start) // step))
        offset = self.offset + start * strides[axis]
        strides[axis] *= step
        return View(self.buffer, offset, tuple(shape), tuple(strides))

    def images(self) -> list[View]:
        """The parts of the first axis, without it."""
        return [
            View(self.buffer, self.offset + n * self.strides[0], self.shape[1:], self.strides[1:])
            for n in range(self.shape[0])
        ]

    def fields_to(self, image: View) -> dict[str, int]:
        """Fields of a step from this image to another, each [rows, columns, channels]."""
        return {
            "in_row": self.strides[0],
            "in_pixel": self.strides[1],
            "out_row": image.strides[0],
            "out_pixel": image.strides[1],
            "height": image.shape[0],
            "width": image.shape[1],
        }

    def reshaped(self, shape: Shape) -> View | None:
        """The same elements in row-major order under another shape; None if that needs a copy."""
        strides = reshaped_strides(self.shape, self.strides, shape)
        if strides is None:
            return None
        return View(self.buffer, self.offset, shape, strides)

    @property
    def is_row_major(self) -> bool:
        """Return whether the elements lie one behind the other."""
        return reshaped_strides(self.shape, self.strides, (prod(self.shape),)) in (
            (self.buffer.item,),
            (0,),
        )


def compact(storage: tuple[str, int], shape: Shape, order: Shape | None = None) -> View:
    """New memory for a shape, in an order of axes, by default row-major.

    Args:
        storage: type and zero.
    """
    order = tuple(range(len(shape))) if order is None else order
    buffer = Buffer(0, *storage)
    buffer.size = max(1, prod(shape)) * buffer.item
    strides = row_major(tuple(shape[axis] for axis in order), buffer.item)
    return View(buffer, 0, shape, tuple(strides[order.index(axis)] for axis in range(len(shape))))


def row_major(shape: Shape, item: int) -> Shape:
    """Strides in bytes."""
    strides = [item] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


def reshaped_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides of the same elements under the shape ``new``; None where there are none."""
    runs = merged_axes(shape, [strides])
    found = [0] * len(new)
    axis = len(new)
    for size, (stride,) in reversed(runs):
        left = size
        step = stride
        while left > 1:
            axis -= 1
            if axis < 0 or (new[axis] > 1 and left % new[axis]):
                return None
            found[axis] = step
            step *= new[axis]
            left //= new[axis]
    item = min((s for s in strides if s), default=0)
    return tuple(item if size == 1 and not stride else stride for size, stride in zip(new, found))


def merged_axes(shape: Shape, strides: Sequence[Shape], least: int = 1) -> list[tuple[int, Shape]]:
    """Loops over a shape, outermost first: neighbours that all strides let run together are one.

    Returns:
        (size, stride of every operand); ``least`` loops or more, some of one turn in front.
    """
    loops: list[tuple[int, Shape]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        here = tuple(s[axis] for s in strides)
        if loops and all(o == i * size for o, i in zip(loops[-1][1], here)):
            loops[-1] = (loops[-1][0] * size, here)
        else:
            loops.append((size, here))
    return [(1, (0,) * len(strides))] * (least - len(loops)) + loops


def positions(loops: Sequence[tuple[int, Shape]]) -> list[list[tuple[int, Shape]]]:
    """All positions of loops that a step has no room for, as (index, strides) per loop.

    Raises:
        NoProgramError: they are too many.
    """
    found: list[list[tuple[int, Shape]]] = [[]]
    for size, strides in loops:
        if len(found) * size > _MOST_POSITIONS:
            raise NoProgramError(f"tensors of {len(loops)} loops more than the kernels have")
        found = [[*at, (index, strides)] for at in found for index in range(size)]
    return found
