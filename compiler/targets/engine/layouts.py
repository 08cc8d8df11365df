"""Order of axes in memory, and borders: what the readers of a value want of its buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ops.number_format import Array
from compiler.targets.engine.transposed import transposed
from compiler.targets.engine.values import Item
from compiler.targets.engine.views import Shape, View

MOST_IMAGES: Final = 64
"""Largest number of images of a batch: every image is a step of its own."""

_IMAGES: Final = {
    "nn.conv2d": "data_layout",
    "nn.max_pool2d": "layout",
    "nn.avg_pool2d": "layout",
    "nn.global_avg_pool2d": "layout",
    "nn.global_max_pool2d": "layout",
}


def layout_of(step: Step) -> str | None:
    """The layout of the data of an operator on images: "NCHW"; None for others."""
    name = _IMAGES.get(step.name)
    if name is None:
        return None
    return str(getattr(step.attrs, name))


def channels_last(layout: str) -> Shape:
    """The axes of a layout in the order batch, height, width, channels."""
    return tuple(layout.index(letter) for letter in "NHWC")


def axis_order(item: Item) -> Shape:
    """Axes from the outermost to the innermost in memory: channels last if images read it."""
    if len(item.shape) == 4:
        for step in item.readers:
            layout = layout_of(step)
            if layout is not None:
                return channels_last(layout)
        if item.image_layout:
            return channels_last(item.image_layout)
    return tuple(range(len(item.shape)))


def wanted_padding(item: Item) -> tuple[list[tuple[int, int]], int]:
    """Return the padding that readers want before and after every axis, and its value.

    Convolutions read 0 around the data. A constant ``nn.pad`` in front wants its own value, and
    then no reader gets another one.
    """
    rank = len(item.shape)
    pads: list[tuple[int, int]] = [(0, 0)] * rank
    for step in item.readers:
        width = pad_of(step)
        if width is not None and len(width[0]) == rank:
            return list(width[0]), width[1]
    for step in item.readers:
        layout = layout_of(step)
        if "conv2d" not in step.name or rank != 4 or layout is None:
            continue
        spread = transposed(step)
        sides = step.attrs.padding
        if spread is not None and spread.value.type.concrete_shape == item.shape:
            sides = spread.padding()
        top, left, bottom, right = sides
        for letter, before, after in (("H", top, bottom), ("W", left, right)):
            axis = layout.index(letter)
            pads[axis] = (max(pads[axis][0], before), max(pads[axis][1], after))
    return pads, 0


def pad_of(step: Step) -> tuple[Sequence[tuple[int, int]], int] | None:
    """Widths and value of a constant ``nn.pad`` of an image's rows and columns."""
    attrs: Any = step.attrs
    if step.name != "nn.pad" or attrs.pad_mode != "constant" or step.args[1].data is None:
        return None
    width = [(int(before), int(after)) for before, after in attrs.pad_width]
    padded = [axis for axis, pair in enumerate(width) if any(pair)]
    if any(before < 0 or after < 0 for before, after in width) or len(width) != 4:
        return None
    if padded not in ([2, 3], [2], [3], [1, 2], [1]):
        return None
    return width, int(step.args[1].data.reshape(()))


MOVES: Final = ("reshape", "expand_dims", "squeeze", "nn.batch_flatten", "transpose")
"""Operators that say in which order of axes the elements are read."""


def moved(view: View, step: Step) -> View | None:
    """A view as an operator of ``MOVES`` gives it; None where that needs a copy."""
    if step.name == "transpose":
        return view.permuted(step.attrs.axes)
    return view.reshaped(step.results[0].type.concrete_shape)


def moved_back(view: View, step: Step) -> View | None:
    """The view that ``step`` moves to ``view``; None where there is none."""
    if step.name == "transpose":
        return view.permuted(np.argsort(step.attrs.axes).tolist())
    return view.reshaped(step.args[0].type.concrete_shape)


def factors_moved(factors: Array, step: Step, back: bool = False) -> Array:
    """A factor for every element, in the order after an operator of ``MOVES``, or before it."""
    if step.name == "transpose":
        axes = step.attrs.axes
        return factors.transpose(np.argsort(axes) if back else axes)
    return factors.reshape((step.args if back else step.results)[0].type.concrete_shape)
