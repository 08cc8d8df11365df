"""Loops over sliding windows: padded reads in any layout, and the axes of an image operator.

Convolutions and pools use these functions to lower themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from compiler.lir import index
from compiler.lir.builder import TensorView
from compiler.lir.scalars import Axis, Scalar, Select

LOOP_NAMES = {"N": "n", "C": "o", "H": "y", "W": "x"}
"""Names of the loops over an image, by letter of the layout."""


class Image:
    """An image tensor of any layout, read by the letters of its axes.

    Args:
        view: of rank 4.
        layout: a permutation of "NCHW" (or "OIHW", "IOHW" for kernels).
    """

    def __init__(self, view: TensorView, layout: str) -> None:
        self._view = view
        self._layout = layout
        self.sizes: Mapping[str, int] = dict(zip(layout, view.shape))
        self.dtype = view.dtype

    def at(self, **indices: Scalar) -> Scalar:
        """The element at an index per letter of the layout."""
        return self._view.at([indices[letter] for letter in self._layout])

    def inside(self, fill: Scalar, y: Scalar, x: Scalar, **others: Scalar) -> Scalar:
        """The element at (y, x), or ``fill`` where that lies outside the image."""
        guard = index.all_of([index.within(y, self.sizes["H"]), index.within(x, self.sizes["W"])])
        value = self.at(H=y, W=x, **others)
        return value if guard is None else Select(guard, value, fill)


def tap_position(out: Scalar, tap: Scalar, stride: int, dilation: int, before: int) -> Scalar:
    """Where tap ``tap`` of window ``out`` reads along one axis: negative in the padding."""
    start = index.plus(index.times(out, stride), index.times(tap, dilation))
    return index.plus(start, -before)


def image_loops(shape: Sequence[int], layout: str) -> dict[str, Axis]:
    """One loop per letter of ``layout`` for a result of this shape."""
    return {letter: Axis(LOOP_NAMES[letter], extent) for letter, extent in zip(layout, shape)}


def window_reads(
    image: Image,
    strides: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    fill: Scalar,
) -> Callable[[Mapping[str, Scalar], Scalar, Scalar], Scalar]:
    """``read(indices by letter, row tap, column tap)``: an element of a window, or ``fill``."""

    def read(at: Mapping[str, Scalar], row: Scalar, column: Scalar) -> Scalar:
        y = tap_position(at["H"], row, strides[0], dilation[0], padding[0])
        x = tap_position(at["W"], column, strides[1], dilation[1], padding[1])
        return image.inside(fill, y, x, N=at["N"], C=at["C"])

    return read
