"""Dataset: samples by range, streamed; and the check that they fit the model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from workers.errors import DatasetError

LABEL_NAMES: Final = ("label", "labels", "target", "targets")
"""Columns and fields that hold labels where no other name is given; the first that is there."""
Options = Mapping[str, Any] | None
"""Fields of a preprocess file, or of a part of it."""
NO_LABEL: Final = -100
"""The class of samples, tokens and pixels without a label; metrics leave out negative classes."""


@dataclass(frozen=True, slots=True)
class InputSpec:
    """One input of the model: shape with the batch on axis 0, and dtype.

    Attributes:
        finite: no NaN; a float part in front of the core may fill gaps.
        masked: minus infinity is allowed; it masks what a softmax reads.
        rows: of the smallest table that the values are looked up in; 0 where they are in none.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    finite: bool = True
    rows: int = 0
    masked: bool = False

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}{list(self.shape)}"


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Some samples.

    Attributes:
        inputs: input name → array, samples on axis 0.
        labels: classes (int64), numbers (float64) or words, samples on axis 0, or None.
    """

    inputs: Mapping[str, NDArray[Any]]
    labels: NDArray[Any] | None


class Dataset(Protocol):
    """Samples 0 … len-1; equal ranges give equal arrays, in every process.

    A dataset whose samples are ``whole`` says so by an attribute of this name.
    """

    has_labels: bool

    def __len__(self) -> int:
        """Number of samples, at least 1."""

    def batch(self, samples: range) -> Batch:
        """The samples of a range, read now.

        Raises:
            DatasetError: the range leaves the dataset, or a value is not finite.
        """

    def labels(self, samples: range) -> NDArray[Any] | None:
        """The labels of a range without its inputs; None where there are none."""

    def files(self, samples: range) -> Sequence[Path]:
        """The files that decide the samples of a range; none for samples that are made up."""


def whole(dataset: Dataset) -> bool:
    """True where a sample holds every input as one run of the model takes it, on no axis of it."""
    return bool(getattr(dataset, "whole", False))


class WrappedDataset:
    """Base of datasets that give the samples of another one in another way."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.has_labels = dataset.has_labels
        self.whole = whole(dataset)
        self.shared: Sequence[str] = getattr(dataset, "shared", ())

    def __len__(self) -> int:
        return len(self._dataset)

    def labels(self, samples: range) -> NDArray[Any] | None:
        return self._dataset.labels(samples)

    def files(self, samples: range) -> Sequence[Path]:
        return self._dataset.files(samples)


def same_for_all(shapes: Mapping[str, tuple[int, ...]], inputs: Sequence[InputSpec]) -> set[str]:
    """Return the inputs without a batch axis whose array is one value, the same for all samples.

    Another input counts samples: its batch is 1. An array of the very shape of an input that
    counts none is no list of samples.

    Args:
        shapes: of the arrays, by name.
        inputs: the model's inputs.
    """
    if all(spec.shape[:1] != (1,) for spec in inputs):
        return set()
    own = {spec.name: spec.shape for spec in inputs if spec.shape[:1] != (1,)}
    return {name for name, shape in own.items() if shapes.get(name) == shape}


def padded(rows: NDArray[Any], count: int) -> NDArray[Any]:
    """Return as many samples as a model takes at a time; the last one fills them up."""
    missing = count - len(rows)
    if missing > 0:
        return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])
    return rows


def check_values(spec: InputSpec, values: NDArray[Any], start: int, where: str) -> None:
    """Refuse NaN and infinity, and rows that no table has, naming the sample.

    Raises:
        DatasetError: there is one.
    """
    flat = values.reshape(len(values), -1)
    if spec.finite and values.dtype.kind == "f":
        legal = np.isfinite(flat) | (spec.masked & np.isneginf(flat))
        what = ""
        fix = "remove the sample or repair it; calibration and scores need finite values"
    elif spec.rows and values.dtype.kind in "iu":
        legal = (flat >= -spec.rows) & (flat < spec.rows)
        what = f"; the model looks it up in a table of {spec.rows} rows"
        fix = "is it the tokenizer, or the coding, of another model?"
    else:
        return
    if legal.all():
        return
    sample = int(np.flatnonzero(~legal.all(axis=1))[0])
    value = flat[sample][~legal[sample]][0]
    told = f"sample {start + sample} of {spec.name!r} holds {value}{what}"
    raise DatasetError(told, where=where, fix=fix)


def fit_dtype(values: NDArray[Any], spec: InputSpec, where: str) -> NDArray[Any]:
    """The values in the input's dtype, where no information changes kind.

    Floats of any width fit a float input, integers fit a wider integer input.

    Raises:
        DatasetError: another combination; both sides are named.
    """
    wanted = np.dtype(spec.dtype)
    given = values.dtype
    if given == wanted:
        return values
    both_float = given.kind == "f" and wanted.kind == "f"
    if both_float or (given.kind in "iu" and np.can_cast(given, wanted) and wanted.kind in "iu"):
        return values.astype(wanted)
    raise DatasetError(
        f"{spec.name!r} is {given} in the data and {wanted} in the model",
        where=where,
        fix=f"store it as {wanted}, scaled as in training"
        + (" (raw pixels need an image folder with --preprocess)" if given.kind == "u" else ""),
    )
