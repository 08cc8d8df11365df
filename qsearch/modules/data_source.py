"""The data of one call: what was given, opened for as long as the call needs it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from numpy.typing import NDArray

from compiler.runtime.pipeline import Pipeline
from qsearch.data import PreparedData, prepare_data, read_preprocess
from qsearch.run_folder import PathLike
from qsearch.streams import Cell
from workers.batching import ModelBatch, model_batches
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.messages import Range

_CHUNK: Final = 16
"""Samples that are read at a time."""


@dataclass(frozen=True, slots=True)
class DataSource:
    """Data and how they are read, for the ``calib`` and ``eval`` of every function but ``launch``.

    ``launch`` has the settings ``preprocess`` and ``seed``.

    Attributes:
        data: a path or Python objects, as for ``launch``; None is synthetic inputs.
        preprocess: path of the file that says how an image becomes the input.
        seed: of synthetic inputs.
    """

    data: Any = None
    preprocess: PathLike | None = None
    seed: int = 0

    @classmethod
    def of(cls, given: Any) -> DataSource:
        """A source as it is; anything else is the data of one."""
        return given if isinstance(given, cls) else cls(given)

    @property
    def fields(self) -> dict[str, Any] | None:
        """Of the preprocess file; raises as ``read_preprocess``."""
        return read_preprocess(self.preprocess)

    @contextlib.contextmanager
    def opened(
        self,
        inputs: Sequence[InputSpec],
        name: str = "eval",
        pipeline: Pipeline | None = None,
        cell: Callable[[], Cell] | None = None,
    ) -> Iterator[PreparedData]:
        """The data, checked, while the block runs.

        Args:
            inputs: of the model.
            name: "calib" or "eval", for messages.
            pipeline: the float parts of a model that was cut.
            cell: makes the model that feeds states back.
        Raises:
            DataError, DatasetError: as ``prepare_data``.
        """
        with tempfile.TemporaryDirectory(prefix="qsearch-") as scratch:
            yield prepare_data(
                self.data,
                inputs,
                name=name,
                pipeline=pipeline,
                cell=cell,
                preprocess=self.fields,
                objects_folder=Path(scratch),
                seed=int(self.seed),
            )


@dataclass(frozen=True, slots=True)
class Batches:
    """Inputs of the model, one run at a time, as often as they are iterated.

    Attributes:
        data: open while this is iterated.
        inputs: of the model.
        limit: the first so many samples; None is all.
    """

    data: PreparedData
    inputs: tuple[InputSpec, ...]
    limit: int | None = None

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        return (batch.inputs for batch in self.with_labels())

    def with_labels(self) -> Iterator[ModelBatch]:
        """The same with labels, and how many samples of a run are real."""
        count = self.data.count if self.limit is None else min(self.limit, self.data.count)
        dataset = open_dataset(self.data.ref, self.inputs)
        return model_batches(dataset, Range(0, count), self.inputs, _CHUNK)
