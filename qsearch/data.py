"""Calibration and evaluation data: whatever the user gives becomes a checked DatasetRef."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from qsearch.config import read_config_file
from qsearch.errors import DataError
from qsearch.search.space import content_hash
from qsearch.spool import spool
from workers.datasets.contents import Contents
from workers.datasets.protocol import Dataset, InputSpec
from workers.datasets.registry import open_dataset
from workers.messages import DatasetRef, Range

SYNTHETIC_SAMPLES: Final = 64
_SCAN: Final = 64


@dataclass(frozen=True, slots=True)
class PreparedData:
    """Data that fits the model.

    Attributes:
        ref: how workers open it.
        count: samples.
        has_labels: whether top-1 can be scored.
        sha256: over the samples as stored, and over how images become inputs.
        described: for reports: a path, or that it is synthetic.
    """

    ref: DatasetRef
    count: int
    has_labels: bool
    sha256: str
    described: str

    @property
    def samples(self) -> Range:
        """All of them."""
        return Range(0, self.count)

    @property
    def synthetic(self) -> bool:
        """Made up, because none was given."""
        return self.ref.kind == "synthetic"


def prepare_data(
    given: Any,
    inputs: Sequence[InputSpec],
    *,
    name: str,
    preprocess: Mapping[str, Any] | None = None,
    spool_folder: Path | None = None,
    seed: int = 0,
) -> PreparedData:
    """Open data, check that it fits the model's inputs, and hash it.

    Args:
        given: a path, None for synthetic inputs, or Python objects (see ``qsearch.spool``).
        inputs: the model's inputs.
        name: "calib" or "eval", for messages and file names.
        preprocess: how an image becomes the input.
        spool_folder: where Python objects are written; needed for them only.
        seed: of synthetic inputs.
    Raises:
        DataError, DatasetError: missing, empty, not finite, or not what the model takes.
    """
    if given is None:
        options: dict[str, Any] = {"count": SYNTHETIC_SAMPLES, "seed": seed}
        ref = DatasetRef("synthetic", options)
        described = f"synthetic ({SYNTHETIC_SAMPLES} samples, seed {seed})"
        dataset = open_dataset(ref, inputs)
        return _checked(dataset, ref, content_hash(options), described)
    if isinstance(given, str | os.PathLike):
        path = Path(given)
        described = str(given)
    else:
        if spool_folder is None:
            raise DataError(f"{name} data given as objects has no place to be written to")
        path = spool(given, tuple(inputs), spool_folder, name)
        described = f"{type(given).__name__} from Python"
    check_exists(path, name)
    contents = Contents(path)
    if path.is_dir():
        options = {"path": str(path.absolute()), "preprocess": preprocess}
        ref = DatasetRef("image_folder", options, contents.sha256)
        dataset = open_dataset(ref, inputs, contents)  # it checks the fields of preprocess
        sha256 = contents.combined(content_hash(preprocess).encode())
        return _checked(dataset, ref, sha256, described)
    ref = DatasetRef("npz", {"path": str(path.absolute())}, contents.sha256)
    dataset = open_dataset(ref, inputs, contents)
    data = _checked(dataset, ref, contents.sha256, described)
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
            fix="give an .npz, an .npy or a folder of images",
        )


def read_preprocess(path: str | None) -> dict[str, Any] | None:
    """The fields of a ``--preprocess`` file; they are checked where a data set uses them."""
    return None if path is None else read_config_file(path)


def _checked(dataset: Dataset, ref: DatasetRef, sha256: str, described: str) -> PreparedData:
    return PreparedData(ref, len(dataset), dataset.has_labels, sha256, described)
