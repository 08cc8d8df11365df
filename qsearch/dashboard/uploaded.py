"""Read the facts of an uploaded file without trusting it; runs in the inspector."""

from __future__ import annotations

import contextlib
import math
import re
import stat
import unicodedata
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, Final, cast

import numpy as np
import onnx

from compiler.frontend.from_onnx.model_file import within
from compiler.runtime.npy import read_header
from qsearch.errors import DataError, ModelFileError
from qsearch.run.run_folder import is_device_name
from qsearch.server.uploads import HIDDEN
from workers.datasets.image_folder import IMAGE_SUFFIXES

MAX_UNPACKED_BYTES: Final = 8 << 30
MAX_ARRAYS: Final = 1000
MAX_IMAGES: Final = 200_000
MAX_PARTS: Final = 8
"""Folders above an image in an archive."""
_LISTING: Final = "classes.txt"
_COPIED: Final = 1 << 20
_HIDDEN: Final = re.compile(rf"[\t\n{HIDDEN}]")
_MAX_TENSOR: Final = 2 << 30
"""Elements of one tensor that a model may speak of."""


def about_onnx(file: Path) -> dict[str, Any]:
    """Inputs, outputs and operators of a model.

    Raises:
        ModelFileError: no ONNX model, one that refers to other files, or one with giant tensors.
    """
    from google.protobuf.message import DecodeError

    try:
        # As bytes: nothing beside the file is looked at.
        model = onnx.load_model_from_string(file.read_bytes())
        _check_whole(model)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError, ValueError, OSError) as error:
        raise ModelFileError(
            f"this is no valid ONNX model: {str(error).splitlines()[0][:200]}",
            where="upload",
            fix="export the model again; onnx.checker names what is wrong",
        ) from error
    operators = Counter(node.op_type for node in model.graph.node)
    return {
        "inputs": [_value(value) for value in model.graph.input],
        "outputs": [_value(value) for value in model.graph.output],
        "nodes": len(model.graph.node),
        "operators": dict(operators.most_common()),
        "parameters": sum(_elements(list(t.dims), t.name) for t in model.graph.initializer),
    }


def _check_whole(model: Any) -> None:
    for tensor in within(model, onnx.TensorProto):
        if tensor.data_location == tensor.EXTERNAL or tensor.external_data:
            raise ModelFileError(
                "the model refers to other files",
                where=tensor.name[:200],
                fix="save it as one file: onnx.save(model, path, save_as_external_data=False)",
            )


def about_npz(file: Path) -> dict[str, Any]:
    """Names, shapes and dtypes of the arrays, from their headers alone.

    Raises:
        DataError: no archive of plain arrays, or one that unpacks to too much.
    """
    written = _read_as(".npz of plain arrays", "write it with numpy.savez", OSError)
    with written, zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        _check_size(infos, MAX_ARRAYS, "arrays", fix="give fewer samples")
        arrays = []
        for info in infos:
            with archive.open(info) as stream:
                name = info.filename.removesuffix(".npy")
                arrays.append(_header(stream, name, info.file_size))
    return {"arrays": arrays}


def about_npy(file: Path) -> dict[str, Any]:
    """Shape and dtype of one array, from its header.

    Raises:
        DataError: no plain array, or one that is shorter than it says.
    """
    written = _read_as(".npy of a plain array", "write it with numpy.save", OSError)
    with written, file.open("rb") as stream:
        return {"arrays": [_header(stream, "array", file.stat().st_size)]}


def about_zip(file: Path) -> dict[str, Any]:
    """Images, class folders, and bytes unpacked, from the directory of the archive alone.

    Raises:
        DataError: as ``unpack_images``.
    """
    with _images_of(file) as (_archive, infos, names):
        return {
            "images": sum(name.name != _LISTING for name in names),
            "classes": len({name.parts[0] for name in names if len(name.parts) > 1}),
            "unpacked": sum(info.file_size for info in infos),
        }


