"""Calibration and evaluation data: whatever the user gives becomes a checked DatasetRef."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.ir.ty import is_float, tensor_fields
from compiler.runtime.pipeline import Pipeline
from qsearch.data.object_data import objects_to_npz
from qsearch.data.streams import STATES, Cell, Streams
from qsearch.errors import DataError, SettingsError
from qsearch.settings.config import read_config_file
from workers.batching import ModelBatch, batch_size, spread_batches
from workers.datasets import audio, table, text
from workers.datasets.annotated import BOXES, MASKS
from workers.datasets.contents import Contents, files_below
from workers.datasets.labels import FIELDS as LABELLED
from workers.datasets.labels import checked_fields
from workers.datasets.prepared import prepared, whole_inputs
from workers.datasets.protocol import NO_LABEL, InputSpec, padded
from workers.datasets.protocol import Dataset as OpenDataset
from workers.datasets.protocol import whole as is_whole
from workers.datasets.registry import LABELS, open_dataset
from workers.messages import DatasetRef
from workers.metrics.library import LIBRARY, WORDS

SYNTHETIC_SAMPLES: Final = 64
KINDS: Final = (
    "an .npz or .npy, a folder of images or sounds, a .csv or .parquet, a .txt or .jsonl of texts"
)
CLASSES = "classes"
SEVERAL = "several"
NUMBERS = "numbers"
"""Kinds of labels."""
_OF_CLASSES: Final = tuple(LIBRARY[word] for word in ("f1", "auc", "bits", "perplexity"))
_CHUNK: Final = 16
"""Samples that a run over all data reads at a time."""
_SCAN: Final = 64
_RANGED: Final = 32
"""Samples whose ranges are compared; images are decoded for them."""


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Data that fits the model.

    Attributes:
        ref: how workers open it.
        count: samples.
        label_kind: "classes"; "several" where a sample has several classes at once; "numbers"; ""
            without labels.
        label_axes: of the labels of any kind; 0 where there are none.
        sha256: over the samples as stored, and over how images become inputs.
        described: for reports: a path, or that it is synthetic.
        whole: every sample is one run of the model; see ``workers.datasets.protocol.whole``.
        ranges: least and greatest value of each float input, in a few samples spread over all.
    """

    ref: DatasetRef
    count: int
    label_kind: str
    sha256: str
    described: str
    label_axes: int = 0
    whole: bool = False
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def has_labels(self) -> bool:
        """The labels are classes, and top-1 can be scored."""
        return self.label_kind == CLASSES

    @property
    def samples(self) -> range:
        """All of them."""
        return range(self.count)

    @property
    def given(self) -> DatasetRef:
        """The dataset that was given, in front of the part of a model that was cut."""
        if self.ref.kind == "prepared":
            return DatasetRef(**self.ref.options["of"])
        return self.ref

    @property
    def kind(self) -> str:
        """Kind of the dataset that was given."""
        return self.given.kind

    @property
    def path(self) -> str:
        """Path of the file or folder that the dataset reads."""
        return str(self.given.options["path"])

    @property
    def synthetic(self) -> bool:
        """Made up, because none was given."""
        return self.kind == "synthetic"


@dataclass(frozen=True, slots=True)
class Judged:
    """The output that labels are compared with: the first of the whole model, one sample of it.

    Attributes:
        shape: without the batch.
        dtype: of the output.
        metric: that compares them; "" for the default one.
    """

    shape: tuple[int, ...]
    dtype: str
    metric: str = ""

    @staticmethod
    def of(sizes: Sequence[Any], dtype: str, metric: str = "") -> Judged | None:
        """Return the output of these sizes, batch first; None where one is not known."""
        known = all(isinstance(size, int) for size in sizes[1:])
        if known:
            return Judged(tuple(sizes[1:]), dtype, metric)
        return None

    @property
    def classes(self) -> int | None:
        """Number of classes that it tells apart; None where it holds no scores of classes."""
        if not is_float(self.dtype):
            return None
        if not self.shape:
            return 1
        return self.shape[0 if len(self.shape) >= 3 else -1]


