"""Dataset kind "npz": an .npz whose keys are the model's input names, or an .npy for one input."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from workers.datasets.protocol import (
    Batch,
    Dataset,
    InputSpec,
    check_finite,
    check_range,
    fit_dtype,
)
from workers.datasets.registry import datasets, take_options
from workers.errors import DatasetError
from workers.messages import Range

LABELS = "labels"

_LOCAL_HEADER = 30
"""Bytes of a zip member's local header before its name; name and extra lengths end it."""


class ArrayDataset:
    """Arrays with samples on axis 0; memory-mapped files are read range by range.

    Args:
        arrays: input name → array.
        labels: integers, one or more per sample, or None.
        inputs: the model's inputs; array shapes are (samples, *input shape without batch).
        where: file, for messages.
    Raises:
        DatasetError: names, shapes, dtypes or lengths do not fit; or there is no sample.
    """

    def __init__(
        self,
        arrays: Mapping[str, NDArray[Any]],
        labels: NDArray[Any] | None,
        inputs: Sequence[InputSpec],
        where: str,
    ) -> None:
        self._where = where
        self._inputs = tuple(inputs)
        self._arrays = {spec.name: self._checked(spec, arrays) for spec in self._inputs}
        lengths = {name: len(array) for name, array in self._arrays.items()}
        if labels is not None:
            if labels.ndim == 0 or labels.dtype.kind not in "iu":
                raise DatasetError(
                    f"labels are {labels.dtype} of shape {labels.shape}",
                    where=where,
                    fix="one integer class index per sample",
                )
            lengths[LABELS] = len(labels)
        if len(set(lengths.values())) > 1:
            listed = ", ".join(f"{name!r} {count}" for name, count in lengths.items())
            raise DatasetError(f"arrays of unequal length: {listed} samples", where=where)
        self._length = next(iter(lengths.values()), 0)
        if self._length == 0:
            raise DatasetError(
                "the data is empty: 0 samples", where=where, fix="give at least one sample"
            )
        self._labels = labels
        self.has_labels = labels is not None

    def __len__(self) -> int:
        return self._length

    def batch(self, samples: Range) -> Batch:
        """See ``Dataset.batch``."""
        check_range(samples, self._length, self._where)
        part = slice(samples.start, samples.stop)
        inputs: dict[str, NDArray[Any]] = {}
        for spec in self._inputs:
            values = np.ascontiguousarray(self._arrays[spec.name][part])
            check_finite(spec.name, values, samples.start, self._where)
            inputs[spec.name] = fit_dtype(values, spec, self._where)
        labels = None if self._labels is None else np.asarray(self._labels[part], np.int64)
        return Batch(inputs, labels)

    def _checked(self, spec: InputSpec, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        array = arrays.get(spec.name)
        if array is None:
            raise DatasetError(
                f"the data has no array {spec.name!r}",
                where=f"{self._where} has {', '.join(map(repr, arrays)) or 'no arrays'}; "
                f"the model takes {', '.join(map(str, self._inputs))}",
                fix="name the arrays as the model's inputs, and labels 'labels'",
            )
        if array.ndim == 0 or array.shape[1:] != spec.shape[1:]:
            raise DatasetError(
                f"{spec.name!r} is {list(array.shape)} in the data and {list(spec.shape)} "
                "in the model",
                where=self._where,
                fix="samples go on axis 0, each shaped "
                f"{list(spec.shape[1:])} as the model's input without its batch",
            )
        fit_dtype(array[:0], spec, self._where)
        return array


@datasets.register("npz")
def open_npz(options: Mapping[str, Any], inputs: Sequence[InputSpec]) -> Dataset:
    """Options: ``path`` of an .npz (keys = input names, optional ``labels``) or .npy (one input).

    .npy files and uncompressed .npz members are memory-mapped; compressed ones are loaded.

    Raises:
        DatasetError: the file is missing, damaged, empty, or does not fit the model.
    """
    (given,) = take_options("npz", options, path=...)
    path = Path(given)
    if not path.is_file():
        raise DatasetError(
            f"no data file {given}", fix="give an .npz, an .npy or a folder of images"
        )
    try:
        if path.suffix == ".npy":
            arrays = {inputs[0].name: np.load(path, mmap_mode="r", allow_pickle=False)}
            if len(inputs) > 1:
                raise DatasetError(
                    "an .npy holds one array",
                    where=f"the model takes {', '.join(map(str, inputs))}",
                    fix="use an .npz whose keys are the input names",
                )
        else:
            arrays = _npz_arrays(path)
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(
            f"cannot read {path.name}: {error}",
            where=str(path),
            fix="write it with numpy.savez; object arrays (pickle) are not read",
        ) from error
    labels = arrays.pop(LABELS, None) if LABELS not in {s.name for s in inputs} else None
    return ArrayDataset(arrays, labels, inputs, str(path))


def _npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            name = info.filename.removesuffix(".npy")
            if info.compress_type == zipfile.ZIP_STORED:
                arrays[name] = _mapped(path, info)
            else:
                with archive.open(info) as member:
                    arrays[name] = npy_format.read_array(member, allow_pickle=False)
    return arrays


def _mapped(path: Path, info: zipfile.ZipInfo) -> NDArray[Any]:
    """A stored member as a memory map: the .npy lies in the zip file byte by byte."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        header = file.read(_LOCAL_HEADER)
        lengths = np.frombuffer(header[26:30], "<u2")
        file.seek(info.header_offset + _LOCAL_HEADER + int(lengths.sum()))
        version = npy_format.read_magic(file)
        read = (
            npy_format.read_array_header_1_0
            if version == (1, 0)
            else npy_format.read_array_header_2_0
        )
        shape, fortran, dtype = read(file)
        if dtype.hasobject:
            raise ValueError(f"{info.filename} holds Python objects")
        if 0 in shape or not shape:
            return np.zeros(shape, dtype)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")
