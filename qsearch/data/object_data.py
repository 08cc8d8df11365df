"""Python objects that are data: arrays, loaders and readers become an .npz in the run folder."""

from __future__ import annotations

import contextlib
import hashlib
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from compiler.errors import raised_as
from compiler.runtime.files import replaced
from qsearch.errors import DataError, system_errors
from workers.datasets.npz import LABEL_ARRAYS
from workers.datasets.protocol import InputSpec, same_for_all

LABELS = "labels"
_CHUNK = 1 << 20
_MAX_CALLS = 8


def objects_to_npz(data: Any, inputs: tuple[InputSpec, ...], folder: Path, name: str) -> Path:
    """Write ``data`` to ``folder/<name>-<hash>.npz`` and return the path.

    Memory stays at one item of an iterable, however many there are. A DataFrame becomes a .csv,
    whose columns are read as those of any table.

    Raises:
        DataError: empty, of a kind we do not take, or of names or shapes that do not fit.
    """
    if hasattr(data, "to_csv") and hasattr(data, "columns"):
        return _write_table(data.to_csv(index=False), folder, name)
    columns: dict[str, _Column] = {}
    names: list[str] = []
    try:
        with _writing(folder, name):
            folder.mkdir(parents=True, exist_ok=True)
        for item in data_items(data):
            sample = _named(item, inputs)
            if isinstance(item, Mapping):
                given = sorted(item)
            else:
                given = sorted(sample)
            names = names or given
            if given != names:
                raise DataError(
                    f"items differ in their names: {names} and then {given}",
                    where=name,
                    fix="give every item the same names",
                )
            for key, value in sample.items():
                with _writing(folder, name):
                    if key not in columns:
                        path = folder / f".part-{name}-{len(columns)}"
                        columns[key] = _Column(path, path.open("wb"), value.shape[1:], value.dtype)
                    columns[key].append(value, name, key)
        if not columns:
            raise DataError("the data holds no sample", where=name, fix="give at least one sample")
        with _writing(folder, name):
            return _write(columns, folder, name)
    finally:
        for column in columns.values():
            column.discard()


def _writing(folder: Path, name: str) -> AbstractContextManager[None]:
    """Name the folder of files that cannot be written; reading is the caller's iterator's."""
    return system_errors(
        DataError,
        f"the {name} data cannot be kept",
        where=str(folder),
        fix="free space there, choose another folder with -o, or give the path of an .npz",
    )


def data_items(data: Any) -> Iterator[Any]:
    """The items of data in any of the forms that ``launch`` takes, read one at a time."""
    if isinstance(data, type):
        raise DataError(
            f"data is the class {data.__name__}",
            fix=f"give an instance: {data.__name__}()",
        )
    for _ in range(_MAX_CALLS):
        if callable(data) and not hasattr(data, "get_next"):
            data = data()
    if hasattr(data, "get_next"):
        while (item := data.get_next()) is not None:
            yield item
    elif isinstance(data, np.ndarray | Mapping) or _is_columns(data):
        yield data
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        yield from data
    elif hasattr(data, "__getitem__") and not isinstance(data, str | bytes):  # a torch Dataset
        yield from (data[place] for place in range(len(data)))
    else:
        raise DataError(
            f"data of type {type(data).__name__} cannot be used",
            fix=(
                "give an array, a mapping of arrays, an iterable of mappings, a "
                "CalibrationDataReader, a callable, or the path of an .npz or image folder"
            ),
        )


def _is_columns(data: Any) -> bool:
    """Return whether this is one tuple of all inputs and all labels, and not of two samples."""
    if not (isinstance(data, tuple) and len(data) == 2 and hasattr(data[0], "shape")):
        return False
    inputs = tuple(data[0].shape)
    labels = as_array(data[1]).shape
    return len(inputs) > len(labels) >= 1 and inputs[0] == labels[0]


def _named(item: Any, inputs: tuple[InputSpec, ...]) -> dict[str, NDArray[Any]]:
    """Arrays by name, samples on axis 0; a whole sample is one, see ``datasets.protocol.whole``."""
    item, labels = labelled(item, len(inputs))
    if isinstance(item, Mapping):
        item = _known_names(item, inputs)
    else:
        if isinstance(item, tuple | list) and len(inputs) > 1:
            row = item
        else:
            row = [item]
        if len(row) != len(inputs):
            raise DataError(
                f"{len(row)} array{'s' * (len(row) > 1)} without names for a model with "
                f"{len(inputs)} inputs",
                where=f"inputs {', '.join(map(str, inputs))}",
                fix="give one for each input in this order, or mappings from input name to array",
            )
        item = {spec.name: part for spec, part in zip(inputs, row, strict=True)}
    if labels is not None:
        item = {**item, LABELS: labels}
    axes_of = {spec.name: len(spec.shape) - 1 for spec in inputs}
    arrays: dict[str, NDArray[Any]] = {}
    single = {spec.name: spec.shape[1:] for spec in inputs if prod(spec.shape[1:]) == 1}
    for key, value in item.items():
        array = as_array(value)
        axes = axes_of.get(key, 0)
        if array.ndim <= axes and key in single:  # a value, or a column of them
            array = array.reshape(-1, *single[key])
        if array.ndim == 0 < axes:
            raise DataError(f"a sample of {key!r} is one value", fix=f"give it {axes} axes")
        arrays[str(key)] = array[np.newaxis] if array.ndim == axes else array
    shapes = {spec.name: spec.shape for spec in inputs}
    if len({array.shape[:1] for array in arrays.values()}) > 1 and all(
        array.shape == shapes.get(key, array.shape) for key, array in arrays.items()
    ):  # one run of a model whose first axes count no samples
        arrays = {key: array[None] if key in shapes else array for key, array in arrays.items()}
    arrays = {key: np.atleast_1d(array) for key, array in arrays.items()}
    shared = same_for_all({key: array.shape for key, array in arrays.items()}, inputs)
    rows = max((len(array) for key, array in arrays.items() if key not in shared), default=0)
    for key in shared:
        arrays[key] = np.broadcast_to(arrays[key], (rows, *arrays[key].shape))
    whole_rows = {spec.name for spec in inputs if shared and spec.shape[:1] == (1,)}
    for key in whole_rows:
        arrays[key] = arrays[key].reshape(rows, *shapes[key])
    counts = {key: len(array) for key, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"arrays of different numbers of samples: {counts}",
            where="; ".join(f"{key} {as_array(value).shape}" for key, value in item.items()),
            fix=f"give every name as many samples; the model takes {', '.join(map(str, inputs))}",
        )
    return arrays


