"""The first calibration inputs, kept in the store so that any trial can be looked into later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from qsearch.data import PreparedData
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.feeding import batch_size, model_batches
from workers.messages import Range

INPUTS: Final = "inputs"
"""Kind of the artefact."""
RUNS: Final = 8
MAX_BYTES: Final = 16 << 20


def kept_inputs(data: PreparedData, inputs: Sequence[InputSpec]) -> dict[str, NDArray[Any]]:
    """Inputs of a few runs of the model, by ``run.place``: input names may be anything."""
    first = Range(0, min(RUNS * batch_size(inputs), data.count))
    kept: dict[str, NDArray[Any]] = {}
    held = 0
    for run, batch in enumerate(model_batches(open_dataset(data.ref, inputs), first, inputs, 1)):
        held += sum(batch.inputs[spec.name].nbytes for spec in inputs)
        if kept and held > MAX_BYTES:
            break
        for place, spec in enumerate(inputs):
            kept[f"{run}.{place}"] = batch.inputs[spec.name]
    return kept


def runs_of(
    kept: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """What ``kept_inputs`` gave, as inputs by name, run after run."""
    runs = len(kept) // max(len(names), 1)
    return [
        {name: kept[f"{run}.{place}"] for place, name in enumerate(names)} for run in range(runs)
    ]
