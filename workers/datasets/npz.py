"""Dataset kind "npz": an .npz whose keys are the model's input names, or an .npy for one input."""

from __future__ import annotations

import io
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from compiler.errors import raised_as
from compiler.runtime.npy import read_header
from workers.datasets.listed import CheckedDataset
from workers.datasets.protocol import LABEL_NAMES, Dataset, InputSpec, fit_dtype, same_for_all
from workers.datasets.registry import datasets
from workers.errors import DatasetError

LABELS = "labels"
LABEL_ARRAYS = (*LABEL_NAMES, "y")
"""Names of arrays that are labels where no input has the name; the first that is there."""

MAX_UNPACKED_BYTES = 2 << 30
"""Upper limit of the bytes of a file's compressed arrays, unpacked: they stay in memory of every
worker."""

_LONGEST_HEADER = 1 << 16

# zipfile raises RuntimeError for encrypted members and NotImplementedError for unknown methods.
_NOT_READABLE = (
    OSError,
    ValueError,
    EOFError,
    RuntimeError,
    KeyError,
    OverflowError,
    MemoryError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)

_LOCAL_HEADER = 30
"""Bytes of a zip member's local header before its name; name and extra lengths end it."""


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in .npy form inside a file, read slice by slice.

    Not a memory map: the pages of one would count as memory of the worker, sample after sample.
    """

    path: Path
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @staticmethod
    def at(path: Path, start: int) -> StoredArray | NDArray[Any]:
        """The .npy that begins at byte ``start``; Fortran order is loaded whole.

        Raises:
            ValueError: not the form of an .npy, or Python objects in it.
        """
        with path.open("rb") as file:
            file.seek(start)
            shape, fortran, dtype = _checked_header(file)
            begin = file.tell()
            bytes_ = math.prod(shape) * dtype.itemsize
            if path.stat().st_size - begin < bytes_:
                raise ValueError("it ends before its data does")
            if fortran or not shape:
                return _array(file.read(bytes_), shape, fortran, dtype)
        return StoredArray(path, begin, dtype, shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, samples: slice) -> NDArray[Any]:
        start, stop, _ = samples.indices(len(self))
        count = max(stop - start, 0)
        size = math.prod(self.shape[1:])
        offset = self.offset + start * size * self.dtype.itemsize
        values = np.fromfile(self.path, self.dtype, count * size, offset=offset)
        return values.reshape(count, *self.shape[1:])


Samples = NDArray[Any] | StoredArray


def _checked_header(stream: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    shape, fortran, dtype = read_header(stream)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, fortran, dtype


def _array(
    data: bytes, shape: tuple[int, ...], fortran: bool, dtype: np.dtype[Any]
) -> NDArray[Any]:
    values: NDArray[Any] = np.frombuffer(data, dtype)
    return values.reshape(shape, order="F" if fortran else "C")


class ArrayDataset(CheckedDataset):
    """Arrays with samples on axis 0; those in files are read range by range.

    Samples are whole where an array has one axis more than the model's input: (samples, *shape of
    the input). So hold those of models whose batch is not axis 0: steps first, states of layers.

    Args:
        arrays: input name → array.
        labels: numbers or words, one or more per sample, or None.
        inputs: the model's inputs; array shapes are (samples, *input shape without batch), or
            (samples, *input shape) for whole samples.
        file: that holds the arrays.
    Raises:
        DatasetError: names, shapes, dtypes or lengths do not fit; or there is no sample.
    """

    def __init__(
        self,
        arrays: Mapping[str, Samples],
        labels: Samples | None,
        inputs: Sequence[InputSpec],
        file: Path,
    ) -> None:
        if labels is not None and (labels.ndim == 0 or labels.dtype.kind not in "iufU"):
            raise DatasetError(
                f"labels are {labels.dtype} of shape {labels.shape}",
                where=str(file),
                fix="one class index (or number, or word) per sample",
            )
        self.shared = sorted(same_for_all({n: a.shape for n, a in arrays.items()}, inputs))
        """Inputs whose one value belongs to every sample."""
        arrays = _repeated(arrays, self.shared)
        whole = any(
            spec.name in arrays and arrays[spec.name].shape[1:] == spec.shape for spec in inputs
        )
        super().__init__(None if labels is None else labels[:], [[file]], inputs, whole)
        self._arrays = {spec.name: self._checked(spec, arrays) for spec in self._specs}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if labels is not None:
            lengths[LABELS] = len(labels)
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r} {count}" for name, count in lengths.items())
            raise DatasetError(
                f"arrays of unequal length: {listed} samples",
                where=self._where,
                fix="every array has one entry for each sample: cut the longer ones",
            )
        self._count = next(iter(lengths.values()), 0)
        if self._count == 0:
            raise DatasetError(
                "the data is empty: 0 samples", where=self._where, fix="give at least one sample"
            )

    def _read(self, samples: range) -> Iterator[NDArray[Any]]:
        for spec in self._specs:
            part = self._arrays[spec.name][samples.start : samples.stop]
            values = np.ascontiguousarray(part)
            yield values.reshape(len(values), *spec.shape) if self.whole else values

    def _checked(self, spec: InputSpec, arrays: Mapping[str, Samples]) -> Samples:
        array = arrays.get(spec.name)
        if array is None:
            raise DatasetError(
                f"the data has no array {spec.name!r}",
                where=f"{self._where} has {', '.join(map(repr, arrays)) or 'no arrays'}; "
                f"the model takes {', '.join(map(str, self._specs))}",
                fix="name the arrays as the model's inputs, and labels 'labels'; a state that an "
                f"output hands on needs none: write states: {{{spec.name}: OUTPUT}} into the file "
                "of --preprocess",
            )
        rows = not self.whole or spec.shape[:1] == (1,)  # a batch of one may be left out
        fits = rows and array.shape[1:] == spec.shape[1:]
        if array.ndim == 0 or not (fits or (self.whole and array.shape[1:] == spec.shape)):
            fix = f"samples go on axis 0, each shaped {list(spec.shape[1:])} as the model's input"
            fix += " without its batch"
            for layout, axes in (("NHWC", (0, 3, 1, 2)), ("NCHW", (0, 2, 3, 1))):
                if array.ndim == 4 and tuple(array.shape[a] for a in axes)[1:] == spec.shape[1:]:
                    fix = f"the data are {layout}; store {spec.name}.transpose{axes}"
            if self.whole or len({one.shape[:1] for one in self._specs}) > 1:
                fix = f"axis 0 of the model's inputs counts no samples: give {spec.name} as "
                fix += f"[samples, {', '.join(map(str, spec.shape))}]"
            raise DatasetError(
                f"{spec.name!r} is {list(array.shape)} in the data and {list(spec.shape)} "
                "in the model",
                where=self._where,
                fix=fix,
            )
        fit_dtype(array[:0], spec, self._where)
        return array


def _repeated(arrays: Mapping[str, Samples], names: Sequence[str]) -> dict[str, Samples]:
    """Return the arrays with those of ``names`` as views that have a sample axis in front."""
    repeated = dict(arrays)
    counts = [len(array) for name, array in arrays.items() if name not in names and array.ndim]
    for name in names if counts else ():
        value = arrays[name][:]
        repeated[name] = np.broadcast_to(value, (counts[0], *value.shape))
    return repeated


def _named_as_inputs(
    arrays: dict[str, Samples], inputs: Sequence[InputSpec]
) -> tuple[dict[str, Samples], Samples | None]:
    """Return the arrays of the model's inputs, and the labels; None without labels.

    The array of a model's only input may have any name.
    """
    names = {spec.name for spec in inputs}
    labels = None
    if LABELS in arrays and LABELS not in names:
        labels = arrays.pop(LABELS)
    else:
        given = [name for name in LABEL_ARRAYS if name in arrays and name not in names]
        if given and len(arrays) > 1:
            labels = arrays.pop(given[0])
    if len(inputs) == len(arrays) == 1:
        arrays = {inputs[0].name: next(iter(arrays.values()))}
    return arrays, labels


@datasets.register("npz")
def open_npz(inputs: Sequence[InputSpec], path: Path) -> Dataset:
    """Options: ``path`` of an .npz (keys = input names, optional ``labels``) or .npy (one input).

    Labels may also be named ``label``, ``target``, ``targets`` or ``y``, and the array of the only
    input as one likes.

    .npy files and uncompressed .npz members are read sample by sample; compressed ones are loaded.

    Raises:
        DatasetError: the file is missing, damaged, empty, or does not fit the model.
    """
    if not path.is_file():
        raise DatasetError(
            f"no data file {path}", fix="give an .npz, an .npy or a folder of images"
        )
    alone = path.suffix.lower() == ".npy"
    if alone and len(inputs) > 1:
        raise DatasetError(
            "an .npy holds one array",
            where=f"the model takes {', '.join(map(str, inputs))}",
            fix="use an .npz whose keys are the input names",
        )
    what = f"cannot read {path.name}"
    fix = "write it with numpy.savez, uncompressed; object arrays (pickle) are not read"
    with raised_as(DatasetError, what, *_NOT_READABLE, where=str(path), fix=fix):
        if alone:
            arrays = {inputs[0].name: StoredArray.at(path, 0)}
        else:
            arrays = _npz_arrays(path)
    named, labels = _named_as_inputs(arrays, inputs)
    return ArrayDataset(named, labels, inputs, path)


def shapes_in(path: Path) -> dict[str, tuple[int, ...]]:
    """Shape of every array by its name, "" in an .npy; nothing of a file that cannot be read."""
    shapes: dict[str, tuple[int, ...]] = {}
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                return {"": _checked_header(file)[0]}
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".npy"):
                    with archive.open(name) as member:
                        head = io.BytesIO(member.read(_LONGEST_HEADER))
                    shapes[name.removesuffix(".npy")] = _checked_header(head)[0]
    except _NOT_READABLE:
        return {}
    return shapes


def _npz_arrays(path: Path) -> dict[str, Samples]:
    arrays: dict[str, Samples] = {}
    with zipfile.ZipFile(path) as archive:
        packed = [i for i in archive.infolist() if i.compress_type != zipfile.ZIP_STORED]
        unpacked_bytes = sum(info.file_size for info in packed)
        if unpacked_bytes > MAX_UNPACKED_BYTES:
            raise ValueError(
                f"its compressed arrays unpack to {unpacked_bytes / 2**30:.1f} GiB; "
                f"{MAX_UNPACKED_BYTES >> 30} GiB fit in memory at most"
            )
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            name = info.filename.removesuffix(".npy")
            if info.compress_type == zipfile.ZIP_STORED:
                with path.open("rb") as file:
                    file.seek(info.header_offset)
                    lengths = np.frombuffer(file.read(_LOCAL_HEADER)[26:30], "<u2")
                    start = info.header_offset + _LOCAL_HEADER + int(lengths.sum())
                arrays[name] = StoredArray.at(path, start)
            else:
                arrays[name] = _unpacked(archive, info)
    return arrays


def _unpacked(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """A compressed member, whole; zipfile reads no more of it than it claims to hold."""
    with archive.open(info) as member:
        header = io.BytesIO(member.read(_LONGEST_HEADER))
        shape, fortran, dtype = _checked_header(header)
        bytes_ = math.prod(shape) * dtype.itemsize
        if info.file_size - header.tell() < bytes_:
            raise ValueError("a member ends before its data does")
        return _array((header.read() + member.read())[:bytes_], shape, fortran, dtype)
