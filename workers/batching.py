"""Samples in the batch size of the model, and evaluations in parts that idle workers share.

How many parts an evaluation has depends on the data alone. The parts merge to the same result,
whoever ran them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workers.datasets.protocol import Dataset, InputSpec
from workers.errors import WorkerError
from workers.messages import EvaluationRequest, EvaluationResult, Range
from workers.metrics.registry import merge_sums


@dataclass(frozen=True, slots=True, eq=False)
class ModelBatch:
    """What one run of the model takes.

    Attributes:
        inputs: input name → array of exactly the model's shape.
        labels: of the real samples, or None.
        start: index of the first sample.
        count: real samples; the rest repeats the last one, because the model's batch is fixed.
    """

    inputs: dict[str, NDArray[Any]]
    labels: NDArray[np.int64] | None
    start: int
    count: int


def batch_size(inputs: Sequence[InputSpec]) -> int:
    """Samples that one run takes: the first axis of the model's first input, 1 for none."""
    return inputs[0].shape[0] if inputs and inputs[0].shape else 1


def model_batches(
    dataset: Dataset, samples: Range, inputs: Sequence[InputSpec], chunk: int
) -> Iterator[ModelBatch]:
    """Cut a range into runs of the model; ``chunk`` samples are read from the dataset at a time."""
    size = batch_size(inputs)
    chunk = max(chunk // size, 1) * size
    for start in range(samples.start, samples.stop, chunk):
        part = Range(start, min(start + chunk, samples.stop))
        read = dataset.batch(part)
        for offset in range(0, len(part), size):
            count = min(size, len(part) - offset)
            rows = {name: values[offset : offset + count] for name, values in read.inputs.items()}
            if count < size:
                rows = {
                    name: np.concatenate([v, np.repeat(v[-1:], size - count, axis=0)])
                    for name, v in rows.items()
                }
            labels = None if read.labels is None else read.labels[offset : offset + count]
            yield ModelBatch(rows, labels, start + offset, count)


PART_SAMPLES: Final = 32
"""Fewest samples of a part: as many as a collapse is looked for in."""

MOST_PARTS: Final = 32


def parts_of(samples: int, run_samples: int = 1) -> int:
    """Into how many parts an evaluation is cut.

    Args:
        samples: that are scored.
        run_samples: samples of one run of the model; a run is never cut.
    """
    runs = -(-samples // run_samples)
    return max(1, min(MOST_PARTS, samples // PART_SAMPLES, runs))


def split(request: EvaluationRequest, parts: int) -> list[EvaluationRequest]:
    """The parts of a request, in order; the first looks for a collapse, the others do not.

    Parts return their outputs, whose hash must be taken in the order of the samples.
    """
    if parts == 1:
        return [request]
    return [
        replace(
            request,
            part=(part, parts),
            collapse_after=request.collapse_after if part == 0 else None,
            return_outputs=True,
        )
        for part in range(parts)
    ]


def merge(results: Sequence[EvaluationResult]) -> EvaluationResult:
    """The result of all parts in order, or of the first ones where a search stopped early.

    Sums are added in order. The outputs are hashed as those of one evaluation of all samples; of
    an evaluation that was stopped, as they come.

    Raises:
        WorkerError: no part, or parts without outputs.
    """
    if len(results) == 1:
        return results[0]
    if not results or any(result.outputs is None for result in results):
        raise WorkerError("parts of an evaluation cannot be put together without their outputs")
    first = results[0]
    return replace(
        first,
        sums=merge_sums(result.sums for result in results),
        samples=sum(result.samples for result in results),
        collapsed=any(result.collapsed for result in results),
        outputs_sha256=_outputs_sha256(results),
        outputs=None,
        compile_cpu_s=sum(result.compile_cpu_s for result in results),
        run_cpu_s=sum(result.run_cpu_s for result in results),
        peak_rss_bytes=max(result.peak_rss_bytes for result in results),
    )


def _outputs_sha256(results: Sequence[EvaluationResult]) -> str:
    """sha256 over the little-endian float32 outputs, sample after sample."""
    size = results[0].run_samples
    rows = [result.outputs or () for result in results]
    digest = hashlib.sha256()
    longest = max(result.samples for result in results)
    for start in range(0, longest, size):
        for outputs in rows:
            for sample in range(start, min(start + size, len(outputs[0]))):
                for output in outputs:
                    digest.update(np.ascontiguousarray(output[sample], "<f4").tobytes())
    return digest.hexdigest()