def label_note(data: PreparedData, metric: str | None) -> str:
    """Return what a metric does with labels of several classes at once; "" for other labels.

    Args:
        metric: the option of the user; None for the default one.
    Raises:
        SettingsError: top1, which compares one class.
    """
    if data.label_kind != SEVERAL:
        return ""
    fact = "a sample has several labels of 0 or 1, one for each output"
    cure = "--metric f1 or auc judges each output"
    if metric == "top1":
        raise SettingsError(
            f"{fact}, and top1 compares one", where=f"labels of {data.described}", fix=cure
        )
    if metric in (LIBRARY["f1"], LIBRARY["auc"]):
        return f"{fact}: {WORDS[metric]} is the mean over the outputs (macro)"
    return f"{fact}, which the score does not use: {cure}"


def natural_metric(data: PreparedData) -> str | None:
    """Return the metric of labels that top-1 cannot judge: boxes, and texts of a reader."""
    if data.kind == "detection":
        return LIBRARY["map"]
    if "alphabet" in data.given.options.get(LABELS, {}):
        return LIBRARY["cer"]
    return None


def judged_output(module: IRModule, pipeline: Pipeline | None, metric: str) -> Judged | None:
    """Return what labels are compared with; None where its sizes are not known.

    Args:
        module: the core, or the whole model.
        pipeline: the float parts of a model that was cut.
        metric: that compares them; "" for the default one.
    """
    if pipeline is None or pipeline.after is None:
        (first, *_) = tensor_fields(module["main"].body.checked_type)
        sizes: Sequence[Any] = first.shape
        dtype = first.dtype
    else:
        port = pipeline.whole.outputs[0]
        sizes = port.dims
        dtype = port.dtype
    return Judged.of(sizes, dtype, metric)


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
    cell: Callable[[], Cell] | None = None,
    **options: Any,
) -> PreparedData:
    """``open_data`` of the whole model, as the core of a model that was cut takes it.

    Args:
        inputs: of the core.
        pipeline: the float parts; None where the model was not cut.
        cell: makes the whole model, which feeds states back and must not join the samples of a
            fixed batch; None where there is none.
        options: of ``open_data``.
    Raises:
        DataError: single samples, and a model that computes an output from several together.
    """
    if pipeline is None:
        inputs_of_all = inputs
    else:
        inputs_of_all = whole_inputs(pipeline.whole)
    if STATES in (options.get("preprocess") or {}):
        described = _described(given, options.get("seed", 0))
        given, options = _fed_back(given, inputs_of_all, name, cell, options)
        options["described"] = described
    data = open_data(given, inputs_of_all, name=name, **options)
    if cell is not None and not data.whole and batch_size(inputs_of_all) > 1:
        joining = _joining_output(data, inputs_of_all, cell())
        if joining and data.synthetic:
            data = open_data(given, inputs_of_all, name=name, **options, whole=True)
        elif joining:
            wanted = (f"{s.name} [runs, {str([*s.shape])[1:]}" for s in inputs_of_all)
            raise DataError(
                f"the model computes {joining!r} from {batch_size(inputs_of_all)} samples "
                "together, and the data hold single samples",
                where=data.described,
                fix="give whole inputs, with an axis for the runs in front "
                f"({', '.join(wanted)}), or export the model for one sample",
            )
    if pipeline is None:
        return data
    ref = prepared(data.ref, pipeline, inputs_of_all)
    core = _checked(open_dataset(ref, inputs), ref, data.sha256, data.described, inputs, None)
    return replace(core, label_kind=data.label_kind)


