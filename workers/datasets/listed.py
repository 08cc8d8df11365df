"""Common parts of kinds of data: checks, samples that a function makes one by one, columns."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from csv import DictReader
from csv import Error as CsvError
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import check_known, raised_as
from workers.datasets.protocol import (
    LABEL_NAMES,
    Batch,
    InputSpec,
    Options,
    check_values,
    fit_dtype,
)
from workers.errors import DatasetError

Array = NDArray[Any]


class CheckedDataset(ABC):
    """Samples that are compared with the model's inputs when they are read.

    Args:
        labels: of all samples, samples on axis 0; or what gives the label of one; or None.
        files: lists of files that decide the samples: one of all samples, or one of each.
        specs: the model's inputs.
        whole: see ``protocol.whole``.
    """

    _count: int

    def __init__(
        self,
        labels: Array | Callable[[int], Array] | None,
        files: Sequence[Sequence[Path]],
        specs: Sequence[InputSpec],
        whole: bool,
    ) -> None:
        self._labels = labels
        self._files = tuple(files)
        self._specs = tuple(specs)
        if files:
            self._where = str(files[0][0])
        else:
            self._where = "samples that are made"
        self.has_labels = labels is not None
        self.whole = whole

    def __len__(self) -> int:
        return self._count

    def batch(self, samples: range) -> Batch:
        if not 0 <= samples.start <= samples.stop <= self._count:
            asked = f"samples {samples.start} to {samples.stop} were asked for"
            raise DatasetError(f"{asked}, there are {self._count}", where=self._where)
        inputs = {}
        for spec, values in zip(self._specs, self._read(samples), strict=True):
            check_values(spec, values, samples.start, self._where)
            inputs[spec.name] = fit_dtype(values, spec, self._where)
        return Batch(inputs, self.labels(samples))

    @abstractmethod
    def _read(self, samples: range) -> Iterator[Array]:
        """Values of each input in order, samples on axis 0."""

    def labels(self, samples: range) -> Array | None:
        if self._labels is None:
            return None
        if callable(self._labels):
            return np.stack([self._labels(place) for place in samples])
        part = self._labels[samples.start : samples.stop]
        if part.dtype.kind == "U":
            return part
        if part.dtype.kind in "iu" and part.shape[1:] == (1,):  # a column of classes
            part = part[:, 0]
        return np.asarray(part, np.float64 if part.dtype.kind == "f" else np.int64)

    def files(self, samples: range) -> Sequence[Path]:
        own = [f if len(f) == 1 else f[samples.start : samples.stop] for f in self._files]
        return [path for paths in own for path in paths]


class ListedDataset(CheckedDataset):
    """Samples by number.

    Args:
        sample: the inputs of one sample by name, without the batch axis.
        labels, files, specs, whole: as of ``CheckedDataset``.
        count: samples.
    Raises:
        DatasetError: there is no sample, or the first does not fit the model.
    """

    def __init__(
        self,
        sample: Callable[[int], Mapping[str, Array]],
        labels: Array | Callable[[int], Array] | None,
        files: Sequence[Sequence[Path]],
        specs: Sequence[InputSpec],
        count: int,
        whole: bool = False,
    ) -> None:
        super().__init__(labels, files, specs, whole)
        self._sample = sample
        self._count = count
        if not count:
            raise DatasetError("the data is empty: 0 samples", where=self._where)
        self.batch(range(1))

    def _read(self, samples: range) -> Iterator[Array]:
        rows = [self._sample(place) for place in samples]
        for spec in self._specs:
            given = [row[spec.name] for row in rows]
            shape = spec.shape if self.whole else spec.shape[1:]
            shapes = {array.shape for array in given} - {shape}
            if shapes:
                raise DatasetError(
                    f"a sample of {spec.name!r} has the shape {list(shapes.pop())}",
                    where=f"{self._where}; the model takes {spec}",
                )
            yield np.stack(given) if given else np.zeros((0, *shape), spec.dtype)


def optional_package(name: str, extra: str, what: str) -> Any:
    """A package that only this kind of data needs.

    Raises:
        DatasetError: it is not installed.
    """
    what = f"{what} needs the package {name}"
    fix = f"pip install 'qsearch[{extra}]'"
    with raised_as(DatasetError, what, ImportError, fix=fix):
        return importlib.import_module(name)


def known_fields(options: Options, legal: Sequence[str], of: str = "preprocess") -> dict[str, Any]:
    """Fields of ``--preprocess`` for one kind of data, or of one of its fields.

    Raises:
        DatasetError: one is unknown.
    """
    for key in options or {}:
        check_known(key, legal, f"unknown {of} field {key!r}", DatasetError)
    return dict(options or {})


def csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and row of a .csv with a header.

    Raises:
        DatasetError: no header, or a row of another length.
    """
    unreadable = (OSError, UnicodeDecodeError)
    with (
        raised_as(DatasetError, f"cannot read {path.name}", *unreadable, where=str(path)),
        raised_as(DatasetError, f"{path.name} is no table", CsvError, where=str(path)),
        path.open(encoding="utf-8-sig", newline="") as stream,
    ):
        reader = DictReader(stream, strict=True)
        names = Counter(reader.fieldnames or ())
        if twice := [name for name, times in names.items() if times > 1]:
            raise DatasetError(f"several columns are named {twice[0]!r}", where=str(path))
        for row in reader:
            if None in row or None in row.values():
                raise DatasetError(
                    f"line {reader.line_num} has {'more' if None in row else 'fewer'} values "
                    f"than the header's {len(reader.fieldnames or ())}",
                    where=str(path),
                    fix="quote values that hold a comma, and remove broken lines",
                )
            yield reader.line_num, row


