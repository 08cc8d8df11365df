"""Dataset kind "prepared": samples of another dataset behind the float part of a model in front of
its core, and beside them what the float head reads that the core does not give."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.runtime.interface import Interface
from compiler.runtime.pipeline import Pipeline
from workers.datasets.protocol import (
    Batch,
    Dataset,
    InputSpec,
    WrappedDataset,
    check_values,
    padded,
)
from workers.datasets.registry import datasets, open_dataset
from workers.errors import DatasetError
from workers.messages import DatasetRef


def whole_inputs(whole: Interface) -> tuple[InputSpec, ...]:
    """Inputs of a model that was cut, for one sample.

    Raises:
        DatasetError: an axis has no size.
    """
    specs = []
    for port in whole.inputs:
        open_axes = [n for n, dim in enumerate(port.dims) if isinstance(dim, str) and n]
        if open_axes:
            axis = open_axes[0]
            if port.dims[axis] != "?":
                name = port.dims[axis]
            else:
                name = f"{port.name}:{axis}"
            raise DatasetError(
                f"dimension {axis} of input {port.name!r} has no size",
                where="the part of the model in front of the cut",
                fix=f"give it with --dim {name}=…",
            )
        shape = tuple(dim if isinstance(dim, int) else 1 for dim in port.dims)
        if port.dtype in ("float16", "float64"):
            dtype = "float32"
        else:
            dtype = port.dtype
        specs.append(InputSpec(port.name, shape, dtype, finite=False))
    return tuple(specs)


def prepared(of: DatasetRef, pipeline: Pipeline, inputs: Sequence[InputSpec]) -> DatasetRef:
    """The reference of a dataset behind the part in front of a core.

    Args:
        of: samples as the whole model takes them.
        pipeline: the parts.
        inputs: of the whole model.
    """
    options = {
        "of": asdict(of),
        "whole": [[spec.name, list(spec.shape), spec.dtype] for spec in inputs],
        "before": base64.b64encode(pipeline.before or b"").decode(),
        "beside": list(pipeline.beside),
    }
    return DatasetRef("prepared", options)


class PreparedDataset(WrappedDataset):
    """Samples as the core takes them; labels stay.

    Args:
        dataset: samples as the whole model takes them.
        before: the part in front.
        inputs: of the core.
        beside: what the head reads that the core does not give.
        size: samples that one run of the part takes. The results of a run of one sample are whole:
            a scalar, or rows of heads, has no axis of samples.
    """

    def __init__(
        self,
        dataset: Dataset,
        before: Pipeline,
        inputs: Sequence[InputSpec],
        beside: Sequence[str],
        size: int,
    ) -> None:
        super().__init__(dataset)
        self._before = before
        self._inputs = tuple(inputs)
        self._names = tuple(dict.fromkeys([*(spec.name for spec in inputs), *beside]))
        self._size = size
        self._joined = self.whole
        self.whole = self._joined or size == 1

    def batch(self, samples: range) -> Batch:
        """The samples of a range; raises as the dataset does."""
        read = self._dataset.batch(samples)
        step = 1 if self.whole else self._size
        parts = []
        for start in range(0, len(samples), step):
            rows = {n: padded(all_[start : start + step], step) for n, all_ in read.inputs.items()}
            if self._joined:
                rows = {name: values[0] for name, values in rows.items()}
            parts.append(self._before.prepare(rows))
        joined = _stacked if self.whole else self._rows
        values = {name: joined(name, [part[name] for part in parts]) for name in self._names}
        for spec in self._inputs:  # the part may give float16
            if (given := values[spec.name]).dtype.kind == "f":
                values[spec.name] = given.astype(spec.dtype, copy=False)
            check_values(spec, values[spec.name], samples.start, "behind the part in front")
        values = {name: rows[: len(samples)] for name, rows in values.items()}
        return Batch(values, read.labels)

    def _rows(self, name: str, results: Sequence[NDArray[Any]]) -> NDArray[Any]:
        """The samples of several runs.

        Raises:
            DatasetError: no axis of a result counts them.
        """
        shape = results[0].shape
        if shape[:1] != (self._size,):
            raise DatasetError(
                f"{name!r} of the part in front of the cut is {list(shape)} for "
                f"{self._size} samples, so it belongs to no single one",
                where="the part of the model in front of the cut",
                fix="give the data with one axis more, which counts runs of the model, or export "
                "the model for batches of 1",
            )
        return np.concatenate(results)


def _stacked(_name: str, results: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The results of several runs on a new axis; those whose sizes differ as objects."""
    if len({result.shape for result in results}) == 1:
        return np.stack(results)
    found = np.empty(len(results), object)
    for place, result in enumerate(results):
        found[place] = result
    return found


@datasets.register("prepared")
def open_prepared(
    inputs: Sequence[InputSpec],
    of: Mapping[str, Any],
    whole: Sequence[Any],
    before: str,
    beside: Sequence[str],
) -> Dataset:
    """Options: ``of``, ``inputs``, ``before`` and ``beside``, as ``prepared`` makes them.

    Raises:
        DatasetError: the dataset cannot be opened.
    """
    specs = tuple(
        InputSpec(name, tuple(shape), dtype, finite=False) for name, shape, dtype in whole
    )
    if not specs:
        raise DatasetError("a model without inputs has no samples")
    nothing = Interface((), ())
    pipeline = Pipeline(nothing, nothing, base64.b64decode(before) or None)
    size = specs[0].shape[0] if specs[0].shape else 1
    dataset = open_dataset(DatasetRef(**of), specs)
    return PreparedDataset(dataset, pipeline, inputs, beside, size)
