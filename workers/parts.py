"""An evaluation in parts that idle workers share, and its result, the same however it was shared.

How many parts there are depends on the data alone, never on the workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from workers.errors import WorkerError
from workers.messages import EvaluationRequest, EvaluationResult
from workers.metrics.registry import merge_sums

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