def missing_column(name: str, names: Iterable[str], path: Path, line: str) -> DatasetError:
    """The error of a column that is not there, with a line of pre.yaml that names one."""
    return DatasetError(
        f"there is no column {name!r}",
        where=f"{path} has {', '.join(names)[:300]}",
        fix=f"give --preprocess pre.yaml with a line such as '{line}'",
    )


def named_column(
    field: str, given: Any, usual: Sequence[str], names: Collection[str], path: Path
) -> str | None:
    """The column of a field of ``--preprocess``: as given, or one of a usual name; None without.

    Raises:
        DatasetError: there is no column of the given name.
    """
    found: str | None = given or next((name for name in usual if name in names), None)
    if found is not None and found not in names:
        raise missing_column(found, names, path, f"{field}: {next(iter(names))}")
    return found


def label_column(fields: Mapping[str, Any], names: Collection[str], path: Path) -> str | None:
    """The column of the labels; raises as ``named_column``."""
    return named_column("label", fields.get("label"), LABEL_NAMES, names, path)


def _is_number(value: Any) -> bool:
    try:
        float(value or 0)
    except (TypeError, ValueError):
        return False
    return True


def column_labels(values: Sequence[Any], places: Sequence[int], name: str, path: Path) -> Array:
    """Labels of a column: classes (int64) where all are whole numbers, else numbers (float64);
    words (text) where none is a number.

    Raises:
        DatasetError: some values are no numbers; the line of the first is named.
    """
    if not any(map(_is_number, values)):
        return np.asarray(values, str)
    found = []
    for place, value in zip(places, values, strict=True):
        try:
            found.append(float(value))
        except (TypeError, ValueError) as error:
            raise DatasetError(
                f"line {place}: the label {value!r} is no number",
                where=f"{path}, column {name!r}",
                fix="number the classes from 0, in the order of the model's outputs",
            ) from error
    array = np.asarray(found, np.float64)
    if not np.isfinite(array).all():
        raise DatasetError(
            f"line {places[int(np.argmin(np.isfinite(array)))]}: the label is missing",
            where=f"{path}, column {name!r}",
            fix="remove lines without a label",
        )
    whole = all("." not in str(value) for value in values) and (array == np.floor(array)).all()
    if whole:
        return array.astype(np.int64)
    return array
