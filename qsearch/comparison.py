"""Two modules from files on the same data: what ``qsearch diff`` does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from compiler.difference import Difference, compare_modules
from compiler.ir.module import IRModule
from qsearch.data import prepare_data, read_preprocess
from qsearch.errors import SettingsError
from qsearch.module_file import read_module
from qsearch.single import named_dims
from workers.batching import model_batches
from workers.datasets.registry import input_specs, open_dataset
from workers.messages import Range


def compare(
    a: Path,
    b: Path,
    data: Any,
    *,
    samples: int,
    rtol: float,
    atol: float,
    preprocess: str | None,
    dim: Any,
) -> Difference:
    """See ``qsearch.api.diff``."""
    if samples < 1:
        raise SettingsError(f"samples is {samples}", where="samples", fix="one or more")
    dims = named_dims(dim)
    first = read_module(a, dims=dims, closed=True)
    second = read_module(b, dims=dims, closed=True)
    batches = _batches(first, data, samples, preprocess)
    return compare_modules(first, second, batches, rtol=rtol, atol=atol)


def _batches(
    module: IRModule, given: Any, samples: int, preprocess: str | None
) -> Iterator[dict[str, NDArray[Any]]]:
    """The first samples of the data, one run of the module at a time."""
    inputs = input_specs(module)
    with tempfile.TemporaryDirectory(prefix="qsearch-") as spool:
        prepared = prepare_data(
            given,
            inputs,
            name="eval",
            preprocess=read_preprocess(preprocess),
            spool_folder=Path(spool),
        )
        dataset = open_dataset(prepared.ref, inputs)
        used = Range(0, min(samples, prepared.count))
        for batch in model_batches(dataset, used, inputs, len(used)):
            yield batch.inputs
