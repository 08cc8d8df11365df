"""Dataset kind "variant": some samples of another dataset, as another preparation would give them.

The float model runs on them beside its baseline: a preparation that the data lack shows itself as
one with a better score.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ops.number_format import aligned_vector
from workers.datasets.listed import Array, ListedDataset
from workers.datasets.protocol import Dataset, InputSpec, whole
from workers.datasets.registry import datasets, open_dataset
from workers.messages import DatasetRef

Floats = NDArray[np.floating[Any]]
Transform = Callable[[Floats, int], Floats]
"""From samples and their channel axis to the same samples, prepared in another way."""

_MEAN: Final = np.array([0.485, 0.456, 0.406])
_STD: Final = np.array([0.229, 0.224, 0.225])


@dataclass(frozen=True, slots=True)
class Variant:
    """Another preparation of images.

    Attributes:
        words: what it does.
        transform: see ``Transform``.
        fits: whether it can be meant where values lie between these two.
        channels: numbers of channels that it is for.
    """

    words: str
    transform: Transform
    fits: Callable[[float, float], bool]
    channels: tuple[int, ...] = (1, 3)


def _raw(low: float, high: float) -> bool:
    return low >= 0 and 8 < high <= 256


def _unit(low: float, high: float) -> bool:
    return low >= 0 and high <= 1.001


def _signed(low: float, high: float) -> bool:
    return low < -0.1 and low > -8 and high < 8


def _normalized(images: Floats, axis: int) -> Floats:
    mean, std = (aligned_vector(v, axis, images.ndim) for v in (_MEAN, _STD))
    return (images - mean) / std


def _denormalized(images: Floats, axis: int) -> Floats:
    mean, std = (aligned_vector(v, axis, images.ndim) for v in (_MEAN, _STD))
    return images * std + mean


VARIANTS: Final[Mapping[str, Variant]] = {
    "as_given": Variant("as they are", lambda x, _: x, lambda *_: False),
    "swapped": Variant(
        "with the channels in the other order (RGB or BGR)",
        lambda x, axis: np.flip(x, axis),
        lambda *_: True,
        (3,),
    ),
    "divided": Variant("divided by 255", lambda x, _: x / 255, _raw),
    "raw_signed": Variant("scaled to -1..1 (x / 127.5 - 1)", lambda x, _: x / 127.5 - 1, _raw),
    "raw_imagenet": Variant(
        "divided by 255, then with ImageNet's mean and std",
        lambda x, axis: _normalized(x / 255, axis),
        _raw,
        (3,),
    ),
    "multiplied": Variant("multiplied by 255", lambda x, _: x * 255, _unit),
    "signed": Variant("scaled to -1..1 (2 x - 1)", lambda x, _: 2 * x - 1, _unit),
    "imagenet": Variant("with ImageNet's mean and std", _normalized, _unit, (3,)),
    "unsigned": Variant("scaled to 0..1 ((x + 1) / 2)", lambda x, _: (x + 1) / 2, _signed),
    "unsigned_raw": Variant(
        "scaled to 0..255 (127.5 (x + 1))", lambda x, _: 127.5 * (x + 1), _signed
    ),
    "imagenet_undone": Variant(
        "without ImageNet's mean and std (x std + mean)", _denormalized, _signed, (3,)
    ),
}
"""Variants by name; "as_given" is compared with the others."""


def channel_axis(spec: InputSpec) -> int | None:
    """Return the axis of the channels of images; None for an input that takes no images."""
    if len(spec.shape) != 4 or not spec.dtype.startswith("float"):
        return None
    return next((axis for axis in (1, 3) if spec.shape[axis] in (1, 3)), None)


def fitting_variants(spec: InputSpec, low: float, high: float) -> list[str]:
    """Names of the preparations that images with values from low to high may lack."""
    axis = channel_axis(spec)
    if axis is None:
        return []
    return [
        name
        for name, variant in VARIANTS.items()
        if spec.shape[axis] in variant.channels and variant.fits(low, high)
    ]


@datasets.register("variant")
def open_variant(
    inputs: Sequence[InputSpec], of: Mapping[str, Any], samples: Sequence[int], variant: str
) -> Dataset:
    """Options: ``of`` (``kind`` and ``options`` of the dataset), ``samples`` (their numbers),
    ``variant``, which changes inputs that are images. Labels stay.

    Raises:
        DatasetError: the dataset cannot be opened, or there is no sample.
    """
    dataset = open_dataset(DatasetRef(**of), inputs)
    every = range(len(dataset))
    transform = VARIANTS[variant].transform
    axes = {spec.name: channel_axis(spec) for spec in inputs}

    def sample(place: int) -> dict[str, Array]:
        row = dataset.batch(every[samples[place] :][:1]).inputs
        return {
            name: row[name][0]
            if axis is None
            else np.ascontiguousarray(changed(row[name], axis), row[name].dtype)
            for name, axis in axes.items()
        }

    def changed(images: Array, axis: int) -> Array:
        return transform(images[0], axis) if whole(dataset) else transform(images, axis)[0]

    def label(place: int) -> Array:
        found = dataset.labels(every[samples[place] :][:1])
        assert found is not None
        return np.asarray(found[0])

    labels = label if dataset.has_labels else None
    return ListedDataset(sample, labels, [], inputs, len(samples), whole(dataset))
