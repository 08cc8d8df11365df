"""InputSample: some of the calibration inputs, the same ones however the data lie in shards.

Of all runs those with the smallest SHA-256 of their inputs are kept. So samples of shards merge
exactly, in any order, and hold O(1) memory in the number of images.
Source: bottom-k sketches; Cohen and Kaplan, "Summarizing data using bottom-k sketches", 2007.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.quantize.calibration.collect_stats import Batch

_MOST_SAMPLES: Final = 256
_MOST_ELEMENTS: Final = 1 << 24


@dataclass(frozen=True, slots=True, eq=False)
class InputSample:
    """Inputs of some runs, ordered by their digests.

    Attributes:
        most: the number of runs that are kept.
        digests: SHA-256 of the inputs of each run, 64 hexadecimal digits.
        runs: the arrays of each run, in the order of the parameters.
    """

    most: int
    digests: tuple[str, ...]
    runs: tuple[tuple[NDArray[Any], ...], ...]

    def merge(self, other: InputSample) -> InputSample:
        """The sample of both shards together; exact, commutative and associative."""
        known = dict(zip(self.digests + other.digests, self.runs + other.runs))
        kept = tuple(sorted(known)[: self.most])
        return InputSample(self.most, kept, tuple(known[digest] for digest in kept))

    def within(self, elements: int) -> InputSample:
        """The sample of so many values of the inputs at most, one run at least."""
        kept = max(elements // max(sum(array.size for array in self.runs[0]), 1), 1)
        return replace(self, digests=self.digests[:kept], runs=self.runs[:kept])

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Flat arrays, such as an .npz holds; no pickle."""
        columns = [np.stack(column) for column in zip(*self.runs, strict=True)]
        return {
            "sample_most": np.asarray(self.most, np.int64),
            "sample_digests": np.asarray(self.digests, dtype=np.str_),
            **{f"sample_{place}": column for place, column in enumerate(columns)},
        }

    @staticmethod
    def from_arrays(arrays: Mapping[str, NDArray[Any]]) -> InputSample | None:
        """The inverse of ``to_arrays``; None where the arrays hold none."""
        if "sample_digests" not in arrays:
            return None
        columns: list[NDArray[Any]] = []
        while f"sample_{len(columns)}" in arrays:
            columns.append(np.asarray(arrays[f"sample_{len(columns)}"]))
        digests = tuple(str(digest) for digest in arrays["sample_digests"])
        runs = tuple(zip(*columns, strict=True))
        return InputSample(int(arrays["sample_most"]), digests, runs)


def batch_size(mod: IRModule) -> int:
    """Samples of one run: the first axis of the first input, 1 for none."""
    params = mod["main"].params
    shape = params[0].tensor_type.concrete_shape if params else ()
    return shape[0] if shape else 1


def sample_inputs(mod: IRModule, batches: Iterable[Batch]) -> InputSample:
    """The sample of one shard: at most 256 images, and at most 2^24 values of the inputs.

    Args:
        mod: its ``main`` takes the inputs.
    Raises:
        CalibrationError: there is no batch, or one lacks an input.
    """
    main: Function = mod["main"]
    shapes = [param.tensor_type.concrete_shape for param in main.params]
    images = batch_size(mod)
    values = sum(math.prod(shape) for shape in shapes)
    most = max(min(_MOST_SAMPLES // max(images, 1), _MOST_ELEMENTS // max(values, 1)), 1)
    found = InputSample(most, (), ())
    for batch in batches:
        missing = [param.name_hint for param in main.params if param.name_hint not in batch]
        if missing:
            raise CalibrationError(
                f"a calibration batch lacks the input {missing[0]!r}",
                fix=f"give it; the batch holds {', '.join(sorted(batch)) or 'nothing'}",
            )
        run = tuple(np.ascontiguousarray(batch[param.name_hint]) for param in main.params)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in run)).hexdigest()
        found = found.merge(InputSample(most, (digest,), (run,)))
    if not found.runs:
        raise CalibrationError("the dataset is empty", fix="give at least one batch")
    return found
