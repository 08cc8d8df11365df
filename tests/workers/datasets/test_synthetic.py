from __future__ import annotations

import numpy as np
import pytest

from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.errors import DatasetError
from workers.messages import DatasetRef

INPUTS = [InputSpec("x", (1, 3, 8, 8), "float32"), InputSpec("ids", (1, 4), "int64")]


def test_samples_depend_on_seed_and_index_only() -> None:
    ref = DatasetRef("synthetic", {"count": 10, "seed": 7})
    whole = open_dataset(ref, INPUTS).batch(range(10))
    part = open_dataset(ref, INPUTS).batch(range(4, 6))
    for name, values in part.inputs.items():
        np.testing.assert_array_equal(values, whole.inputs[name][4:6])
    other = open_dataset(DatasetRef("synthetic", {"count": 10, "seed": 8}), INPUTS)
    assert not np.array_equal(other.batch(range(10)).inputs["x"], whole.inputs["x"])


def test_shapes_dtypes_and_values_suit_the_inputs() -> None:
    batch = open_dataset(DatasetRef("synthetic", {"count": 64}), INPUTS).batch(range(64))
    assert batch.labels is None
    assert (batch.inputs["x"].shape, batch.inputs["x"].dtype) == ((64, 3, 8, 8), np.float32)
    assert abs(float(batch.inputs["x"].std()) - 1) < 0.05
    assert set(np.unique(batch.inputs["ids"])) == {0, 1}


def test_no_sample_is_refused() -> None:
    with pytest.raises(DatasetError, match="synthetic data is empty"):
        open_dataset(DatasetRef("synthetic", {"count": 0}), INPUTS)
