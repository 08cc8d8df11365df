"""Sliding windows: kernel, strides, dilations and padding of Conv and pools, auto_pad resolved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.ir.expr import Expr

Ints = NDArray[np.int64]
AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


class Window(NamedTuple):
    """One value per spatial axis, from the first to the last."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]

    @property
    def padding(self) -> tuple[int, ...]:
        """Our order for two spatial axes: top, left, bottom, right."""
        return (*self.begins, *self.ends)

    @property
    def moves_nothing(self) -> bool:
        """Return whether every window is one element, and each element in one window."""
        ones = {*self.kernel, *self.strides} == {1}
        return ones and not any((*self.begins, *self.ends))

    def along(self, axes: slice) -> Window:
        """The window of some of the axes."""
        return Window(*(values[axes] for values in self))

    def with_height_one(self) -> Window:
        """The window of one spatial axis as one of two, over data of height 1."""
        return Window(*(one + values for one, values in zip(_ONE, self)))

    def with_width_one(self) -> Window:
        """The same over data of width 1."""
        return Window(*(values + one for one, values in zip(_ONE, self)))

    def counts(self, sizes: Sequence[int]) -> list[int]:
        """Count the windows along each axis of data of these sizes."""
        return [
            max((size + begin + end - (k - 1) * d - 1) // s + 1, 0)
            for size, k, s, d, begin, end in zip(sizes, *self)
        ]

    def elements(self, sizes: Sequence[int]) -> tuple[Ints, NDArray[np.bool_]]:
        """The elements of data that each window reads, as numbers in row-major order: an array
        (windows, elements of a window); and whether they lie in the data. The first element of the
        window that does stands for others, or the nearest of the data where none does."""
        numbers = np.zeros((1, 1), np.int64)
        inside = np.ones((1, 1), bool)
        for size, count, k, s, d, begin, _ in zip(sizes, self.counts(sizes), *self):
            at = np.arange(count)[:, None] * s + np.arange(k) * d - begin
            held = (at >= 0) & (at < size)
            first = np.take_along_axis(at, held.argmax(axis=1)[:, None], axis=1)
            at = np.clip(np.where(held, at, first), 0, size - 1)[None, :, None, :]
            held = held[None, :, None, :]
            shape = (len(numbers) * count, -1)
            numbers = (numbers[:, None, :, None] * size + at).reshape(shape)
            inside = (inside[:, None, :, None] & held).reshape(shape)
        return numbers, inside


_ONE = Window((1,), (1,), (1,), (0,), (0,))


def spatial_axes(node: OnnxNode, data: Expr) -> int:
    """Count the spatial axes of the data: all but the first two.

    Raises:
        OnnxImportError: none, or more than three.
    """
    count = node.rank(data) - 2
    if count not in (1, 2, 3):
        raise node.error(f"{count} spatial axes; one to three are supported")
    return count


def convolved(
    node: OnnxNode, name: str, data: Expr, weight: Expr, window: Window, **sizes: Any
) -> Expr:
    """A call of the convolution ``name`` over two spatial axes, by the groups of the node."""
    return node.call(
        name,
        data,
        weight,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilations,
        groups=node.attr("group", 1),
        kernel_size=window.kernel,
        **sizes,
    )


def halves(totals: Sequence[int], upper: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding at the beginning and at the end of each axis; ``upper``: the odd one at the end."""
    small = tuple(t // 2 for t in totals)
    large = tuple(t - t // 2 for t in totals)
    if upper:
        return (small, large)
    return (large, small)


def read_window(node: OnnxNode, kernel: Sequence[int], data: Expr) -> Window:
    """Window of a node over the spatial axes of ``data``: all but the first two.

    Raises:
        OnnxImportError: attributes of the wrong length, an unknown auto_pad, or an auto_pad that
            depends on an unknown size.
    """
    rank = node.rank(data) - 2
    strides = per_axis(node, "strides", rank)
    dilations = per_axis(node, "dilations", rank)
    auto_pad = node.choice("auto_pad", AUTO_PADS)
    if auto_pad == "NOTSET":
        begins, ends = pads_of(node, rank)
    elif auto_pad == "VALID":
        begins = ends = (0,) * rank
    else:
        sizes = [node.size(data, axis) for axis in range(2, rank + 2)]
        totals = [
            max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            for size, k, s, d in zip(sizes, kernel, strides, dilations)
        ]
        begins, ends = halves(totals, auto_pad == "SAME_UPPER")
    if any(p < 0 for p in (*begins, *ends)):
        raise node.error(f"negative padding {(*begins, *ends)} is not supported")
    return Window(tuple(kernel), strides, dilations, begins, ends)


def per_axis(node: OnnxNode, name: str, count: int, default: int = 1) -> tuple[int, ...]:
    """An attribute of so many integers.

    Raises:
        OnnxImportError: there are more or fewer.
    """
    value = node.attr(name, None) or [default] * count
    if len(value) != count:
        raise node.error(f"{name} {value} need {count} values")
    return tuple(value)


def pads_of(node: OnnxNode, rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding at the beginning and at the end of each axis."""
    pads = per_axis(node, "pads", 2 * rank, 0)
    return pads[:rank], pads[rank:]
