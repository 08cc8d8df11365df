"""Calibration and evaluation data: whatever the user gives becomes a checked DatasetRef."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy_format
from numpy.typing import NDArray

from compiler.runtime.pipeline import Pipeline
from qsearch.config import read_config_file
from qsearch.errors import DataError
from workers.datasets import audio, table, text
from workers.datasets.annotated import BOXES, MASKS
from workers.datasets.contents import Contents
from workers.datasets.prepared import prepared, whole_inputs
from workers.datasets.protocol import LABEL_NAMES, InputSpec
from workers.datasets.protocol import Dataset as OpenDataset
from workers.datasets.registry import open_dataset
from workers.messages import DatasetRef, Range

SYNTHETIC_SAMPLES: Final = 64
KINDS: Final = (
    "an .npz or .npy, a folder of images or sounds, a .csv or .parquet, a .txt or .jsonl of texts"
)
_SCAN: Final = 64
_RANGED: Final = 32
"""Samples whose ranges are compared; images are decoded for them."""


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Data that fits the model.

    Attributes:
        ref: how workers open it.
        count: samples.
        has_labels: whether there are labels that are classes, and top-1 can be scored.
        label_axes: of the labels of any kind; 0 where there are none.
        sha256: over the samples as stored, and over how images become inputs.
        described: for reports: a path, or that it is synthetic.
        ranges: least and greatest value of each float input, in a few samples spread over all.
    """

    ref: DatasetRef
    count: int
    has_labels: bool
    sha256: str
    described: str
    label_axes: int = 0
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def samples(self) -> Range:
        """All of them."""
        return Range(0, self.count)

    @property
    def kind(self) -> str:
        """Of the dataset that was given."""
        found = self.ref.options["of"]["kind"] if self.ref.kind == "prepared" else self.ref.kind
        return str(found)

    @property
    def synthetic(self) -> bool:
        """Made up, because none was given."""
        return self.kind == "synthetic"


