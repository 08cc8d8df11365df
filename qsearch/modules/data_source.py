"""The data of one call: what was given, opened for as long as the call needs it."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.runtime.pipeline import Pipeline
from qsearch.data import Judged, PreparedData, prepare_data, read_preprocess
from qsearch.run_folder import PathLike
from qsearch.streams import Cell
from workers.datasets.protocol import InputSpec


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
        judged: Judged | None = None,
    ) -> Iterator[PreparedData]:
        """The data, checked, while the block runs.

        Args:
            inputs: of the model.
            name: "calib" or "eval", for messages.
            pipeline: the float parts of a model that was cut.
            cell: makes the model that feeds states back.
            judged: what labels have to fit.
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
                judged=judged,
                preprocess=self.fields,
                objects_folder=Path(scratch),
                seed=int(self.seed),
            )
