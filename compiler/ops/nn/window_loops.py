"""Loops over sliding windows: padded reads in any layout, and the axes of an image operator.

Convolutions and pools use these functions to lower themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

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
        if guard is None:
            return value
        return Select(guard, value, fill)


def tap_position(out: Scalar, tap: Scalar, attrs: Any, axis: int) -> Scalar:
    """Return the place that tap ``tap`` of window ``out`` reads along one axis: negative in the
    padding.

    Args:
        attrs: of the convolution or pool.
        axis: 0 down, 1 across.
    """
    start = index.plus(
        index.times(out, attrs.strides[axis]), index.times(tap, attrs.dilation[axis])
    )
    return index.plus(start, -attrs.padding[axis])


def image_loops(shape: Sequence[int], layout: str) -> dict[str, Axis]:
    """One loop per letter of ``layout`` for a result of this shape."""
    return {letter: Axis(LOOP_NAMES[letter], extent) for letter, extent in zip(layout, shape)}
