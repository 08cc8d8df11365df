"""The end of a search: build the winner, write it, and run the written file.

``best.qmod`` and ``qconfig.json`` are the same bytes for the same search. The first calibration
inputs are stored as well, so that any trial can be examined later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CompilerError
from compiler.ir.module import IRModule
from compiler.ir.text.printer import text
from compiler.qtypes.channel_ranges import Rounding
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, Candidate
from compiler.runtime.artifact import (
    CHANNEL_MAXIMA,
    QModule,
    Sample,
    fitting_samples,
    load_qmod,
)
from qsearch.data import PreparedData
from qsearch.run_folder import RunFolder
from qsearch.search.baseline import SplitEvaluation, evaluate_split, shards
from qsearch.search.closeness import Closeness, compared_whole
from qsearch.search.context import PreparedStudy, StudyArtifacts, StudyContext
from qsearch.search.evaluations import await_workers
from qsearch.search.evaluator import Evaluator, score_of
from qsearch.signing import sign_file
from qsearch.store.artifacts import MODULE_GRAPH, MODULE_TEXT, write_atomically
from qsearch.store.records import Trial
from workers.batching import batch_size, hash_outputs, model_batches
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.messages import EvaluationRequest, Range
from workers.process import code_version, library_versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

log = logging.getLogger("qsearch.search.winner")

REFERENCE_SAMPLES: Final = 8
"""Samples of the final check that the exact reference runs too, or those of one run if more."""
SAMPLES: Final = 4
"""Inputs that a module file holds with their outputs."""
INPUTS: Final = "inputs"
"""Kind of the artefact that ``sample_inputs`` gives."""
MAX_BOXES: Final = 4000
MAX_TEXT: Final = 8 << 20
_RUNS: Final = 8
_LESS_ROUNDS: Final = 4
"""Than verifying runs."""
_MAX_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Winner:
    """What the end of a search knows of its best trial.

    Attributes:
        float_ops: operators that stayed in float, each with the reason.
        emitted: what the final check found; None if it did not take place.
    """

    float_ops: tuple[str, ...] = ()
    emitted: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Emitted:
    """What the written module scores, run as users run it.

    Attributes:
        score: as for trials.
        equal_outputs: fraction of samples all of whose outputs equal the evaluator's, bit for bit.
        reference_samples: samples that the exact reference ran as well, spread over all.
        reference_equal: fraction of these all of whose outputs equal the reference's.
        outputs_sha256: over the outputs; `qsearch verify --eval` computes it again.
        cpu_s: what the check cost.
        steps: for each form, what its single steps were tested on; see ``proof.steps``.
        findings: where one computes other integers than the reference.
        closeness: ``Closeness`` on the evaluation data; None where no output can be compared.
    """

    score: Mapping[str, float | None]
    equal_outputs: float
    reference_samples: int
    reference_equal: float
    outputs_sha256: str
    cpu_s: float
    steps: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    closeness: Closeness | None = None

    def report(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        told = asdict(self)
        del told["cpu_s"]
        return {**told.pop("score"), **told}


@dataclass(frozen=True, slots=True, eq=False)
class Shipped:
    """What a configuration makes of a model.

    Attributes:
        module: partitioned where the configuration says so.
        float_ops: operators that stayed in float, each with the reason.
        provenance: what the module's file keeps of its calibration.
    """

    module: IRModule
    float_ops: tuple[str, ...]
    provenance: Mapping[str, Any]

    @staticmethod
    def of(candidate: Candidate) -> Shipped:
        """Keep the parts of a candidate that are written."""
        left = tuple(f"{c.op}: {c.reason} ({c.where})" for c in candidate.report.float_ops)
        maxima = candidate.channel_maxima
        return Shipped(candidate.module, left, {CHANNEL_MAXIMA: maxima} if maxima else {})

    def packed(
        self,
        qconfig: QConfig,
        known: Mapping[str, Any],
        samples: Sequence[Sample],
        around: tuple[bytes | None, bytes | None] | None,
    ) -> QModule:
        """The module as a file holds it.

        Args:
            known: provenance beside its own.
            around: the float parts in front of it and behind it.
        """
        before, after = around or (None, None)
        return QModule(
            self.module,
            qconfig,
            {**known, **self.provenance},
            samples,
            recorded_proof(self.module),
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


def check_winner(
    context: StudyContext,
    evaluator: Evaluator,
    reference: Sequence[NDArray[Any]],
    best: Trial,
    scales: tuple[float, ...] | None,
    module: bytes,
    names: Sequence[str],
    run_samples: int = 1,
) -> Emitted:
    """Score the written module and compare its outputs with the evaluator's and the reference's.

    All samples are run by the executor that ``QModule.run`` chooses, and ``REFERENCE_SAMPLES`` of
    them, spread over all, by the exact reference too. The evaluator runs again only where the hash
    of its outputs says that some of them differ.

    Args:
        reference: outputs of the float model for all samples.
        module: content of the written file.
        names: of its outputs.
        run_samples: samples of one run of the model.
    """
    pool, progress, samples = context.pool, context.progress, evaluator.whole.samples
    name = evaluator.name_for(best.qconfig)
    whole = EvaluationRequest(
        build=evaluator.build(QConfig.from_dict(best.qconfig), scales),
        dataset=evaluator.whole.dataset,
        samples=samples,
        metrics=evaluator.whole.metrics,
        return_outputs=True,
        head=evaluator.whole.head,
    )
    written = replace(whole.build, module=pool.put(module))
    shipped = replace(whole, build=written)

    def run(request: EvaluationRequest, parts: Sequence[Range], what: str) -> SplitEvaluation:
        progress.phase(f"check, {what}", sum(map(len, parts)))
        requests = [
            replace(
                request,
                samples=part,
                reference=tuple(out[part.start : part.stop] for out in reference),
            )
            for part in parts
        ]
        return evaluate_split(pool, requests, progress, f"final {what}")

    await_workers(pool, progress)
    found = run(shipped, shards(samples), "module")
    places = samples.split(max(REFERENCE_SAMPLES // run_samples, 1))
    spread = [Range(p.start, min(p.start + run_samples, p.stop)) for p in places]
    exact_build = replace(written, evaluator="reference")
    exact = run(replace(whole, build=exact_build), spread, "reference")
    rows = [row - samples.start for part in spread for row in range(part.start, part.stop)]
    equal, cpu_s = 1.0, found.cpu_s + exact.cpu_s
    digest = hashlib.sha256()
    hash_outputs(digest, found.outputs)
    if digest.hexdigest() != best.outcome.outputs_sha256:
        scored = run(whole, shards(samples), name)
        equal = equal_fraction(found.outputs, scored.outputs)
        cpu_s += scored.cpu_s
    return Emitted(
        score_of(found.sums),
        equal,
        len(rows),
        equal_fraction(exact.outputs, [out[rows] for out in found.outputs]),
        digest.hexdigest(),
        cpu_s,
        closeness=Closeness.between([reference], [found.outputs], names, len(samples)),
    )


def check_written(emitted: Emitted, written: QModule, prepared: PreparedStudy) -> Emitted:
    """The same with tests of the written module: of single steps, once each of a large one, and of
    the outputs behind the float part of a model that was cut.

    A module that holds floats, or is not proved, is not tested; what refutes it is a finding.
    """
    pipeline = compared_whole(prepared.source.pipeline)
    if pipeline is not None:
        closeness = Closeness.of(
            prepared.module, written.module, prepared.evaluation, prepared.inputs, (), pipeline
        )
        emitted = replace(emitted, closeness=closeness)
    return _check_steps(emitted, written)


def _check_steps(emitted: Emitted, written: QModule) -> Emitted:
    from compiler.proof.derive import derive_static
    from compiler.proof.steps import check_forms, rounds_of
    from compiler.proof.work import declared_work

    module, verdict = written.module, (written.proof or {}).get("verdict")
    if verdict == "refuted":
        return replace(emitted, findings=tuple(map(str, derive_static(module).findings)))
    if verdict != "proved":
        return emitted
    rounds = max(1, rounds_of(declared_work(module)) // _LESS_ROUNDS)
    tested, found = check_forms(module, rounds, seed=0)
    return replace(emitted, steps=tuple(map(str, tested)), findings=tuple(map(str, found)))


def equal_fraction(ours: Sequence[NDArray[Any]], theirs: Sequence[NDArray[Any]]) -> float:
    """Fraction of samples (axis 0) for which all outputs are equal."""
    count = len(ours[0])
    equal = np.ones(count, bool)
    for one, other in zip(ours, theirs, strict=True):
        equal &= (one == other).reshape(count, -1).all(axis=1)
    return float(equal.mean())


def write_winner(
    folder: RunFolder,
    shipped: Shipped,
    qconfig: QConfig,
    prepared: PreparedStudy,
    outputs_sha256: str | None,
    signer: Ed25519PrivateKey | None,
) -> QModule:
    """Write the module with its configuration, provenance, proof and a few samples; read it again.

    Args:
        outputs_sha256: over its outputs on the evaluation data; None where they were not computed.
        signer: signs the file before it gets its name; None writes no signature.
    """
    source = prepared.source
    known = provenance_of(prepared.spec, source.kept, outputs_sha256)
    samples = samples_of(shipped.module, prepared.calib, prepared.inputs)
    around = None if source.parts is None else source.parts.around
    made = shipped.packed(qconfig, known, samples, around)
    partial = folder.module.with_suffix(".part")
    made.save(partial)
    if signer is not None:
        sign_file(partial, signer)
    partial.replace(folder.module)
    text = json.dumps(qconfig.to_dict(), indent=1, sort_keys=True) + "\n"
    write_atomically(folder.qconfig, text.encode())
    return load_qmod(folder.module)


def keep_page(artifacts: StudyArtifacts, file: Path, shipped: QModule) -> None:
    """Keep what the page of a module shows first, under the sha256 of its file.

    The drawing is left out where there are more than ``MAX_BOXES``, or where nothing can be fused.
    """
    from compiler.drawing.boxes import graph_of
    from compiler.drawing.picture import picture_of
    from compiler.transform import FuseOps

    found = {MODULE_TEXT: text_of(file, shipped)}
    with contextlib.suppress(CompilerError):
        picture = picture_of(FuseOps()(shipped.module))
        if picture.num_boxes <= MAX_BOXES:
            found[MODULE_GRAPH] = {"groups": "fused", **graph_of(picture)}
    for kind, part in found.items():
        artifacts.keep(kind, found[MODULE_TEXT]["sha256"], json.dumps(part).encode())


def text_of(file: Path, shipped: QModule | None = None) -> dict[str, Any]:
    """IR text, configuration, provenance, functions; of a file that is read unless it is known."""
    shipped = shipped or load_qmod(file)
    constants: dict[str, Any] = {}
    whole = text(shipped.module, external_data=constants, show_spans=False)
    return {
        "text": whole[:MAX_TEXT],
        "cut": len(whole) > MAX_TEXT,
        "functions": shipped.functions,
        "qconfig": None if shipped.qconfig is None else shipped.qconfig.to_dict(),
        "provenance": dict(shipped.provenance),
        "bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "inputs": {name: str(ty) for name, ty in shipped.input_types.items()},
    }


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


def recorded_proof(module: IRModule) -> dict[str, Any] | None:
    """What holds of a fully integral module for every input; None where float is left in it."""
    from compiler.proof.derive import derive_static
    from compiler.proof.record import record_of

    proof = derive_static(module)
    if any(finding.check == "dtypes" for finding in proof.findings):
        return None
    for finding in proof.findings:
        log.warning("the module is not proved: %s", finding)
    return record_of(proof.to_dict())


def samples_of(module: IRModule, data: PreparedData, inputs: Sequence[InputSpec]) -> list[Sample]:
    """The first inputs of the data with the outputs of the exact reference; see
    ``fitting_samples``."""
    from compiler.pipeline import evaluate

    dataset = open_dataset(data.ref, inputs)
    first = Range(0, min(SAMPLES, data.count))
    batches = model_batches(dataset, first, inputs, 1)
    return fitting_samples(module, ((b.inputs, evaluate(module, b.inputs)) for b in batches))


def sample_inputs(data: PreparedData, inputs: Sequence[InputSpec]) -> dict[str, NDArray[Any]]:
    """Inputs of a few runs of the model, by ``run.place``: input names may be anything."""
    first = Range(0, min(_RUNS * batch_size(inputs, data.whole), data.count))
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
    """What ``sample_inputs`` gave, as inputs by name, run after run."""
    runs = len(kept) // max(len(names), 1)
    return [
        {name: kept[f"{run}.{place}"] for place, name in enumerate(names)} for run in range(runs)
    ]