def content_hash(value: Any) -> str:
    """sha256 of plain values: JSON with sorted keys and no spaces."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def prepare_data(
    given: Any,
    inputs: Sequence[InputSpec],
    *,
    name: str,
    pipeline: Pipeline | None = None,
    **options: Any,
) -> PreparedData:
    """``open_data`` of the whole model, as the core of a model that was cut takes it.

    Args:
        inputs: of the core.
        pipeline: the float parts; None where the model was not cut.
        options: of ``open_data``.
    """
    if pipeline is None:
        return open_data(given, inputs, name=name, **options)
    whole = whole_inputs(pipeline.whole)
    data = open_data(given, whole, name=name, **options)
    ref = prepared(data.ref, pipeline, whole)
    return _checked(open_dataset(ref, inputs), ref, data.sha256, data.described, inputs)


def open_data(
    given: Any,
    inputs: Sequence[InputSpec],
    *,
    name: str,
    preprocess: Mapping[str, Any] | None = None,
    objects_folder: Path | None = None,
    seed: int = 0,
    classes: int | None = None,
) -> PreparedData:
    """Open data, check that it fits the model's inputs, and hash it.

    Args:
        given: a path, None for synthetic inputs, or Python objects (see ``qsearch.data``).
        inputs: the model's inputs.
        name: "calib" or "eval", for messages and file names.
        preprocess: how an image becomes the input.
        objects_folder: where Python objects are written; needed for them only.
        seed: of synthetic inputs.
        classes: labels lie below it; None where they may be anything.
    Raises:
        DataError, DatasetError: missing, empty, not finite, or not what the model takes.
    """
    if given is None:
        options: dict[str, Any] = {"count": SYNTHETIC_SAMPLES, "seed": seed}
        ref = DatasetRef("synthetic", options)
        described = f"synthetic ({SYNTHETIC_SAMPLES} samples, seed {seed})"
        dataset = open_dataset(ref, inputs)
        return _checked(dataset, ref, content_hash(options), described, ())
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        described = str(given)
    else:
        if objects_folder is None:
            raise DataError(f"{name} data given as objects has no place to be written to")
        path = objects_to_npz(given, tuple(inputs), objects_folder, name)
        described = f"{type(given).__name__} from Python"
    check_exists(path, name)
    contents = Contents(path)
    kind = _kind(path, preprocess or {})
    if kind != "npz":
        options = {"path": str(path.absolute()), "preprocess": preprocess}
        ref = DatasetRef(kind, options, contents.sha256)
        dataset = open_dataset(ref, inputs, contents)  # it checks the fields of preprocess
        tokenizer = (preprocess or {}).get("tokenizer")
        beside = Contents(Path(tokenizer)).sha256 if tokenizer else None
        sha256 = contents.combined(content_hash([preprocess, beside]).encode())
        check_labels(dataset, classes, described)
        return _checked(dataset, ref, sha256, described, inputs)
    ref = DatasetRef("npz", {"path": str(path.absolute())}, contents.sha256)
    dataset = open_dataset(ref, inputs, contents)
    check_labels(dataset, classes, described)
    data = _checked(dataset, ref, contents.sha256, described, inputs)
    for start in range(0, data.count, _SCAN):
        dataset.batch(Range(start, min(start + _SCAN, data.count)))  # refuses what is not finite
    return data


def check_exists(path: str | Path | None, name: str) -> None:
    """Refuse a path that leads nowhere, before anything costly begins.

    Raises:
        DataError: there is nothing; None is fine.
    """
    if path is not None and not Path(path).exists():
        raise DataError(
            f"the {name} data {path} does not exist",
            where=str(Path(path).absolute()),
            fix=f"give {KINDS}",
        )


def read_preprocess(path: str | os.PathLike[str] | None) -> dict[str, Any] | None:
    """The fields of a ``--preprocess`` file; they are checked where a data set uses them.

    The path of a tokenizer is taken from the folder of the file.

    Raises:
        SettingsError, DataError: the file cannot be read, or there is no such tokenizer.
    """
    if path is None:
        return None
    fields = read_config_file(Path(path))
    if "tokenizer" in fields:
        tokenizer = Path(path).absolute().parent / str(fields["tokenizer"])
        if not tokenizer.is_file():
            raise DataError(
                f"there is no tokenizer {fields['tokenizer']}",
                where=f"{path}, tokenizer",
                fix="give the path of the model's tokenizer.json, from the folder of this file",
            )
        fields["tokenizer"] = str(tokenizer)
    return fields


def _kind(path: Path, preprocess: Mapping[str, Any]) -> str:
    """The kind of a data set: by a field of ``--preprocess``, else by the files."""
    by_field = {"tokenizer": "text", "rate": "audio", "columns": "table"}
    by_field |= {BOXES: "detection", MASKS: "segmentation"}
    for field_name, kind in by_field.items():
        if field_name in preprocess:
            if (kind in ("text", "table")) == path.is_dir():
                raise DataError(
                    f"{field_name!r} in the preprocess file is for "
                    f"{'a folder' if path.is_file() else 'a file'}",
                    where=str(path),
                    fix=f"give the {kind} data, or leave {field_name!r} out",
                )
            return kind
    if path.is_dir():
        sounds = any(each.suffix.lower() in audio.SUFFIXES for each in path.rglob("*"))
        return "audio" if sounds else "image_folder"
    suffix = path.suffix.lower()
    if suffix == ".csv" and (path.parent / "tokenizer.json").is_file():
        return "text"
    if suffix in table.SUFFIXES:
        return "table"
    return "text" if suffix in text.SUFFIXES else "npz"


def _checked(
    dataset: OpenDataset, ref: DatasetRef, sha256: str, described: str, inputs: Sequence[InputSpec]
) -> PreparedData:
    count = len(dataset)
    spread = sorted({place * count // _RANGED for place in range(_RANGED)})
    ranges: dict[str, tuple[float, float]] = {}
    names = [spec.name for spec in inputs if spec.dtype.startswith("float")]
    for place in spread if names else ():
        batch = dataset.batch(Range(place, place + 1))
        for name in names:
            values = batch.inputs[name]
            low, high = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = (min(low, float(values.min())), max(high, float(values.max())))
    labels = dataset.labels(Range(0, 1))
    classes = labels is not None and labels.dtype.kind in "iu"
    axes = 0 if labels is None else labels.ndim
    return PreparedData(ref, count, classes, sha256, described, axes, ranges)


def check_labels(dataset: OpenDataset, classes: int | None, where: str) -> None:
    """Refuse labels that are no class of the model, naming the first.

    Raises:
        DataError: there is one.
    """
    if classes is None or not dataset.has_labels:
        return
    least, most = classes, -1
    wrong: tuple[int, int] | None = None
    for start in range(0, len(dataset), _SCAN):
        labels = dataset.labels(Range(start, min(start + _SCAN, len(dataset))))
        if labels is None or not labels.size or labels.dtype.kind == "f":
            continue
        least, most = min(least, int(labels.min())), max(most, int(labels.max()))
        outside = (labels < 0) | (labels >= classes)
        if wrong is None and outside.any():
            place = tuple(int(index[0]) for index in np.nonzero(outside))
            wrong = (start + place[0], int(labels[place]))
    if wrong is None:
        return
    fix = f"labels go from 0 to {classes - 1}; is it the data of another model?"
    if (least, most) == (1, classes):
        fix = "labels count from 1 here and from 0 in the model: subtract 1 from all of them"
    elif least == -1:
        fix = "leave out samples without a label, or add 1 where labels count from -1"
    elif classes == 1:
        fix = (
            "a model with one output has no classes: give --eval without labels, or --metric "
            "module:name, a metric of your own"
        )
    raise DataError(
        f"sample {wrong[0]} has the label {wrong[1]}, and the model has {classes} classes "
        f"(0 to {classes - 1})",
        where=f"{where}: labels from {least} to {most}",
        fix=fix,
    )


# Python objects become an .npz in the run folder ------------------------------------------------


LABELS = "labels"
_CHUNK = 1 << 20
_MAX_CALLS = 8


def objects_to_npz(data: Any, inputs: tuple[InputSpec, ...], folder: Path, name: str) -> Path:
    """Write ``data`` to ``folder/<name>-<hash>.npz`` and return the path.

    Memory stays at one item of an iterable, however many there are.

    Raises:
        DataError: empty, of a kind we do not take, or of names or shapes that do not fit.
    """
    columns: dict[str, _Column] = {}
    names: list[str] = []
    try:
        with _writing(folder, name):
            folder.mkdir(parents=True, exist_ok=True)
        for item in data_items(data):
            sample = _named(item, inputs)
            given = sorted(item) if isinstance(item, Mapping) else sorted(sample)
            names = names or given
            if given != names:
                raise DataError(
                    f"items differ in their names: {names} and then {given}",
                    where=name,
                    fix="give every item the same names",
                )
            for key, value in sample.items():
                column = columns.setdefault(key, _Column(folder / f".part-{name}-{len(columns)}"))
                with _writing(folder, name):
                    column.append(value, name, key)
        if not columns:
            raise DataError("the data holds no sample", where=name, fix="give at least one sample")
        with _writing(folder, name):
            return _write(columns, folder, name)
    finally:
        for column in columns.values():
            column.discard()


@contextlib.contextmanager
def _writing(folder: Path, name: str) -> Iterator[None]:
    """Name the folder of files that cannot be written; reading is the caller's iterator's."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"the {name} data cannot be kept: {error.strerror or error}",
            where=str(folder),
            fix="free space there, choose another folder with -o, or give the path of an .npz",
        ) from error


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
    """Whether this is one tuple of all inputs and all labels, and not of two samples."""
    if not (isinstance(data, tuple) and len(data) == 2 and all(hasattr(d, "shape") for d in data)):
        return False
    inputs, labels = (tuple(part.shape) for part in data)
    return len(inputs) > len(labels) == 1 and inputs[0] == labels[0]


