"""Samples in the batch size that the model was compiled for, and the hash of its outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.datasets.protocol import Dataset, InputSpec, padded, whole


@dataclass(frozen=True, slots=True, eq=False)
class ModelBatch:
    """Samples of one run of the model.

    Attributes:
        inputs: input name → array of exactly the model's shape.
        labels: of the real samples, or None.
        start: index of the first sample.
        count: real samples; the rest repeats the last one, because the model's batch is fixed.
        beside: what the float head of the model reads and no input of the core is.
    """

    inputs: dict[str, NDArray[Any]]
    labels: NDArray[Any] | None
    start: int
    count: int
    beside: dict[str, NDArray[Any]] = field(default_factory=dict)


def batch_size(inputs: Sequence[InputSpec], whole: bool = False) -> int:
    """Samples that one run takes: the first axis of the model's first input, 1 for none.

    Args:
        whole: every sample is one run; see ``datasets.protocol.whole``.
    """
    if inputs and inputs[0].shape and not whole:
        return inputs[0].shape[0]
    return 1


def rows_of(output: NDArray[Any], count: int, size: int) -> NDArray[Any]:
    """An output with samples on axis 0, the repeated ones cut off.

    Args:
        count: real samples of the run, of ``size``.
    """
    if size == 1 and (output.ndim == 0 or output.shape[0] != 1):
        return output[None]
    return output[:count]


def hash_outputs(digest: Any, outputs: Sequence[NDArray[Any]]) -> None:
    """Add the outputs of some samples to a digest, little-endian float32, sample after sample.

    Args:
        digest: of ``hashlib``.
        outputs: one array per output of the model, samples on axis 0; an output that is one for all
            samples counts for the first.
    """
    for sample in range(max(map(len, outputs))):
        for rows in outputs:
            if sample < len(rows):
                digest.update(np.ascontiguousarray(rows[sample], "<f4").tobytes())


def spread_batches(
    dataset: Dataset, samples: int, inputs: Sequence[InputSpec], chunk: int
) -> Iterator[ModelBatch]:
    """Cut about so many samples into runs of the model, spread over all: neighbours are often of
    one class, and sounds and streams begin with silence."""
    size = batch_size(inputs, whole(dataset))
    count = len(dataset)
    of = -(-count // size)
    runs = -(-min(samples, count) // size)
    if runs == of:
        yield from model_batches(dataset, range(count), inputs, chunk)
        return
    for run in range(runs):
        part = range(count)[run * of // runs * size :][:size]
        yield from model_batches(dataset, part, inputs, size)


def model_batches(
    dataset: Dataset, samples: range, inputs: Sequence[InputSpec], chunk: int
) -> Iterator[ModelBatch]:
    """Cut a range into runs of the model; ``chunk`` samples are read from the dataset at a time."""
    whole_runs = whole(dataset)
    size = batch_size(inputs, whole_runs)
    chunk = max(chunk // size, 1) * size
    for start in samples[::chunk]:
        part = range(start, min(start + chunk, samples.stop))
        read = dataset.batch(part)
        for offset in range(0, len(part), size):
            count = min(size, len(part) - offset)
            rows = {n: padded(v[offset : offset + count], size) for n, v in read.inputs.items()}
            if whole_runs:
                rows = {name: np.asarray(values[0]) for name, values in rows.items()}
            if read.labels is None:
                labels = None
            else:
                labels = read.labels[offset : offset + count]
            own = {spec.name: rows.pop(spec.name) for spec in inputs}
            yield ModelBatch(own, labels, start + offset, count, rows)
