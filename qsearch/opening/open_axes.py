"""Sizes of axes that a model leaves open: by its data, its weights and its other inputs.

Sizes are by the name of the dimension, or as ``x:2`` where it has none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

from compiler.runtime.interface import Port
from workers.datasets import audio, text
from workers.datasets.contents import files_below
from workers.datasets.image_folder import IMAGE_SUFFIXES
from workers.datasets.listed import optional_package
from workers.datasets.log_mel import LogMel
from workers.datasets.npz import shapes_in


def open_axes(inputs: Sequence[Port], known: Collection[str]) -> list[tuple[Port, int, str]]:
    """Return input, axis and name of each axis without a size; the first axis counts samples."""
    found = []
    for port in inputs:
        for axis, dim in enumerate(port.dims):
            name = f"{port.name}:{axis}" if dim == "?" else str(dim)
            if axis and isinstance(dim, str) and not {name, f"{port.name}:{axis}"} & {*known}:
                found.append((port, axis, name))
    return found


def sizes_of_arrays(
    given: Any, inputs: Sequence[Port], known: Collection[str], streams: bool
) -> dict[str, int]:
    """Sizes that arrays have along open axes of inputs, by name of the dimension, or as ``x:2``.

    Args:
        given: data of any kind; of a list, the first item. What is no .npz, .npy, array or mapping
            of arrays says nothing.
        inputs: as the model declares them; their first axis counts samples, unless the data have
            one axis more.
        known: dimensions that need none.
        streams: one axis more counts the steps of a stream.
    """
    if not any(isinstance(dim, str) for port in inputs for dim in port.dims[1:]):
        return {}
    is_item = isinstance(given, list | tuple)
    while isinstance(given, list | tuple) and given:
        given = given[0]
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        if path.suffix.lower() in (".npz", ".npy"):
            shapes = shapes_in(path)
        else:
            shapes = {}
    elif isinstance(given, np.ndarray):
        shapes = {"": given.shape}
    else:
        arrays = given.items() if isinstance(given, Mapping) else ()
        shapes = {name: array.shape for name, array in arrays if isinstance(array, np.ndarray)}
    if set(shapes) == {""} and len(inputs) == 1:
        shapes = {inputs[0].name: shapes[""]}
    found: dict[str, int] = {}
    for port in inputs:
        shape = shapes.get(port.name, ())
        if streams and len(shape) == len(port.dims) + 2:
            shape = shape[2:]
        whole = len(shape) == len(port.dims) + 1  # samples on an axis of their own
        alone = is_item and len(shape) == len(port.dims) - 1  # one sample
        shape = shape[1:] if whole else (0,) * alone + tuple(shape)
        for axis, (dim, size) in enumerate(zip(port.dims, shape)):
            place = f"{port.name}:{axis}"
            is_open = isinstance(dim, str) and place not in known and len(shape) == len(port.dims)
            if (axis or (whole and not streams)) and size and is_open:
                found.setdefault(place if dim == "?" else str(dim), size)
    return found


def sizes_of_files(
    path: Path, inputs: Sequence[Port], known: Collection[str], fields: Mapping[str, Any]
) -> dict[str, int]:
    """Sizes that images, sounds and texts have, by the fields of the preprocess file.

    Args:
        path: the data; what is neither says nothing.
        inputs: as the model declares them.
        known: dimensions that need none.
        fields: of the preprocess file; nothing in them was checked.
    """
    axes = open_axes(inputs, known)
    found: dict[str, int] = {}
    if not axes or not path.exists():
        return found
    if path.is_file():
        length = fields.get("length")
        if path.suffix.lower() in text.SUFFIXES and isinstance(length, int):
            found = {name: length for _, axis, name in axes if axis == 1}
        return found
    if len(inputs) > 1:
        return found
    files = list(files_below(path))
    sounds = [file for file in files if file.suffix.lower() in audio.SUFFIXES]
    if sounds or "rate" in fields:
        return _sizes_of_sounds(sounds, axes, fields)
    images = [file for file in files if file.suffix.lower() in IMAGE_SUFFIXES]
    port = inputs[0]
    if len(port.dims) not in (3, 4):
        return found
    last = len(port.dims) == 4 and port.dims[3] in (1, 3) and port.dims[1] not in (1, 3)
    last = fields.get("layout") == "NHWC" or (last and "layout" not in fields)
    height = len(port.dims) - 2 - last
    size = _size_of_images(images, fields)
    sizes = dict(zip((height, height + 1), size)) if size else {}
    if len(port.dims) == 4:
        sizes[3 if last else 1] = 1 if fields.get("channel_order") == "GRAY" else 3
    return {name: sizes[axis] for _, axis, name in axes if axis in sizes}


def _size_of_images(images: Sequence[Path], fields: Mapping[str, Any]) -> Sequence[int] | None:
    """Height and width: what a field makes, else those of the first image."""
    box = fields.get("letterbox")
    box = box.get("size") if isinstance(box, Mapping) else box
    given = (fields.get("crop"), fields.get("stretch"), box, fields.get("resize"))
    size = next((each for each in given if each is not None), None)
    if size is None and images:
        from PIL import Image

        with contextlib.suppress(OSError), Image.open(images[0]) as image:  # it is named where
            size = [image.height, image.width]  # the data are read
    size = [size, size] if isinstance(size, int) else size
    whole = isinstance(size, list | tuple) and [type(side) for side in size] == [int, int]
    if whole:
        return size
    return None


def _sizes_of_sounds(
    sounds: Sequence[Path], axes: Sequence[tuple[Port, int, str]], fields: Mapping[str, Any]
) -> dict[str, int]:
    """The longest sound in samples, or in frames of features."""
    rate = fields.get("rate")
    if not isinstance(rate, int) or len(axes) != 1:
        return {}
    soundfile = optional_package("soundfile", "audio", "a data set of sounds")
    length = 0
    for file in sounds:
        with contextlib.suppress(Exception):  # of soundfile; the file is named where it is read
            head = soundfile.info(file)
            length = max(length, -(-head.frames * rate // head.samplerate))
    if "log_mel" in fields and length:
        length = LogMel.of(fields["log_mel"], rate).frames(length)
    if length:
        return {axes[0][2]: length}
    return {}


_WEIGHTS: Final[dict[str, tuple[int, int]]] = {
    **dict.fromkeys(("LSTM", "GRU", "RNN"), (2, 2)),
    "MatMul": (-1, -2),
    "Conv": (1, 1),
    "BatchNormalization": (1, 0),
    "Gemm": (1, 0),
}
"""Operator: an axis of its data, and the axis of its weights, the second input, of the same size.
"""


def sizes_of_model(
    model: onnx.ModelProto, inputs: Sequence[Port], known: Collection[str]
) -> dict[str, int]:
    """Sizes that the weights of the first layers have, else another input on the same axis."""
    shapes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    found: dict[str, int] = {}
    for port, axis, name in open_axes(inputs, known):
        sources = {port.name}
        for node in model.graph.node:
            if node.op_type in ("Cast", "Identity") and node.input[0] in sources:
                sources.add(node.output[0])
            attrs = {each.name: each.i for each in node.attribute}
            if node.op_type not in _WEIGHTS or len(node.input) < 2:
                continue
            of_data, of_weight = _WEIGHTS[node.op_type]
            of_weight = 1 if attrs.get("transB") else of_weight
            shape = shapes.get(node.input[1])
            if shape and node.input[0] in sources and of_data % len(port.dims) == axis:
                found.setdefault(name, shape[of_weight] * (attrs.get("group") or 1))
        same = {p.dims[axis] for p in inputs if len(p.dims) == len(port.dims)}
        fixed = [dim for dim in same if isinstance(dim, int)]
        if len(fixed) == 1 and fixed[0] > 1 and len(inputs) > 1:
            found.setdefault(name, fixed[0])
    return {name: size for name, size in found.items() if size > 0}
