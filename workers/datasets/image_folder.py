"""Dataset kind "image_folder": images in class folders, decoded when they are asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from compiler.errors import raised_as
from workers.datasets.listed import Array, ListedDataset
from workers.datasets.preprocess import LARGEST_IMAGE, Preprocess
from workers.datasets.protocol import Dataset, InputSpec, Options
from workers.datasets.registry import datasets
from workers.errors import DatasetError

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

_LISTING = "classes.txt"

_DECODED_BYTES = 128 << 20
"""Upper limit of the bytes of decoded images; the rest is decoded again each time."""


def image_dataset(
    paths: Sequence[Path],
    labels: Array | Callable[[int], Array] | None,
    preprocess: Preprocess,
    spec: InputSpec,
    beside: Sequence[Path] = (),
) -> Dataset:
    """Images in the order of their paths, decoded and preprocessed when they are asked for.

    Args:
        paths: the images, in sample order.
        labels: as of ``ListedDataset``.
        preprocess: how an image becomes the input.
        spec: the model's only input.
        beside: the file that says what the labels are, or one for each image.
    """
    decoded: dict[int, NDArray[np.uint8]] = {}

    def sample(place: int) -> dict[str, Array]:
        # Decoded once while there is room: every trial of a study asks for the same images.
        pixels = decoded.get(place)
        if pixels is None:
            pixels = _decode(paths[place], preprocess)
            if len(decoded) < _DECODED_BYTES // pixels.nbytes:  # a crop makes all of one size
                decoded[place] = pixels
        return {spec.name: preprocess.model_input(pixels)}

    files = [paths, *([beside] if beside else [])]
    # Pixels are finite: no value needs to be looked at.
    return ListedDataset(sample, labels, files, [replace(spec, finite=False)], len(paths))


def _decode(path: Path, preprocess: Preprocess) -> NDArray[np.uint8]:
    with open_image(path) as image:
        if image.width * image.height > LARGEST_IMAGE:
            raise DatasetError(
                f"an image of {image.width}x{image.height} pixels is too large", where=str(path)
            )
        if image.mode[0] in "IF":  # Pillow would cut every value at 255
            raise DatasetError(
                f"the values of the image are not 0 to 255 (mode {image.mode})",
                where=str(path),
                fix="save it with 8 bits a channel, scaled as in training, or give an .npz",
            )
        return preprocess.pixels(image, str(path))


@contextlib.contextmanager
def open_image(path: Path) -> Iterator[Image]:
    """Open an image for a while.

    Raises:
        DatasetError: it cannot be decoded, then or in the block.
    """
    from PIL import Image as pil

    kinds = (OSError, pil.DecompressionBombError)
    what = "cannot decode the image"
    with raised_as(DatasetError, what, *kinds, where=str(path)), pil.open(path) as image:
        yield image


def image_input(inputs: Sequence[InputSpec]) -> InputSpec:
    """The only input of a model that takes images.

    Raises:
        DatasetError: it has others.
    """
    if len(inputs) != 1 or inputs[0].dtype not in ("float32", "uint8"):
        raise DatasetError(
            "images feed models with one input of float32 or uint8",
            where=f"the model takes {', '.join(map(str, inputs))}",
            fix="write the inputs to an .npz instead",
        )
    return inputs[0]


@datasets.register("image_folder")
def open_image_folder(inputs: Sequence[InputSpec], path: Path, preprocess: Options) -> Dataset:
    """Options: ``path`` of the folder and ``preprocess``, the fields of ``Preprocess``.

    Sub-folders are classes: their line in ``classes.txt``, else their name where all are numbers,
    else their place among the sorted names. Images directly in the folder have no labels.

    Raises:
        DatasetError: no folder, no image, a mixture of both forms, or a model with several inputs.
    """
    if not path.is_dir():
        raise DatasetError(f"no image folder {path}")
    spec = image_input(inputs)
    paths, labels = labelled_files(path, IMAGE_SUFFIXES, "image")
    made = Preprocess.from_options(preprocess, spec)
    listing = path / _LISTING
    return image_dataset(paths, labels, made, spec, [listing] if listing.is_file() else [])


def labelled_files(
    root: Path, suffixes: Sequence[str], what: str
) -> tuple[list[Path], Array | None]:
    """Files below a folder, and their classes (int64) where they lie in folders of classes.

    Args:
        suffixes: of the files, in lower case.
        what: one of them in a word.
    Raises:
        DatasetError: there is none, or a mixture of both forms.
    """
    entries = sorted(root.iterdir())
    loose = [p for p in entries if p.is_file() and p.suffix.lower() in suffixes]
    folders = [p for p in entries if p.is_dir() and not p.name.startswith(".")]
    in_folders = {
        folder: [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file() and path.suffix.lower() in suffixes
        ]
        for folder in folders
    }
    classes = [folder for folder, images in in_folders.items() if images]
    if loose and classes:
        raise DatasetError(
            f"{root} holds both {what}s and class folders",
            where=f"{loose[0].name}, {classes[0].name}/",
            fix=f"move the loose {what}s into class folders, or all {what}s into one folder",
        )
    if loose:
        return loose, None
    if not classes:
        raise DatasetError(f"no {what} in {root}", fix=f"put files of {', '.join(suffixes)} there")
    index = _class_index(root, [folder.name for folder in folders])
    paths = [path for folder in classes for path in in_folders[folder]]
    labels = [index[folder.name] for folder in classes for _ in in_folders[folder]]
    return paths, np.asarray(labels, np.int64)


def _class_index(root: Path, names: Sequence[str]) -> dict[str, int]:
    listing = root / _LISTING
    if listing.is_file():
        what = f"{_LISTING} is no UTF-8"
        with raised_as(DatasetError, what, UnicodeDecodeError, where=str(listing)):
            text = listing.read_text(encoding="utf-8-sig")
        lines = [line.strip() for line in text.split("\n")]
        index = {name: number for number, name in enumerate(lines) if name}
        foreign = [name for name in names if name not in index]
        if foreign:
            raise DatasetError(
                f"the folder {foreign[0]!r} is no class of classes.txt",
                where=f"{listing}, {len(index)} classes",
                fix="one folder name per line, line 1 is class 0",
            )
        return index
    if all(name.isascii() and name.isdigit() for name in names):
        return {name: int(name) for name in names}
    return {name: number for number, name in enumerate(sorted(names))}
