"""How an image becomes the model's input: resize, crop, channel order, layout, mean and std.

The fields are those of ``--preprocess pre.yaml``; mean and std are in pixel units 0..255.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workers.datasets.listed import known_fields
from workers.datasets.protocol import InputSpec
from workers.errors import DatasetError

if TYPE_CHECKING:
    from PIL.Image import Image

FIELDS = ("resize", "crop", "channel_order", "layout", "mean", "std")
MOST_PIXELS = 1 << 14
"""Longest side that an image is resized or cropped to."""
LARGEST_IMAGE = 1 << 28
"""Pixels of an image that is decoded, or that ``resize`` makes."""
_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1}


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Resize the short side (bicubic with antialias), crop the centre, then (pixel - mean) / std.

    Attributes:
        resize: pixels of the short side; None keeps the size.
        crop: (height, width) of the centre crop; None keeps the size.
        channel_order: RGB, BGR or GRAY.
        layout: NCHW or NHWC.
        mean, std: one number, or one per channel, in pixel units 0..255.
    """

    resize: int | None
    crop: tuple[int, int] | None
    channel_order: str
    layout: str
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @staticmethod
    def from_options(options: Mapping[str, Any] | None, spec: InputSpec) -> Preprocess:
        """Fields from plain values; crop, layout and channel order default to what the input needs.

        Raises:
            DatasetError: options are missing, unknown, of a wrong type, or do not fit the input.
        """
        if options is None:
            raise DatasetError(
                f"images need to know how they become the input {spec}",
                fix=f"give --preprocess pre.yaml with lines such as {_example(spec)}",
            )
        known_fields(options, FIELDS)
        if len(spec.shape) != 4:
            raise DatasetError(f"images cannot become the input {spec}, which is not rank 4")
        layout = options.get("layout") or _layout_of(spec)
        if layout not in ("NCHW", "NHWC"):
            raise DatasetError(f"preprocess layout {layout!r}", fix="legal: NCHW, NHWC")
        channels, height, width = _sizes(spec.shape, layout)
        order = options.get("channel_order") or ("GRAY" if channels == 1 else "RGB")
        if not isinstance(order, str) or _CHANNELS.get(order) != channels:
            raise DatasetError(
                f"channel_order {order!r} does not give the {channels} channels of the input",
                where=f"{spec}, layout {layout}",
                fix=_order_fix(channels),
            )
        resize = options.get("resize")
        crop = options.get("crop")
        made = Preprocess(
            None if resize is None else _pixels("resize", resize)[0],
            (height, width) if crop is None else _pixels("crop", crop),
            order,
            layout,
            _levels("mean", options.get("mean", 0.0), channels),
            _levels("std", options.get("std", 1.0), channels),
        )
        if made.crop != (height, width):
            raise DatasetError(
                f"preprocess crops to {made.crop}, the input takes {(height, width)}",
                where=f"{spec}, layout {layout}",
                fix=f"leave crop out, or crop: [{height}, {width}]",
            )
        if 0.0 in made.std:
            raise DatasetError("preprocess std holds 0", fix="use 1 to leave a channel as it is")
        return made

    def pixels(self, image: Image, where: str) -> NDArray[np.uint8]:
        """One image resized and cropped: (height, width, channels), values 0..255.

        Raises:
            DatasetError: the image is smaller than the crop.
        """
        from PIL import Image as pil

        image = image.convert("L" if self.channel_order == "GRAY" else "RGB")
        (width, height), (left, top) = self.placement(image.size)
        if (width, height) != image.size:
            if width * height > LARGEST_IMAGE:
                raise DatasetError(
                    f"an image of {image.height}x{image.width} would be resized to "
                    f"{height}x{width}",
                    where=where,
                    fix="give a smaller resize, or leave the image out",
                )
            image = image.resize((width, height), pil.Resampling.BICUBIC)
        if self.crop is not None:
            height, width = self.crop
            if image.height < height or image.width < width:
                raise DatasetError(
                    f"an image of {image.height}x{image.width} is smaller than the crop "
                    f"{height}x{width}",
                    where=where,
                    fix="give a resize of at least the crop",
                )
            image = image.crop((left, top, left + width, top + height))
        levels = np.asarray(image, np.uint8)
        if levels.ndim == 2:
            levels = levels[:, :, None]
        return np.ascontiguousarray(levels[:, :, ::-1] if self.channel_order == "BGR" else levels)

    def placement(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Width and height that an image is resized to, and left and top of the crop in it."""
        width, height = size
        if self.resize is not None and min(size) != self.resize:
            ratio = self.resize / min(size)
            width, height = (max(1, round(side * ratio)) for side in size)
        high, wide = self.crop or (height, width)
        return (width, height), ((width - wide) // 2, (height - high) // 2)

    def model_input(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """What ``pixels`` gave, as float32 in the input's layout, without batch."""
        values = pixels.astype(np.float32)
        values -= np.asarray(self.mean, np.float32)
        values /= np.asarray(self.std, np.float32)
        if self.layout == "NCHW":
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values)


def _example(spec: InputSpec) -> str:
    """Lines for this input, with mean and std that many models are trained with."""
    if len(spec.shape) != 4:
        return "'mean: 127', 'std: 128'"
    channels, height, width = _sizes(spec.shape, _layout_of(spec))
    short = min(height, width)
    resize = 256 if short == 224 else short
    mean, std = (str([level] * channels) for level in (127, 128))
    return f"'resize: {resize}', 'crop: [{height}, {width}]', 'mean: {mean}', 'std: {std}'"


def _order_fix(channels: int) -> str:
    orders = [name for name, count in _CHANNELS.items() if count == channels]
    if orders:
        return " or ".join(f"channel_order: {name}" for name in orders)
    return f"an input of {channels} channels takes arrays: give an .npz"


def _layout_of(spec: InputSpec) -> str:
    return "NHWC" if spec.shape[3] in (1, 3) and spec.shape[1] not in (1, 3) else "NCHW"


def _sizes(shape: Sequence[int], layout: str) -> tuple[int, int, int]:
    if layout == "NCHW":
        return shape[1], shape[2], shape[3]
    return shape[3], shape[1], shape[2]


def _pixels(name: str, value: Any) -> tuple[int, int]:
    sizes = value if isinstance(value, (list, tuple)) else [value, value]
    good = [
        s for s in sizes if isinstance(s, int) and not isinstance(s, bool) and 0 < s <= MOST_PIXELS
    ]
    if len(good) != 2 or len(sizes) != 2 or (name == "resize" and good[0] != good[1]):
        raise DatasetError(
            f"preprocess {name} cannot be {value!r}",
            fix=f"a number of pixels up to {MOST_PIXELS}"
            + (" or [height, width]" if name == "crop" else ""),
        )
    return good[0], good[1]


def _levels(name: str, value: Any, channels: int) -> tuple[float, ...]:
    levels = value if isinstance(value, (list, tuple)) else [value] * channels
    if len(levels) != channels or not all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and np.isfinite(v) for v in levels
    ):
        raise DatasetError(
            f"preprocess {name} cannot be {value!r}",
            fix=f"a number, or {channels} of them, in pixel units 0..255",
        )
    return tuple(float(v) for v in levels)
