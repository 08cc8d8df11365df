"""best.qmod and qconfig.json: a quantized module as files, the same bytes for the same search."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.proof.derive import derive_static
from compiler.qtypes.qconfig import QConfig
from compiler.runtime.artifact import QModule, Sample
from qsearch.data import PreparedData
from qsearch.run_folder import RunFolder
from qsearch.search.preparation import PreparedStudy
from qsearch.store.artifacts import write_atomically
from workers.code_version import code_version
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.feeding import model_batches
from workers.messages import Range

log = logging.getLogger("qsearch.search.winner_file")

SAMPLES = 4
"""Inputs that are stored with their outputs."""


def write_winner(
    folder: RunFolder,
    module: IRModule,
    qconfig: QConfig,
    prepared: PreparedStudy,
    outputs_sha256: str | None,
) -> None:
    """Write the module with its configuration, provenance, proof and a few samples.

    Args:
        outputs_sha256: over its outputs on the evaluation data; None where they were not computed.
    """
    made = QModule(
        module,
        qconfig,
        provenance={
            "model_sha256": prepared.source.sha256,
            "module_sha256": prepared.blob.sha256,
            "calib_sha256": prepared.calib.sha256,
            "eval_sha256": prepared.evaluation.sha256,
            "outputs_sha256": outputs_sha256,
            "seed": prepared.spec["seed"],
            "code_version": code_version(),
        },
        samples=samples_of(module, prepared.calib, prepared.inputs),
        proof=recorded_proof(module),
    )
    partial = folder.module.with_suffix(".part")
    made.save(partial)
    partial.replace(folder.module)
    text = json.dumps(qconfig.to_dict(), indent=1, sort_keys=True) + "\n"
    write_atomically(folder.qconfig, text.encode())


def recorded_proof(module: IRModule) -> dict[str, Any] | None:
    """What holds of a fully integral module for every input; None where float is left in it."""
    proof = derive_static(module)
    if any(finding.check == "dtypes" for finding in proof.findings):
        return None
    for finding in proof.findings:
        log.warning("the module is not proved: %s", finding)
    return proof.to_dict()


def samples_of(module: IRModule, data: PreparedData, inputs: Sequence[InputSpec]) -> list[Sample]:
    """The first inputs of the data with the outputs of the exact reference."""
    dataset = open_dataset(data.ref, inputs)
    first = Range(0, min(SAMPLES, data.count))
    return [
        (batch.inputs, evaluate(module, batch.inputs))
        for batch in model_batches(dataset, first, inputs, 1)
    ]
