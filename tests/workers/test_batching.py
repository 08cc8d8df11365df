"""A range of samples becomes runs of the model, read a chunk at a time."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from workers.batching import hash_outputs, model_batches, spread_batches
from workers.datasets.protocol import Batch, InputSpec

INPUTS = (InputSpec("x", (4, 2), "float32"),)


class Counted:
    """Sample i holds i twice and has the label i; notes what is read."""

    inputs = INPUTS
    has_labels = True

    def __init__(self, count: int) -> None:
        self._count = count
        self.read: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self._count

    def batch(self, samples: range) -> Batch:
        self.read.append((samples.start, samples.stop))
        numbers = np.arange(samples.start, samples.stop)
        return Batch({"x": np.stack([numbers, numbers], 1).astype("float32")}, numbers)


@pytest.mark.parametrize(
    ("chunk", "read"),
    [
        (1, [(3, 7), (7, 11), (11, 13)]),
        (4, [(3, 7), (7, 11), (11, 13)]),
        (9, [(3, 11), (11, 13)]),
        (64, [(3, 13)]),
    ],
)
def test_every_run_is_full_and_a_chunk_is_read_once(
    chunk: int, read: list[tuple[int, int]]
) -> None:
    dataset = Counted(20)
    found = list(model_batches(dataset, range(3, 13), INPUTS, chunk))
    assert dataset.read == read
    assert [(one.start, one.count) for one in found] == [(3, 4), (7, 4), (11, 2)]
    rows = [one.inputs["x"][:, 0].tolist() for one in found]
    # The last run is filled up with its last sample, which no score counts.
    assert rows == [[3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 12, 12]]
    assert [one.labels.tolist() for one in found] == [[3, 4, 5, 6], [7, 8, 9, 10], [11, 12]]


@pytest.mark.parametrize(
    ("samples", "starts"), [(8, [0, 20]), (9, [0, 12, 28]), (100, [*range(0, 41, 4)])]
)
def test_few_samples_are_spread_over_all(samples: int, starts: list[int]) -> None:
    batches = list(spread_batches(Counted(41), samples, INPUTS, 4))
    assert [batch.start for batch in batches] == starts
    assert [batch.count for batch in batches] == [min(4, 41 - start) for start in starts]


def test_a_hash_is_over_all_samples_and_an_output_without_them_counts_once() -> None:
    rows, one = np.arange(6.0).reshape(3, 2), np.asarray([[7.0]])
    digest = hashlib.sha256()
    hash_outputs(digest, [rows, one])
    wanted = np.asarray([0, 1, 7, 2, 3, 4, 5], "<f4")
    assert digest.hexdigest() == hashlib.sha256(wanted.tobytes()).hexdigest()
