"""Dataset kind "image_folder": images in class folders, decoded when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.datasets.preprocess import LARGEST_IMAGE, Preprocess
from workers.datasets.protocol import Batch, Dataset, InputSpec, check_range
from workers.datasets.registry import datasets, take_options
from workers.errors import DatasetError
from workers.messages import Range

IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

_LISTING = "classes.txt"

_DECODED_BYTES = 128 << 20
"""What decoded images may occupy; the rest is decoded again each time."""


class ImageFolderDataset:
    """Images in the order of their paths.

    Args:
        files: image and class index (None without labels), in sample order.
        preprocess: how an image becomes the input.
        spec: the model's only input.
        listing: the file that says which folder is which class, if there is one.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, int | None]],
        preprocess: Preprocess,
        spec: InputSpec,
        listing: Path | None = None,
    ) -> None:
        self._files = tuple(files)
        self._listing = listing
        self._preprocess = preprocess
        self._spec = spec
        self._decoded: dict[int, NDArray[np.uint8]] = {}
        self._decoded_bytes = 0
        self.has_labels = self._files[0][1] is not None

    def __len__(self) -> int:
        return len(self._files)

    def batch(self, samples: Range) -> Batch:
        """Images of these samples, decoded and preprocessed now.

        Raises:
            DatasetError: an image cannot be decoded or is too small.
        """
        check_range(samples, len(self), str(self._files[0][0].parent))
        part = self._files[samples.start : samples.stop]
        images = [
            self._preprocess.model_input(self._pixels(samples.start + offset))
            for offset in range(len(part))
        ]
        stacked = np.stack(images) if images else np.zeros((0, *self._spec.shape[1:]), np.float32)
        return Batch({self._spec.name: stacked}, self.labels(samples))

    def labels(self, samples: Range) -> NDArray[Any] | None:
        part = self._files[samples.start : samples.stop]
        return np.asarray([c for _, c in part], np.int64) if self.has_labels else None

    def files(self, samples: Range) -> Sequence[Path]:
        """The images, and the list of classes where there is one; see ``Dataset.files``."""
        images = [path for path, _ in self._files[samples.start : samples.stop]]
        return images if self._listing is None else [*images, self._listing]

    def _pixels(self, index: int) -> NDArray[np.uint8]:
        """Decoded once while there is room: every trial of a study asks for the same images."""
        held = self._decoded.get(index)
        if held is None:
            held = self._decode(self._files[index][0])
            if self._decoded_bytes + held.nbytes <= _DECODED_BYTES:
                self._decoded[index] = held
                self._decoded_bytes += held.nbytes
        return held

    def _decode(self, path: Path) -> NDArray[np.uint8]:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(path) as image:
                if image.width * image.height > LARGEST_IMAGE:
                    raise DatasetError(
                        f"an image of {image.width}x{image.height} pixels is too large",
                        where=str(path),
                    )
                return self._preprocess.pixels(image, str(path))
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError) as error:
            raise DatasetError(f"cannot decode the image: {error}", where=str(path)) from error


@datasets.register("image_folder")
def open_image_folder(options: Mapping[str, Any], inputs: Sequence[InputSpec]) -> Dataset:
    """Options: ``path`` of the folder and ``preprocess``, the fields of ``Preprocess``.

    Sub-folders are classes: their line in ``classes.txt``, else their name where all are numbers,
    else their place among the sorted names. Images directly in the folder have no labels.

    Raises:
        DatasetError: no folder, no image, a mixture of both forms, or a model with several inputs.
    """
    given, preprocess = take_options("image_folder", options, path=..., preprocess=None)
    root = Path(given)
    if not root.is_dir():
        raise DatasetError(f"no image folder {given}")
    if len(inputs) != 1 or inputs[0].dtype != "float32":
        raise DatasetError(
            "an image folder feeds models with one float32 input",
            where=f"the model takes {', '.join(map(str, inputs))}",
            fix="write the inputs to an .npz instead",
        )
    files = labelled_files(root, IMAGE_SUFFIXES, "image")
    made = Preprocess.from_options(preprocess, inputs[0])
    listing = root / _LISTING
    return ImageFolderDataset(files, made, inputs[0], listing if listing.is_file() else None)


def labelled_files(root: Path, suffixes: Sequence[str], what: str) -> list[tuple[Path, int | None]]:
    """Files below a folder, and their classes where they lie in folders of classes.

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
        return [(path, None) for path in loose]
    if not classes:
        raise DatasetError(f"no {what} in {root}", fix=f"put files of {', '.join(suffixes)} there")
    index = _class_index(root, [folder.name for folder in folders])
    return [(path, index[folder.name]) for folder in classes for path in in_folders[folder]]


def _class_index(root: Path, names: Sequence[str]) -> dict[str, int]:
    listing = root / _LISTING
    if listing.is_file():
        lines = [line.strip() for line in listing.read_text(encoding="utf-8").splitlines()]
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
