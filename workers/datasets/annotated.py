"""Dataset kinds "detection" and "segmentation": images with the boxes of a COCO file, or masks."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from workers.datasets.contents import files_below
from workers.datasets.image_folder import IMAGE_SUFFIXES, image_dataset, image_input, open_image
from workers.datasets.listed import Array
from workers.datasets.preprocess import Preprocess
from workers.datasets.protocol import Dataset, InputSpec, Options
from workers.datasets.registry import datasets
from workers.errors import DatasetError

BOXES = "boxes"
MASKS = "masks"
"""Fields of ``--preprocess``: a file, and a folder, in the folder of the data."""
_UPRIGHT = 4
"""Orientations of EXIF beyond it swap width and height."""
IGNORED = 255
"""Class of a mask that is no class; the label is -1."""
_LOOKED_AT = 16
"""Masks whose values are looked at before a search."""


def _opened(
    kind: str, path: Path, preprocess: Options, inputs: Sequence[InputSpec]
) -> tuple[Path, Preprocess, InputSpec]:
    """Return what ``kind`` names in the folder, and how images become the input."""
    fields = dict(preprocess or {})
    spec = image_input(inputs)
    name = fields.pop(kind)
    if not isinstance(name, str) or not (path / name).exists():
        raise DatasetError(
            f"there is no {name} in the folder of the images",
            where=str(path),
            fix=f"'{kind}: NAME' in pre.yaml names a file or folder beside the images",
        )
    return path / name, Preprocess.from_options(fields, spec), spec


@datasets.register("detection")
def open_detection(inputs: Sequence[InputSpec], path: Path, preprocess: Options) -> Dataset:
    """Options: ``path`` of a folder of images, and ``preprocess`` with the fields of images and
    ``boxes``, the name of a COCO file in the folder.

    Labels are float64 (samples, most boxes of an image, 5): class from 0 in the order of the
    category ids, then left, top, right, bottom in pixels of the input; class -1 is no box, and
    -2 - class a crowd of it (``iscrowd``).

    Raises:
        DatasetError: a file is missing, is no COCO file, or names an image that is not there.
    """
    file, made, spec = _opened(BOXES, path, preprocess, inputs)
    try:
        coco = json.loads(file.read_text(encoding="utf-8"))
        ids = sorted(each["id"] for each in coco["categories"])
        classes = {name: place for place, name in enumerate(ids)}
        images = {each["id"]: str(each["file_name"]) for each in coco["images"]}
        sizes = {each["id"]: (each.get("width"), each.get("height")) for each in coco["images"]}
        boxes: dict[Any, list[list[float]]] = {name: [] for name in images}
        for each in coco["annotations"]:
            x, y, width, height = map(float, each["bbox"])
            kind = classes[each["category_id"]]
            kind = -2 - kind if each.get("iscrowd") else kind
            boxes[each["image_id"]].append([float(kind), x, y, x + width, y + height])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DatasetError(
            f"{file.name} is no COCO file: {type(error).__name__} {error}",
            where=str(file),
            fix="it holds images (id, file_name), annotations (image_id, category_id, bbox) and "
            "categories (id, name)",
        ) from error
    there = {each.relative_to(path).as_posix(): each for each in files_below(path)}
    times = Counter(path.name for path in there.values())
    there = {path.name: path for path in there.values() if times[path.name] == 1} | there
    for name in images.values():
        if name not in there:
            if times[name]:
                several = f"in {times[name]} folders"
            else:
                several = "not there"
            raise DatasetError(f"the image {name} of {file.name} is {several}", where=str(path))
    if not images:
        raise DatasetError("the data is empty: 0 images", where=str(file))
    paths = [there[name] for name in images.values()]
    placed = [np.asarray(boxes[name], np.float64).reshape(-1, 5) for name in images]
    rows = [_moved(made, *one) for one in zip(paths, placed, sizes.values())]
    most = max(1, *map(len, rows))
    labels = np.full((len(rows), most, 5), -1.0)
    for place, own in enumerate(rows):
        labels[place, : len(own)] = own
    return image_dataset(paths, labels, made, spec, [file])


def _moved(made: Preprocess, path: Path, boxes: Array, told: tuple[Any, Any]) -> Array:
    """Boxes of an image in pixels of the input; those outside of the crop are left out.

    Args:
        told: width and height that the boxes were drawn on; None where the file does not say.
    """
    from PIL import ExifTags

    with open_image(path) as image:
        (width, height), (left, top) = made.placement(image.size)
        scale = np.asarray([width / image.width, height / image.height] * 2)
        turned = image.getexif().get(ExifTags.Base.Orientation, 1) > _UPRIGHT
        if turned and image.size != told == image.size[::-1]:
            raise DatasetError(
                "the boxes were drawn on the image as its EXIF turns it",
                where=str(path),
                fix="write the pixels as they are shown: PIL.ImageOps.exif_transpose",
            )
    low, high = made.crop
    moved = boxes[:, 1:] * scale - np.asarray([left, top] * 2)
    moved = moved.clip(0, np.asarray([high, low] * 2))
    kept = (moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1])
    return np.concatenate([boxes[kept, :1], moved[kept]], axis=1)


@datasets.register("segmentation")
def open_segmentation(inputs: Sequence[InputSpec], path: Path, preprocess: Options) -> Dataset:
    """Options: ``path`` of a folder of images, and ``preprocess`` with the fields of images and
    ``masks``, the name of a folder in it with a .png of the same name for every image.

    Labels are int64 (samples, height, width): the values of the mask, -1 for 255.

    Raises:
        DatasetError: a mask is missing, or of another size than its image.
    """
    masks, made, spec = _opened(MASKS, path, preprocess, inputs)
    images = [
        each
        for each in files_below(path)
        if each.suffix.lower() in IMAGE_SUFFIXES and masks not in each.parents
    ]
    if not images:
        raise DatasetError(f"no image in {path}", fix="put them beside the folder of the masks")
    paths = [masks / f"{path.stem}.png" for path in images]
    if twice := [mask.name for mask, times in Counter(paths).items() if times > 1]:
        raise DatasetError(f"several images have the mask {masks.name}/{twice[0]}", where=str(path))
    for image, mask in zip(images, paths):
        if not mask.is_file():
            raise DatasetError(
                f"the image {image.name} has no mask {masks.name}/{mask.name}",
                where=str(path),
                fix="a mask is a .png of the image's name and size, its values are classes",
            )

    from PIL.Image import Resampling

    def values_of(mask: Path) -> set[int]:
        with open_image(mask) as found:
            return {int(value) for value in np.unique(np.asarray(found))}

    if set().union(*map(values_of, paths[:_LOOKED_AT])) == {0, IGNORED}:
        raise DatasetError(
            f"masks hold 0 and {IGNORED} only, and {IGNORED} is a pixel without a class",
            where=str(masks),
            fix="write the classes as 0 and 1",
        )

    @lru_cache(64)
    def label(place: int) -> Array:
        with open_image(images[place]) as image, open_image(paths[place]) as mask:
            if mask.size != image.size or mask.mode not in ("L", "P", "1"):
                raise DatasetError(
                    f"the mask is {mask.size}, {mask.mode}, and the image {image.size}",
                    where=str(paths[place]),
                    fix="a mask has one channel of classes (L or P) and the image's size",
                )
            size, corner = made.placement(image.size)
            found = np.asarray(mask.resize(size, Resampling.NEAREST), np.int64)
        values = made.window(found, *corner, IGNORED)
        return np.where(values == IGNORED, -1, values)

    return image_dataset(images, label, made, spec, paths)
