"""Dataset kind "synthetic": seeded random inputs, for models that come without data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workers.datasets.listed import Array, ListedDataset
from workers.datasets.protocol import Dataset, InputSpec
from workers.datasets.registry import datasets
from workers.errors import DatasetError


def _random(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    dtype = np.dtype(name)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    # 0 and 1 are legal wherever integers are: token ids, masks, flags.
    return rng.integers(0, 2, shape).astype(dtype)


@datasets.register("synthetic")
def open_synthetic(
    inputs: Sequence[InputSpec], count: int = 32, seed: int = 0, whole: bool = False
) -> Dataset:
    """Options: ``count`` (samples, default 32), ``seed`` (default 0) and ``whole``.

    Float inputs are standard normal, integer inputs 0 or 1; sample i depends on seed and i only.
    Samples are whole where asked for, and where the first axes of the inputs differ.

    Raises:
        DatasetError: the count is not positive.
    """
    if count < 1:
        raise DatasetError("synthetic data is empty", fix="count must be at least 1")
    whole = whole or len({spec.shape[:1] for spec in inputs}) > 1

    def sample(place: int) -> dict[str, Array]:
        rng = np.random.default_rng([seed, place])
        return {
            spec.name: _random(rng, spec.shape if whole else spec.shape[1:], spec.dtype)
            for spec in inputs
        }

    # A table of one row may be asked for row 1.
    specs = [replace(spec, rows=0) for spec in inputs]
    return ListedDataset(sample, None, [], specs, count, whole)
