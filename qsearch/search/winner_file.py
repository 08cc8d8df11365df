"""best.qmod and qconfig.json: the winner as files, the same bytes for the same search."""

from __future__ import annotations

import json
from typing import Any

from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.qtypes.qconfig import QConfig
from qsearch.run_folder import RunFolder
from qsearch.search.preparation import PreparedStudy
from qsearch.store.artifacts import write_atomically
from workers.code_version import code_version
from workers.datasets.registry import open_dataset
from workers.feeding import model_batches
from workers.messages import Range

SAMPLES = 4
"""Inputs that are stored with their outputs."""

Sample = tuple[dict[str, NDArray[Any]], list[NDArray[Any]]]


def write_winner(
    folder: RunFolder, module: IRModule, qconfig: QConfig, prepared: PreparedStudy
) -> None:
    """Write the module with its configuration, provenance and a few samples."""
    from compiler.runtime.artifact import save_qmod

    partial = folder.module.with_suffix(".part")
    save_qmod(
        partial,
        module,
        qconfig=qconfig,
        provenance=provenance(prepared),
        samples=samples_of(module, prepared),
    )
    partial.replace(folder.module)
    text = json.dumps(qconfig.to_dict(), indent=1, sort_keys=True) + "\n"
    write_atomically(folder.qconfig, text.encode())


def provenance(prepared: PreparedStudy) -> dict[str, Any]:
    """Where the module comes from; no time, host or path: equal searches write equal bytes."""
    return {
        "model_sha256": prepared.source.sha256,
        "module_sha256": prepared.blob.sha256,
        "calib_sha256": prepared.calib.sha256,
        "eval_sha256": prepared.evaluation.sha256,
        "seed": prepared.spec["seed"],
        "code_version": code_version(),
    }


def samples_of(module: IRModule, prepared: PreparedStudy) -> list[Sample]:
    """The first calibration inputs with the outputs of the exact reference."""
    calib = prepared.calib
    dataset = open_dataset(calib.ref, prepared.inputs)
    first = Range(0, min(SAMPLES, calib.count))
    return [
        (batch.inputs, evaluate(module, batch.inputs))
        for batch in model_batches(dataset, first, prepared.inputs, 1)
    ]