def unpack_images(file: Path, out: str) -> dict[str, Any]:
    """Unpack a folder of images into an empty folder.

    Nothing is written outside ``out``, and no more than the archive says of itself.

    Raises:
        DataError: no zip, a name that is a path elsewhere or that hides what it is, a link,
            something that is no image, or more than is allowed.
    """
    with _images_of(file) as (archive, infos, names):
        for info, name in zip(infos, names, strict=True):
            place = Path(out, *name.parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            _copy(archive, info, place)
    return {}


@contextlib.contextmanager
def _images_of(
    file: Path,
) -> Iterator[tuple[zipfile.ZipFile, list[zipfile.ZipInfo], list[PurePosixPath]]]:
    """An archive of images, its members and their checked paths; its errors are DataErrors."""
    packed = _read_as("zip of images", "pack the folder of images, and nothing else")
    try:
        with packed, zipfile.ZipFile(file) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
            _check_size(infos, MAX_IMAGES, "images", fix="give fewer images")
            names = [_image_name(info) for info in infos]
            _check_distinct(names)
            if all(name.name == _LISTING for name in names):
                raise DataError("the archive holds no image", where="upload", fix="pack some")
            yield archive, infos, names
    except RuntimeError as error:  # a password
        raise DataError(
            "the archive is encrypted", where="upload", fix="pack it without a password"
        ) from error


@contextlib.contextmanager
def _read_as(what: str, fix: str, *more: type[Exception]) -> Iterator[None]:
    """Raise what damaged files raise in the block, and ``more``, as a DataError."""
    damaged = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError)
    kinds: tuple[type[Exception], ...] = (*damaged, *more)
    try:
        yield
    except kinds as error:
        what = f"this is no {what}: {str(error)[:200]}"
        raise DataError(what, where="upload", fix=fix) from error


def _check_size(infos: Sequence[zipfile.ZipInfo], most: int, what: str, fix: str) -> None:
    """Refuse an archive that unpacks to too many files or bytes."""
    if len(infos) > most or sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES:
        raise DataError(
            "the archive unpacks to more than is allowed",
            where=f"{most} {what}, {MAX_UNPACKED_BYTES >> 20} MiB",
            fix=fix,
        )


def _check_distinct(names: list[PurePosixPath]) -> None:
    """Refuse names, also of folders, that are written differently and look the same."""
    known: dict[str, PurePosixPath] = {}
    for name in {each for file in names for each in (file, *file.parents)}:
        if known.setdefault(unicodedata.normalize("NFC", str(name)), name) != name:
            raise ValueError(f"{str(name)[:100]!r} occurs twice, in two forms of Unicode")


def _image_name(info: zipfile.ZipInfo) -> PurePosixPath:
    """The path of an image inside the archive.

    Raises:
        ValueError: it leads elsewhere, or is no image.
    """
    text = info.filename
    name = PurePosixPath(text)
    parts = name.parts
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind and not stat.S_ISREG(kind):
        raise ValueError(f"{text[:100]!r} is a link or a device")
    if name.is_absolute() or "\\" in text or "\0" in text or len(parts) > MAX_PARTS:
        raise ValueError(f"{text[:100]!r} is no path inside a folder")
    if any(part == ".." or part.startswith(".") or len(part.encode()) > 200 for part in parts):
        raise ValueError(f"{text[:100]!r} is no path inside a folder")
    if _HIDDEN.search(text) or any(part[-1] in " ." or is_device_name(part) for part in parts):
        raise ValueError(f"{text[:100]!r} is no plain name of a file")
    if name.suffix.lower() not in IMAGE_SUFFIXES and text != _LISTING:
        raise ValueError(f"{text[:100]!r} is no image")
    return name


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, place: Path) -> None:
    """Write one member; a name that occurs twice is refused."""
    left = info.file_size
    try:
        with archive.open(info) as source, place.open("xb") as target:
            while block := source.read(_COPIED):
                left -= len(block)
                if left < 0:
                    raise ValueError(f"{info.filename[:100]!r} is longer than it says")
                target.write(block)
    except FileExistsError as error:
        raise ValueError(f"{info.filename[:100]!r} occurs twice") from error


def _header(stream: IO[bytes], name: str, size: int) -> dict[str, Any]:
    """Name, shape and dtype of an array whose file, header and all, has so many bytes."""
    shape, _, dtype = read_header(cast(BinaryIO, stream))
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects")
    if np.prod([1, *shape], dtype=np.float64) * dtype.itemsize > size - stream.tell():
        raise ValueError(f"{name} is shorter than its shape {shape} says")
    return {"name": name, "shape": list(shape), "dtype": str(dtype)}


def _value(value: Any) -> dict[str, Any]:
    dims = [d.dim_value or d.dim_param or "?" for d in value.type.tensor_type.shape.dim]
    _elements([d for d in dims if isinstance(d, int)], value.name)
    return {"name": value.name, "shape": dims}


def _elements(dims: list[int], name: str) -> int:
    count = math.prod(max(size, 1) for size in dims)
    if count > _MAX_TENSOR:
        raise ModelFileError(
            f"a tensor of {count} elements", where=name[:200], fix="use a smaller model"
        )
    return count