def _joining_output(data: PreparedData, inputs: Sequence[InputSpec], model: Cell) -> str:
    """Return an output of a fixed batch that depends on several samples at once; "" for none.

    Data of exactly one run are what the model takes: rows of a table, nodes of a graph.
    """
    size = batch_size(inputs)
    read = open_dataset(data.ref, inputs).batch(range(min(size, data.count))).inputs
    rows = {spec.name: padded(read[spec.name], size) for spec in inputs}
    changed = {
        name: np.concatenate([array[:-1], array[:1].reshape(-1)[::-1].reshape(1, *array.shape[1:])])
        for name, array in rows.items()
    }
    both = zip(map(np.asarray, model.run(rows)), map(np.asarray, model.run(changed)), strict=True)
    for place, (first, second) in enumerate(both):
        if model.sampled is not None and not model.sampled[place]:
            continue
        if first.ndim and len(first) == size:
            if data.count == size:
                continue
            first = first[:-1]
            second = second[:-1]
        # A row is computed alike in both runs; other kernels of a runtime may round a last bit.
        if first.shape != second.shape or not np.allclose(first, second, 1e-3, 1e-5, True):
            if model.outputs:
                return model.outputs[place]
            return f"output {place}"
    return ""


def _fed_back(
    given: Any,
    inputs: Sequence[InputSpec],
    name: str,
    cell: Callable[[], Cell] | None,
    options: Mapping[str, Any],
) -> tuple[Path, dict[str, Any]]:
    """Every call of a model over streams as the samples of an .npz, and the options for it."""
    preprocess = dict(options["preprocess"])
    states = preprocess.pop(STATES)
    folder = options.get("objects_folder")
    if cell is None:
        raise DataError(
            "states are fed back by one model, and there is none here",
            where="states in the preprocess file",
            fix="give the states as arrays of the data",
        )
    assert folder is not None  # whoever has a model has a folder
    model = cell()
    streams = Streams.of(inputs, states, model, name)
    if not (given is None or isinstance(given, str | os.PathLike)):
        given = objects_to_npz(given, streams.signal(None), folder, f"{name}-streams")
    check_exists(given, name)
    signal = streams.signal(given)
    options = {**options, "preprocess": preprocess or None}
    data = open_data(given, signal, name=name, **{**options, "judged": None})
    calls = streams.calls(open_dataset(data.ref, signal), signal, model)
    return objects_to_npz(calls, tuple(inputs), folder, name), options


def _described(given: Any, seed: int) -> str:
    if given is None:
        return f"synthetic ({SYNTHETIC_SAMPLES} samples, seed {seed})"
    named = isinstance(given, str | os.PathLike)
    if named:
        return str(given)
    return f"{type(given).__name__} from Python"


def open_data(
    given: Any,
    inputs: Sequence[InputSpec],
    *,
    name: str,
    preprocess: Mapping[str, Any] | None = None,
    objects_folder: Path | None = None,
    seed: int = 0,
    judged: Judged | None = None,
    whole: bool = False,
    described: str = "",
) -> PreparedData:
    """Open data, check that it fits the model's inputs, and hash it.

    Args:
        given: a path, None for synthetic inputs, or Python objects (see ``object_data``).
        inputs: the model's inputs.
        name: "calib" or "eval", for messages and file names.
        preprocess: how an image becomes the input.
        objects_folder: where Python objects are written; needed for them only.
        seed: of synthetic inputs.
        judged: what labels have to fit; None where they may be anything.
        whole: each synthetic sample is one run of the model.
        described: of ``PreparedData``, where ``given`` is made of the user's data.
    Raises:
        DataError, DatasetError: missing, empty, not finite, or not what the model takes.
    """
    described = described or _described(given, seed)
    if given is None:
        options: dict[str, Any] = {"count": SYNTHETIC_SAMPLES, "seed": seed}
        options |= {"whole": True} if whole else {}
        ref = DatasetRef("synthetic", options)
        dataset = open_dataset(ref, inputs)
        return _checked(dataset, ref, content_hash(options), described, (), None)
    if isinstance(given, str | os.PathLike):
        path = Path(given)
    else:
        if objects_folder is None:
            raise DataError(f"{name} data given as objects has no place to be written to")
        path = objects_to_npz(given, tuple(inputs), objects_folder, name)
    check_exists(path, name)
    contents = Contents(path)
    fields = dict(preprocess or {})
    of_labels = checked_fields({name: fields.pop(name) for name in LABELLED if name in fields})
    if preprocess is None or (of_labels and not fields):
        preprocess = None
    else:
        preprocess = fields
    kind = _kind(path, fields, inputs)
    options = {"path": str(path.absolute())} | ({LABELS: of_labels} if of_labels else {})
    if kind != "npz":
        options["preprocess"] = preprocess
    elif fields:
        raise DataError(
            f"{', '.join(fields)} in the preprocess file: arrays are taken as they are",
            where=str(path),
            fix="normalize the arrays before they are saved and leave the field out, or give a "
            "folder of images",
        )
    ref = DatasetRef(kind, options, contents.sha256)
    dataset = open_dataset(ref, inputs, contents)  # it checks the fields of preprocess
    sha256 = contents.sha256
    if kind != "npz":
        if fields.get("tokenizer"):
            beside = Contents(Path(fields["tokenizer"])).sha256
        else:
            beside = None
        sha256 = contents.combined(content_hash([preprocess, beside]).encode())
    if of_labels:
        sha256 = content_hash([sha256, of_labels])
    data = _checked(dataset, ref, sha256, described, inputs, judged)
    for start in range(0, data.count, _SCAN) if kind == "npz" else ():
        dataset.batch(data.samples[start : start + _SCAN])  # refuses what is not finite
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


