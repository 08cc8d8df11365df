"""OpenDatasets: the datasets a worker used last stay open, with what they have decoded."""

from __future__ import annotations

import json
from collections.abc import Sequence

from workers.datasets.protocol import Dataset, InputSpec
from workers.datasets.registry import open_dataset
from workers.messages import DatasetRef
from workers.object_store import LRUCache

_OPEN = 2
"""Calibration and evaluation data of one study."""


class OpenDatasets:
    """Opens a dataset at its first use, and hashes its files then where the ref has a hash."""

    def __init__(self) -> None:
        self._open: LRUCache[Dataset] = LRUCache(_OPEN)

    def open(self, ref: DatasetRef, inputs: Sequence[InputSpec]) -> Dataset:
        """The dataset that ``ref`` names, for a model with these inputs.

        Raises:
            DatasetError: see ``open_dataset``.
        """
        key = (ref.kind, json.dumps(dict(ref.options), sort_keys=True), ref.sha256, tuple(inputs))
        return self._open.get(key, lambda: open_dataset(ref, inputs))
