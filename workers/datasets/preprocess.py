"""Prepare an image as the model's input: resize, crop, channel order, layout, mean and std.

The fields are those of ``--preprocess pre.yaml``; mean and std are in pixel units 0..255. One of
these brings an image to the size of the input:
    resize: 256             # the short side; then the centre is cropped
    stretch: [64, 160]      # height and width, without keeping proportions
    letterbox: {size: [640, 640], value: 114}    # scaled to fit, and filled on both sides
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import check_known
from workers.datasets.listed import known_fields
from workers.datasets.protocol import InputSpec
from workers.errors import DatasetError

if TYPE_CHECKING:
    from PIL.Image import Image

_PLACES = ("stretch", "letterbox")
FIELDS = ("resize", "crop", *_PLACES, "interpolation", "channel_order", "layout", "mean", "std")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box")
"""Names of Pillow, which averages over what a smaller pixel covers (but for nearest)."""
MOST_PIXELS = 1 << 14
"""Longest side that an image is resized or cropped to."""
LARGEST_IMAGE = 1 << 28
"""Pixels of an image that is decoded, or that ``resize`` makes."""
_CHANNELS = {"RGB": 3, "BGR": 3, "GRAY": 1}


@dataclass(frozen=True, slots=True)
class Preprocess:
    """Bring an image to the size of the input, then (pixel - mean) / std.

    Attributes:
        resize: pixels of the short side; None keeps the size.
        crop: (height, width) of the centre crop, which is the input's size.
        stretched: the image is resized to ``crop`` without keeping proportions.
        filled: the level around an image that fits into ``crop``; None crops.
        interpolation: one of ``INTERPOLATIONS``.
        channel_order: RGB, BGR or GRAY.
        layout: NCHW or NHWC.
        mean, std: one number, or one per channel, in pixel units 0..255.
        raw: the input is uint8 and takes the pixels as they are.
        shape: of one input.
    """

    resize: int | None
    crop: tuple[int, int]
    stretched: bool
    filled: int | None
    interpolation: str
    channel_order: str
    layout: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    raw: bool
    shape: tuple[int, ...]

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
        if len(spec.shape) not in (3, 4):
            raise DatasetError(f"images cannot become the input {spec}, which is not rank 3 or 4")
        one = spec.shape[1:]
        if len(one) == 2:  # gray, without an axis of channels
            spec = replace(spec, shape=(spec.shape[0], 1, *one))
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
        size = (height, width)
        box = options.get("letterbox")
        ways = [name for name in ("resize", *_PLACES) if options.get(name) is not None]
        if len(ways) > 1:
            raise DatasetError(f"preprocess has both {ways[0]} and {ways[1]}", fix="give one")
        filled = box if isinstance(box, dict) else {"size": box}
        filled = known_fields(filled, ("size", "value"), "letterbox")
        words = {name: options.get(name) for name in ("crop", "stretch")}
        words["letterbox"] = filled.get("size")
        for name, given in words.items():
            if given is not None and _pixels(name, given) != size:
                raise DatasetError(
                    f"preprocess {name} makes {_pixels(name, given)}, the input takes {size}",
                    where=f"{spec}, layout {layout}",
                    fix=f"leave crop out, or crop: [{height}, {width}]"
                    if name == "crop"
                    else f"{name}: [{height}, {width}]",
                )
        raw = spec.dtype == "uint8"
        if raw and {"mean", "std"}.intersection(options):
            raise DatasetError(
                "mean and std are for float inputs, and the model takes pixels of uint8",
                where=f"{spec}",
                fix="leave mean and std out: the model scales the pixels itself",
            )
        interpolation = options.get("interpolation", "bicubic")
        what = f"preprocess interpolation cannot be {interpolation!r}"
        check_known(interpolation, INTERPOLATIONS, what, DatasetError)
        made = Preprocess(
            _short_side(options.get("resize")),
            size,
            options.get("stretch") is not None,
            None if box is None else _level(filled.get("value", 114)),
            interpolation,
            order,
            layout,
            _levels("mean", options.get("mean", 0.0), channels),
            _levels("std", options.get("std", 1.0), channels),
            raw,
            one,
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
            image = image.resize((width, height), pil.Resampling[self.interpolation.upper()])
        height, width = self.crop
        if self.filled is None and (image.height < height or image.width < width):
            raise DatasetError(
                f"an image of {image.height}x{image.width} is smaller than the crop "
                f"{height}x{width}",
                where=where,
                fix="give a resize of at least the crop, or stretch or letterbox",
            )
        levels = self.window(np.asarray(image, np.uint8), left, top, self.filled or 0)
        if levels.ndim == 2:
            levels = levels[:, :, None]
        return np.ascontiguousarray(levels[:, :, ::-1] if self.channel_order == "BGR" else levels)

    def window(self, values: NDArray[Any], left: int, top: int, fill: int) -> NDArray[Any]:
        """The part of a resized image that the input holds, and ``fill`` around it."""
        height, width = self.crop
        if self.filled is None:
            return values[top : top + height, left : left + width]
        found = np.full((height, width, *values.shape[2:]), fill, values.dtype)
        found[-top : values.shape[0] - top, -left : values.shape[1] - left] = values
        return found

    def placement(self, size: tuple[int, int]) -> tuple[tuple[int, int], tuple[int, int]]:
        """Width and height that an image is resized to, and left and top of the input in it."""
        width, height = size
        high, wide = self.crop
        if self.stretched:
            return (wide, high), (0, 0)
        if self.filled is not None:
            ratio = min(wide / width, high / height)
            width, height = (max(1, round(side * ratio)) for side in size)
            return (width, height), (-((wide - width) // 2), -((high - height) // 2))
        if self.resize is not None and min(size) != self.resize:
            ratio = self.resize / min(size)
            width, height = (max(1, round(side * ratio)) for side in size)
        return (width, height), ((width - wide) // 2, (height - high) // 2)

    def model_input(self, pixels: NDArray[np.uint8]) -> NDArray[Any]:
        """The result of ``pixels`` in the input's dtype and layout, without batch."""
        values: NDArray[Any] = pixels
        if not self.raw:
            values = pixels.astype(np.float32)
            values -= np.asarray(self.mean, np.float32)
            values /= np.asarray(self.std, np.float32)
        if self.layout == "NCHW":
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values).reshape(self.shape)