def _kind(path: Path, preprocess: Mapping[str, Any], inputs: Sequence[InputSpec]) -> str:
    """The kind of a data set: by a field of ``--preprocess``, else by the files and the inputs."""
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
        sounds = any(each.suffix.lower() in audio.SUFFIXES for each in files_below(path))
        if sounds:
            return "audio"
        return "image_folder"
    suffix = path.suffix.lower()
    tokenized = len(inputs) > 1 or (path.parent / "tokenizer.json").is_file()
    if suffix == ".csv" and tokenized and text.takes_tokens(inputs):
        return "text"
    if suffix in table.SUFFIXES:
        return "table"
    if suffix in text.SUFFIXES:
        return "text"
    return "npz"


def _checked(
    dataset: OpenDataset,
    ref: DatasetRef,
    sha256: str,
    described: str,
    inputs: Sequence[InputSpec],
    judged: Judged | None,
) -> PreparedData:
    count = len(dataset)
    first = dataset.labels(range(1))
    axes = 0 if first is None else first.ndim
    if first is None:
        label_kind = ""
    else:
        label_kind = fit_labels(dataset, judged, described)
    spread = sorted({place * count // _RANGED for place in range(_RANGED)})
    ranges: dict[str, tuple[float, float]] = {}
    names = [spec.name for spec in inputs if spec.dtype.startswith("float")]
    for place in spread if names else ():
        batch = dataset.batch(range(place, place + 1))
        for name in names:
            values = batch.inputs[name]
            low, high = ranges.get(name, (np.inf, -np.inf))
            ranges[name] = (min(low, float(values.min())), max(high, float(values.max())))
    shared = getattr(dataset, "shared", ())
    if shared:
        described += f" ({', '.join(shared)}: no batch axis, the same for all samples)"
    return PreparedData(ref, count, label_kind, sha256, described, axes, is_whole(dataset), ranges)


def fit_labels(dataset: OpenDataset, judged: Judged | None, where: str) -> str:
    """Return the kind of the labels, of which there are some.

    Args:
        judged: what they have to fit; None where they may be anything.
        where: for messages.
    Raises:
        DataError: a label is no class of the model; the first is named.
    """
    samples = range(len(dataset))
    parts = (dataset.labels(samples[start : start + _SCAN]) for start in samples[::_SCAN])
    first = dataset.labels(range(1))
    assert first is not None
    kind = CLASSES if first.dtype.kind in "iu" else NUMBERS
    classes = None if judged is None else judged.classes
    own = judged is not None and judged.metric not in ("", "top1", *_OF_CLASSES)
    if judged is None or classes is None or own:
        return kind
    whole = True
    several = first.ndim == 2 and first.shape[1:] == judged.shape
    hot = True
    least = classes
    most = NO_LABEL
    wrong = None
    for part, found in enumerate(parts):
        assert found is not None
        labels = found.reshape(-1)
        present = (labels == labels) & (labels != NO_LABEL)
        legal = labels[(labels >= 0) | (present & (first.ndim == 1))]
        whole = whole and bool((legal == np.floor(legal)).all())
        if not whole:
            return NUMBERS
        several = several and bool(np.isin(legal, (0, 1)).all())
        hot = hot and several and bool((found.sum(axis=1) == 1).all())
        if not legal.size:
            continue
        least = min(least, int(legal.min()))
        most = max(most, int(legal.max()))
        outside = np.isin(labels, legal[(legal < 0) | (legal >= classes)])
        if wrong is None and outside.any():
            place = int(np.argmax(outside))
            wrong = (part * _SCAN + place // max(1, labels.size // len(found)), int(labels[place]))
    if hot and classes > 1 and judged.metric in ("", "top1"):
        raise DataError(
            f"the labels are one-hot: one 1 among {classes} numbers in each sample",
            where=where,
            fix="give the class of each sample (labels.argmax(1)), or --metric f1 or auc for "
            "several labels of a sample",
        )
    if several and classes > 1:
        return SEVERAL
    if classes == 1 and (kind == NUMBERS or judged.metric not in ("", "top1")):
        return kind
    words = getattr(dataset, "words", ())
    if words and wrong is None and len(words) != classes:
        raise DataError(
            f"the labels are {len(words)} words, and the model has {classes} classes",
            where=f"{where}: {', '.join(words)[:200]}",
            fix="give --preprocess pre.yaml with 'classes: [...]', all of them in the order of "
            "the model's outputs",
        )
    if wrong is None:
        return CLASSES
    if kind == NUMBERS:
        return NUMBERS
    fix = f"labels go from 0 to {classes - 1}; is it the data of another model?"
    if Path(where).is_dir():
        fix = "folders named by numbers are class indices: count from 0, or list the names in "
        fix += "classes.txt beside them (line 1 is class 0)"
    elif (least, most) == (1, classes):
        fix = "labels count from 1 here and from 0 in the model: subtract 1 from all of them"
    elif least < 0:
        fix = f"write {NO_LABEL} for samples without a label, or 'ignore: {least}' in the "
        fix += "preprocess file; add 1 where labels count from -1"
    elif classes == 1:
        if (least, most) == (0, 1):
            usual = "auc, f1"
        else:
            usual = "mae, rmse, r2"
        fix = (
            f"a model with one output has no classes: give --metric {usual}, or one of your own "
            "(module:name), or --eval without labels"
        )
    raise DataError(
        f"sample {wrong[0]} has the label {wrong[1]}, and the model has {classes} classes "
        f"(0 to {classes - 1})",
        where=f"{where}: labels from {least} to {most}",
        fix=fix,
    )


@dataclass(frozen=True, slots=True)
class Batches:
    """Inputs of the model, one run at a time, as often as they are iterated.

    Attributes:
        data: open while this is iterated.
        inputs: of the model.
        limit: about so many samples, spread over all; None is all.
        told: called with the samples that are done, from 0 on, and the number of all.
    """

    data: PreparedData
    inputs: tuple[InputSpec, ...]
    limit: int | None = None
    told: Callable[[int, int], None] | None = None

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        told = self.told or (lambda _done, _of: None)
        told(0, self.data.count)
        for batch in self.with_labels():
            yield batch.inputs
            told(batch.start + batch.count, self.data.count)

    def with_labels(self) -> Iterator[ModelBatch]:
        """The same with labels, and how many samples of a run are real."""
        dataset = open_dataset(self.data.ref, self.inputs)
        count = self.data.count if self.limit is None else self.limit
        return spread_batches(dataset, count, self.inputs, _CHUNK)
