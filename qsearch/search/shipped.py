"""Contents of a module file, and the calibration inputs that a study keeps.

The first ones are stored, so that any trial can be examined later.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.qtypes.channel_ranges import Rounding
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, Candidate
from compiler.runtime.artifact import QModule, StoredSample, fitting_samples
from qsearch.data.prepared_data import PreparedData
from workers.batching import batch_size, model_batches
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.process import code_version, library_versions

log = logging.getLogger("qsearch.search.shipped")

INPUTS: Final = "inputs"
"""Kind of the artefact that ``sample_inputs`` gives."""
SAMPLES: Final = 4
"""Inputs that a module file holds with their outputs."""
_RUNS: Final = 8
_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Shipped:
    """Module that a configuration makes of a model.

    Attributes:
        module: partitioned where the configuration says so.
        float_ops: operators that stayed in float, each with the reason.
    """

    module: IRModule
    float_ops: tuple[str, ...]

    @staticmethod
    def of(candidate: Candidate) -> Shipped:
        """Keep the parts of a candidate that are written."""
        left = tuple(f"{c.op}: {c.reason} ({c.where})" for c in candidate.report.float_ops)
        return Shipped(candidate.module, left)

    def packed(
        self,
        qconfig: QConfig,
        known: Mapping[str, Any],
        samples: Sequence[StoredSample],
        around: tuple[bytes | None, bytes | None] | None,
    ) -> QModule:
        """The module as a file holds it.

        Args:
            known: provenance.
            around: the float parts in front of it and behind it.
        """
        before, after = around or (None, None)
        return QModule(
            self.module,
            qconfig,
            known,
            samples,
            recorded_proof(self.module, qconfig),
            before=before,
            after=after,
        )


def build_winner(
    calibration: Calibration, qconfig: QConfig, rounding: Mapping[str, NDArray[Any]] | None = None
) -> Candidate:
    """The module to ship, as ``Shipped.of`` takes it.

    Args:
        rounding: what a worker's rounding of the weights found; None rounds them here.
    Raises:
        NotFullyIntegralError: ``fully_integral`` was asked for and float is left.
    """
    run = QuantizeContext(qconfig, rounded=Rounding.from_arrays(rounding or {}))
    return calibration.candidate(qconfig, run)


def provenance_of(
    spec: Mapping[str, Any], kept: Mapping[str, Any], outputs_sha256: str | None
) -> dict[str, Any]:
    """The provenance that a module of a study holds.

    Args:
        spec: of the study.
        kept: ``ModelSource.kept``.
        outputs_sha256: as of ``write_winner``.
    """
    named = ("model_sha256", "module_sha256", "calib_sha256", "eval_sha256")
    return {
        **{name: spec[name] for name in named},
        "outputs_sha256": outputs_sha256,
        "seed": spec["seed"],
        "code_version": code_version(),
        "libraries": library_versions(),
        **({"imports": spec["imports"]} if "imports" in spec else {}),
        **kept,
    }


def recorded_proof(module: IRModule, qconfig: QConfig) -> dict[str, Any] | None:
    """Record of the static proof of a module; None if its configuration lets float be left in it,
    and float is left."""
    from compiler.proof.derive import derive_static
    from compiler.proof.record import record_of

    proof = derive_static(module)
    integral = qconfig.partition_conversions == "fully_integral"
    if not integral and any(finding.check == "dtypes" for finding in proof.findings):
        return None
    for finding in proof.findings:
        log.warning("the module is not proved: %s", finding)
    return record_of(proof.to_dict())


def samples_of(
    module: IRModule, data: PreparedData, inputs: Sequence[InputSpec]
) -> list[StoredSample]:
    """The first inputs of the data with the outputs of the exact reference; see
    ``fitting_samples``."""
    from compiler.pipeline import evaluate

    dataset = open_dataset(data.ref, inputs)
    first = range(min(SAMPLES, data.count))
    batches = model_batches(dataset, first, inputs, 1)
    return fitting_samples(module, (b.inputs for b in batches), partial(evaluate, module))


def sample_inputs(data: PreparedData, inputs: Sequence[InputSpec]) -> dict[str, NDArray[Any]]:
    """Inputs of a few runs of the model, by ``run.place``: input names may be anything."""
    first = range(min(_RUNS * batch_size(inputs, data.whole), data.count))
    kept: dict[str, NDArray[Any]] = {}
    held = 0
    for run, batch in enumerate(model_batches(open_dataset(data.ref, inputs), first, inputs, 1)):
        held += sum(batch.inputs[spec.name].nbytes for spec in inputs)
        if kept and held > _MAX_BYTES:
            break
        for place, spec in enumerate(inputs):
            kept[f"{run}.{place}"] = batch.inputs[spec.name]
    return kept


def runs_of(
    kept: Mapping[str, NDArray[Any]], names: Sequence[str]
) -> list[dict[str, NDArray[Any]]]:
    """Inputs by name, run after run, from what ``sample_inputs`` gave."""
    runs = len(kept) // max(len(names), 1)
    return [
        {name: kept[f"{run}.{place}"] for place, name in enumerate(names)} for run in range(runs)
    ]