def _example(spec: InputSpec) -> str:
    """Lines for this input, with mean and std that many models are trained with."""
    if len(spec.shape) != 4:
        return "'mean: 127', 'std: 128'"
    channels, height, width = _sizes(spec.shape, _layout_of(spec))
    size = f"'resize: {256 if height == 224 else height}', 'crop: [{height}, {width}]'"
    if height != width:
        size = f"'stretch: [{height}, {width}]'"
    if spec.dtype == "uint8":
        return size
    mean, std = (str([level] * channels) for level in (127, 128))
    return f"{size}, 'mean: {mean}', 'std: {std}'"


def _order_fix(channels: int) -> str:
    orders = [name for name, count in _CHANNELS.items() if count == channels]
    if orders:
        return " or ".join(f"channel_order: {name}" for name in orders)
    return f"an input of {channels} channels takes arrays: give an .npz"


def _layout_of(spec: InputSpec) -> str:
    if spec.shape[3] in (1, 3) and spec.shape[1] not in (1, 3):
        return "NHWC"
    return "NCHW"


def _sizes(shape: Sequence[int], layout: str) -> tuple[int, int, int]:
    if layout == "NCHW":
        return shape[1], shape[2], shape[3]
    return shape[3], shape[1], shape[2]


def _pixels(name: str, value: Any) -> tuple[int, int]:
    if isinstance(value, (list, tuple)):
        sizes = value
    else:
        sizes = [value, value]
    good = [
        s for s in sizes if isinstance(s, int) and not isinstance(s, bool) and 0 < s <= MOST_PIXELS
    ]
    if len(good) != 2 or len(sizes) != 2:
        raise DatasetError(
            f"preprocess {name} cannot be {value!r}",
            fix=f"a number of pixels up to {MOST_PIXELS} or [height, width]",
        )
    return good[0], good[1]


def _short_side(value: Any) -> int | None:
    if isinstance(value, (list, tuple)):
        raise DatasetError(
            f"preprocess resize cannot be {value!r}: it is the short side, one number",
            fix=f"'stretch: {list(value)}' makes this size without keeping proportions",
        )
    if value is None:
        return None
    return _pixels("resize", value)[0]


def _level(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= 255:
        raise DatasetError(f"letterbox value cannot be {value!r}", fix="a level from 0 to 255")
    return value


def _levels(name: str, value: Any, channels: int) -> tuple[float, ...]:
    if isinstance(value, (list, tuple)):
        levels = value
    else:
        levels = [value] * channels
    if len(levels) != channels or not all(
        isinstance(v, (int, float)) and not isinstance(v, bool) and np.isfinite(v) for v in levels
    ):
        raise DatasetError(
            f"preprocess {name} cannot be {value!r}",
            fix=f"a number, or {channels} of them, in pixel units 0..255",
        )
    return tuple(float(v) for v in levels)