def _named(item: Any, inputs: tuple[InputSpec, ...]) -> dict[str, NDArray[Any]]:
    """Arrays by name, samples on axis 0."""
    labels = None
    # A list of two may be a sample of two numbers; of two arrays or tensors it is a pair.
    pair = isinstance(item, tuple | list) and len(item) == 2 and len(inputs) == 1
    if pair and (isinstance(item, tuple) or all(hasattr(part, "shape") for part in item)):
        item, labels = item
    if isinstance(item, Mapping):
        item = _known_names(item, inputs)
    else:
        if len(inputs) != 1:
            raise DataError(
                "data without names for a model with several inputs",
                where=f"inputs {', '.join(map(str, inputs))}",
                fix="give mappings from input name to array",
            )
        item = {inputs[0].name: item}
    if labels is not None:
        item = {**item, LABELS: labels}
    axes_of = {spec.name: len(spec.shape) - 1 for spec in inputs}
    arrays: dict[str, NDArray[Any]] = {}
    for key, value in item.items():
        array, axes = as_array(value), axes_of.get(key, 0)
        if array.ndim == 0 < axes:
            raise DataError(f"a sample of {key!r} is one value", fix=f"give it {axes} axes")
        arrays[str(key)] = array[np.newaxis] if array.ndim == axes else array
    counts = {key: len(array) for key, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise DataError(
            f"arrays of different numbers of samples: {counts}",
            where="; ".join(f"{key} {as_array(value).shape}" for key, value in item.items()),
            fix=f"give every name as many samples; the model takes {', '.join(map(str, inputs))}",
        )
    return arrays


def _known_names(item: Mapping[str, Any], inputs: tuple[InputSpec, ...]) -> dict[str, Any]:
    """With the names of the model: ``label`` is ``labels``; a model's one input is the rest."""
    named = dict(item)
    for name in LABEL_NAMES:
        if name in named and LABELS not in named and name not in {i.name for i in inputs}:
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
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype == np.float64 and array.ndim > 1 else array


@dataclass(slots=True)
class _Column:
    """The raw bytes of one name, gathered in a temporary file."""

    path: Path
    rows: int = 0
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | None = None
    _stream: IO[bytes] | None = field(default=None)

    def append(self, array: NDArray[Any], data_name: str, key: str) -> None:
        if self._stream is None:
            self._stream = self.path.open("wb")
            self.shape, self.dtype = array.shape[1:], array.dtype
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
        self._stream.write(np.ascontiguousarray(array).tobytes())
        self.rows += len(array)

    def copy_to(self, target: Callable[[bytes], Any]) -> None:
        assert self._stream is not None
        assert self.dtype is not None
        self._stream.flush()
        header = {
            "descr": npy_format.dtype_to_descr(self.dtype),
            "fortran_order": False,
            "shape": (self.rows, *self.shape),
        }
        target(_header_bytes(header))
        with self.path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                target(chunk)

    def discard(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # what a full disk does not take is not needed
                self._stream.close()
        self.path.unlink(missing_ok=True)


def _header_bytes(header: dict[str, Any]) -> bytes:
    import io

    buffer = io.BytesIO()
    npy_format.write_array_header_2_0(buffer, header)
    return buffer.getvalue()


def _write(columns: dict[str, _Column], folder: Path, name: str) -> Path:
    partial = folder / f".part-{name}.npz"
    digest = hashlib.sha256()
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_STORED) as archive:
        for key in sorted(columns):
            digest.update(key.encode())
            entry = zipfile.ZipInfo(f"{key}.npy")

            with archive.open(entry, "w", force_zip64=True) as member:

                def both(chunk: bytes, write: Callable[[bytes], Any] = member.write) -> None:
                    digest.update(chunk)
                    write(chunk)

                columns[key].copy_to(both)
    target = folder / f"{name}-{digest.hexdigest()[:16]}.npz"
    partial.replace(target)
    return target


# Items with a transform -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """What ``calib`` and ``eval`` take: items, read one at a time, and how to read one.

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