def labelled(item: Any, count: int) -> tuple[Any, Any]:
    """An item for a model of ``count`` inputs, without its labels; and these, or None.

    A pair of inputs (an array, a row or a mapping of them) and labels; or inputs in a row, which
    labels may end.
    """
    if not isinstance(item, tuple | list) or len(item) < 2:
        return item, None
    arrays = all(hasattr(part, "shape") for part in item)
    if count > 1 and len(item) == count + 1 and arrays:
        return item[:-1], item[-1]
    pair = len(item) == 2 and (count == 1 or not hasattr(item[0], "shape"))
    # A list of two may be a sample of two numbers; of two arrays or tensors it is a pair.
    if pair and (arrays or isinstance(item, tuple)):
        return (item[0], item[1])
    return (item, None)


def _known_names(item: Mapping[str, Any], inputs: tuple[InputSpec, ...]) -> dict[str, Any]:
    """With the names of the model: ``label`` is ``labels``; a model's one input is the rest."""
    named = dict(item)
    for name in LABEL_ARRAYS:
        free = name in named and name not in {i.name for i in inputs}
        if free and LABELS not in named and len(named) > 1:
            named[LABELS] = named.pop(name)
    others = [name for name in named if name != LABELS]
    if len(inputs) == len(others) == 1:
        named[inputs[0].name] = named.pop(others[0])
    return named


def as_array(value: Any) -> NDArray[Any]:
    """An array of anything like one; tensors of torch leave their device and their history."""
    if hasattr(value, "detach"):
        value = value.detach()
    if hasattr(value, "cpu"):
        value = value.cpu()
    what = f"{type(value).__name__} is no array: its parts differ in their shapes"
    fix = "give an item as one array, a pair (inputs, labels), or a mapping of arrays"
    with raised_as(DataError, what, ValueError, fix=fix):
        array = np.asarray(value)
    if array.dtype == np.float64 and array.ndim > 1:
        return array.astype(np.float32)
    return array


def _write_table(text: str, folder: Path, name: str) -> Path:
    target = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.csv"
    with _writing(folder, name):
        folder.mkdir(parents=True, exist_ok=True)
        with replaced(target) as file:
            file.write(text.encode())
    return target


@dataclass(slots=True)
class _Column:
    """The raw bytes of one name, gathered in a temporary file."""

    path: Path
    stream: IO[bytes]
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    rows: int = 0

    def append(self, array: NDArray[Any], data_name: str, key: str) -> None:
        if array.shape[1:] != self.shape or array.dtype != self.dtype:
            raise DataError(
                f"items of {key!r} differ: {self.dtype}{list(self.shape)} and then "
                f"{array.dtype}{list(array.shape[1:])}",
                where=data_name,
                fix="give every item the same shape and dtype",
            )
        if array.dtype.hasobject:
            raise DataError(
                f"{key!r} holds Python objects", where=data_name, fix="give numeric arrays"
            )
        self.stream.write(np.ascontiguousarray(array).tobytes())
        self.rows += len(array)

    def chunks(self) -> Iterator[bytes]:
        """The member of the archive."""
        self.stream.flush()
        header = io.BytesIO()
        descr = npy_format.dtype_to_descr(self.dtype)
        shape = (self.rows, *self.shape)
        facts = {"descr": descr, "fortran_order": False, "shape": shape}
        npy_format.write_array_header_2_0(header, facts)
        yield header.getvalue()
        with self.path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                yield chunk

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # what a full disk does not take is not needed
            self.stream.close()
        self.path.unlink(missing_ok=True)


def _write(columns: dict[str, _Column], folder: Path, name: str) -> Path:
    partial = folder / f".part-{name}.npz"
    digest = hashlib.sha256()
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for key in sorted(columns):
            digest.update(key.encode())
            entry = zipfile.ZipInfo(f"{key}.npy")
            with archive.open(entry, "w", force_zip64=True) as member:
                for chunk in columns[key].chunks():
                    digest.update(chunk)
                    member.write(chunk)
    target = folder / f"{name}-{digest.hexdigest()[:16]}.npz"
    partial.replace(target)
    return target


# Items with a transform -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Data for ``calib`` and ``eval``: items, read one at a time, and how to read one.

    Args:
        items: any iterable: a list, a torch DataLoader or Dataset, a Hugging Face data set.
        transform_fn: from an item to an array, a mapping of input name to array (``labels`` among
            them), or a pair (inputs, labels). None takes items as they are.
    Example:
        >>> import numpy as np
        >>> rows = [{"pixels": np.zeros(4, np.uint8), "digit": 3}]
        >>> data = Dataset(rows, lambda row: (row["pixels"] / 255, row["digit"]))
        >>> [label for _, label in data]
        [3]
    """

    items: Iterable[Any]
    transform_fn: Callable[[Any], Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            yield item if self.transform_fn is None else self.transform_fn(item)
