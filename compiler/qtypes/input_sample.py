"""InputSample: some of the calibration inputs, the same ones however the data lie in shards.

Of all runs those with the smallest SHA-256 of their inputs are kept. So samples of shards merge
exactly, in any order, and hold O(1) memory in the number of images.
Source: bottom-k sketches; Cohen and Kaplan, "Summarizing data using bottom-k sketches", 2007.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray


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

    def first(self, kept: int) -> InputSample:
        """The sample of so many runs at most."""
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
