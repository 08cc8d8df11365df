"""Dataset kind "synthetic": seeded random inputs, for models that come without data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.datasets.protocol import Batch, Dataset, InputSpec, check_range
from workers.datasets.registry import datasets, take_options
from workers.errors import DatasetError
from workers.messages import Range


class SyntheticDataset:
    """Float inputs are standard normal, integer inputs 0 or 1; sample i depends on seed and i only.

    Samples are whole where the first axes of the inputs differ, and so count no samples.

    Args:
        inputs: the model's inputs.
        count: number of samples.
        seed: any integer >= 0.
    """

    has_labels = False

    def __init__(self, inputs: Sequence[InputSpec], count: int, seed: int) -> None:
        self._inputs = tuple(inputs)
        self.whole = len({spec.shape[:1] for spec in inputs}) > 1
        self._count = count
        self._seed = seed

    def __len__(self) -> int:
        return self._count

    def batch(self, samples: Range) -> Batch:
        check_range(samples, self._count, "synthetic data")
        rows = [self._sample(index) for index in range(samples.start, samples.stop)]
        inputs = {
            spec.name: np.stack([row[spec.name] for row in rows])
            if rows
            else np.zeros((0, *self._shape(spec)), spec.dtype)
            for spec in self._inputs
        }
        return Batch(inputs, None)

    def labels(self, samples: Range) -> None:
        """None: see ``Dataset.labels``."""

    def files(self, samples: Range) -> Sequence[Path]:
        """None: see ``Dataset.files``."""
        return ()

    def _sample(self, index: int) -> dict[str, NDArray[Any]]:
        rng = np.random.default_rng([self._seed, index])
        return {spec.name: _random(rng, self._shape(spec), spec.dtype) for spec in self._inputs}

    def _shape(self, spec: InputSpec) -> tuple[int, ...]:
        return spec.shape if self.whole else spec.shape[1:]


def _random(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> NDArray[Any]:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    # 0 and 1 are legal wherever integers are: token ids, masks, flags.
    return rng.integers(0, 2, shape).astype(dtype)


@datasets.register("synthetic")
def open_synthetic(options: Mapping[str, Any], inputs: Sequence[InputSpec]) -> Dataset:
    """Options: ``count`` (samples, default 32) and ``seed`` (default 0).

    Raises:
        DatasetError: the count is not positive.
    """
    count, seed = take_options("synthetic", options, count=32, seed=0)
    if count < 1:
        raise DatasetError("synthetic data is empty", fix="count must be at least 1")
    return SyntheticDataset(inputs, int(count), int(seed))
