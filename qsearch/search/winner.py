"""The end of a search: build and audit the winner, write it, and run the written file.

``best.qmod`` and ``qconfig.json`` are the same bytes for the same search.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.insight.audit import BITS, Repaired
from compiler.insight.groups import joined_fields
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, Candidate
from compiler.runtime.artifact import QModule
from qsearch.run.run_folder import RunFolder
from qsearch.run.signing import sign_file
from qsearch.search.audit import audited
from qsearch.search.baseline import SplitEvaluation, evaluate_split
from qsearch.search.closeness import Closeness, compared_whole
from qsearch.search.context import PreparedStudy, StudyContext
from qsearch.search.running_trials import await_workers
from qsearch.search.scoring import Scorer, score_of
from qsearch.search.shipped import Shipped, build_winner, provenance_of, samples_of
from qsearch.store.artifacts import write_atomically
from qsearch.store.records import Trial
from workers.batching import hash_outputs
from workers.messages import Build, split_range
from workers.metrics.size import QDQ, RESTRICTED
from workers.process import code_version

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ABOUT: Final = "about"
"""Key of what was found of the written module: of which configuration it is, and its files."""
REFERENCE_SAMPLES: Final = 8
"""Samples of the final check that the exact reference runs too, or those of one run if more."""
_LESS_ROUNDS: Final = 4
"""Than verifying runs."""


@dataclass(frozen=True, slots=True)
class Emitted:
    """Score of the written module, run as users run it.

    Attributes:
        score: as for trials.
        equal_outputs: fraction of samples all of whose outputs equal the evaluator's, bit for bit.
        reference_samples: samples that the exact reference ran as well, spread over all.
        reference_equal: fraction of these all of whose outputs equal the reference's.
        outputs_sha256: over the outputs; `qsearch verify --eval` computes it again.
        cpu_s: what the check cost.
        steps: for each form, what its single steps were tested on; see ``proof.steps``.
        findings: where one computes other integers than the reference.
        file: score of the QDQ file, in a search for one, run by onnxruntime; else None.
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
    file: Mapping[str, float | None] | None = None

    def report(self) -> dict[str, Any]:
        """Plain values, as ``--json`` prints them."""
        told = asdict(self)
        del told["cpu_s"]
        return {**told.pop("score"), **told}


@dataclass(slots=True, eq=False)
class Winner:
    """The module of the best trial: built, audited, written and checked, each once.

    Args:
        prepared: the study.
        folder: where the module goes.
        context: the study in the store, and the workers.
        calibration: of the float model.
        signer: signs the file before it gets its name; None writes no signature.
    """

    prepared: PreparedStudy
    folder: RunFolder
    context: StudyContext
    calibration: Calibration
    signer: Ed25519PrivateKey | None
    roundings: dict[int, Mapping[str, NDArray[Any]]] = field(default_factory=dict)
    """Rounded weights that workers found, by number of the trial."""
    float_ops: tuple[str, ...] = ()
    """Operators that stayed in float, each with the reason."""
    cpu_s: float = 0.0
    """CPU seconds that the check cost workers."""
    _built: tuple[str, Candidate] | None = None
    _written: tuple[tuple[str, str | None], QModule] | None = None

    def audited(self, best: Trial) -> Repaired | None:
        """Measure every quantize point of the module, and repair doubtful ones.

        A space of the user's own says what may be tried, and so do points of a configuration.
        """
        prepared = self.prepared
        qconfig = QConfig.from_dict(best.qconfig)
        if prepared.settings.space is not None or qconfig.layers.points:
            return None
        narrow = prepared.settings.for_ in RESTRICTED or qconfig.form.stores_values
        return audited(
            self.calibration,
            qconfig,
            self._candidate(best),
            prepared.calib,
            prepared.inputs,
            fixed=("smooth_alpha", *(BITS if narrow else ())),
        )

    def check(
        self, best: Trial, scorer: Scorer, reference: Sequence[NDArray[Any]]
    ) -> tuple[str, ...]:
        """Write the module and run the file, unless this very winner was checked before.

        Args:
            reference: outputs of the float model for all samples.
        Returns:
            what ``qsearch verify`` will refuse.
        """
        if self.checked(best) is not None:
            return ()
        progress = self.context.progress
        written = self.write(best, best.outcome.outputs_sha256)
        emitted = self._run_file(best, scorer, reference, written)
        self.cpu_s += emitted.cpu_s
        progress.phase("check, single steps", 1)
        emitted = self._tested(emitted, written)
        progress.advance()
        self.write(best, emitted.outputs_sha256)
        about = {
            "config_hash": best.config_hash,
            "code": code_version(),
            "float_ops": list(self.float_ops),
            "files": None if self.signer else self._digest(),
        }
        self.context.repository.save_emitted(
            self.context.study.id, {**emitted.report(), ABOUT: about}
        )
        return emitted.findings

    def finished(self, best: Trial) -> Mapping[str, Any] | None:
        """Return what the check of the winner found, None where it did not take place; the files
        are written unless those of an earlier run, which nobody signed, are in the folder."""
        emitted, about = self.checked(best) or (None, {})
        known = about.get("files")
        if self.signer is None and known is not None and known == self._digest():
            self.float_ops = tuple(about["float_ops"])
        else:
            self.write(best, None if emitted is None else emitted.get("outputs_sha256"))
        return emitted

    def checked(self, best: Trial) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return what the check of this winner by this code found, if it took place, and what is
        known of the files."""
        emitted = dict(self.context.repository.study(self.context.study.name).emitted or {})
        about = emitted.pop(ABOUT, {})
        of = about.get("config_hash"), about.get("code")
        if of == (best.config_hash, code_version()):
            return (emitted, about)
        return None

    def write(self, best: Trial, outputs_sha256: str | None) -> QModule:
        """Write the module with its configuration, provenance, proof and a few samples, unless
        this run has written the same file.

        Args:
            outputs_sha256: over its outputs on the evaluation data; None where they were not
                computed.
        """
        key = best.config_hash, outputs_sha256
        if self._written is not None and self._written[0] == key:
            return self._written[1]
        prepared = self.prepared
        folder = self.folder
        source = self.prepared.source
        qconfig = QConfig.from_dict(best.qconfig)
        shipped = Shipped.of(self._candidate(best))
        self.float_ops = shipped.float_ops
        known = provenance_of(prepared.spec, source.kept, outputs_sha256)
        samples = samples_of(shipped.module, prepared.calib, prepared.inputs)
        around = None if source.parts is None else source.parts.around
        partial = folder.module.with_suffix(".part")
        module = shipped.packed(qconfig, known, samples, around)
        module.save(partial)
        if self.signer is not None:
            sign_file(partial, self.signer)
        partial.replace(folder.module)
        text = json.dumps(qconfig.to_dict(), indent=1, sort_keys=True) + "\n"
        write_atomically(folder.qconfig, text.encode())
        self._written = key, module
        return module

    def _candidate(self, trial: Trial) -> Candidate:
        """Build the module of a trial, with the weights that a worker has rounded."""
        if self._built is None or self._built[0] != trial.config_hash:
            self._built = None  # two are not held at a time
            rounded = self.roundings.get(trial.number)
            made = build_winner(self.calibration, QConfig.from_dict(trial.qconfig), rounded)
            self._built = trial.config_hash, made
        return self._built[1]

    def _digest(self) -> str | None:
        """Over the module and its configuration; None where a file is missing."""
        files = self.folder.module, self.folder.qconfig
        if not all(file.is_file() for file in files):
            return None
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    def _run_file(
        self, best: Trial, scorer: Scorer, reference: Sequence[NDArray[Any]], module: QModule
    ) -> Emitted:
        """Score the written module and compare its outputs with the evaluator's and the exact
        reference's.

        All samples are run by the executor that ``QModule.run`` chooses, and ``REFERENCE_SAMPLES``
        of them, spread over all, by the reference too. The evaluator runs again only where the
        hash of its outputs says that some of them differ.

        Args:
            module: the written one.
        """
        prepared = self.prepared
        run_samples = self.prepared.run_samples
        pool = self.context.pool
        progress = self.context.progress
        samples = scorer.whole.samples
        qconfig = QConfig.from_dict(best.qconfig)
        name = scorer.whole.build.evaluator
        names = [port.name for port in prepared.source.interface.outputs]
        fields = joined_fields(prepared.source.structure, names)
        scored = scorer.build(qconfig, self.calibration.scales_for(qconfig))
        whole = replace(scorer.whole, hardware=None, asked=(), return_outputs=True)
        written = replace(scored, module=pool.put(self.folder.module.read_bytes()))

        def run(build: Build, what: str, parts: Sequence[range] | None = None) -> SplitEvaluation:
            progress.phase(f"check, {what}", sum(map(len, parts or [samples])))
            request = replace(whole, build=build)
            return evaluate_split(pool, request, progress, f"final {what}", parts, reference)

        await_workers(pool, progress)
        found = run(written, "module")
        places = split_range(samples, max(REFERENCE_SAMPLES // run_samples, 1))
        spread = [part[:run_samples] for part in places]
        exact = run(replace(written, evaluator="reference"), "reference", spread)
        rows = [row - samples.start for part in spread for row in part]
        equal = 1.0
        cpu_s = found.cpu_s + exact.cpu_s
        digest = hashlib.sha256()
        hash_outputs(digest, found.outputs)
        if digest.hexdigest() != best.outcome.outputs_sha256:
            again = run(scored, name)
            equal = equal_fraction(found.outputs, again.outputs)
            cpu_s += again.cpu_s
        file = None
        if prepared.settings.for_ == QDQ:
            from compiler.export.to_onnx.qdq.model import to_qdq_onnx

            made = to_qdq_onnx(module.module)
            handle = pool.put(made.model.SerializeToString())
            build = replace(written, module=handle, evaluator="onnxruntime")
            ran = run(build, "QDQ file")
            file = score_of(ran.sums)
            cpu_s = cpu_s + ran.cpu_s
        return Emitted(
            score_of(found.sums),
            equal,
            len(rows),
            equal_fraction(exact.outputs, [out[rows] for out in found.outputs]),
            digest.hexdigest(),
            cpu_s,
            closeness=Closeness.between([reference], [found.outputs], names, len(samples), fields),
            file=file,
        )

    def _tested(self, emitted: Emitted, written: QModule) -> Emitted:
        """Test single steps of the written module, once each of a large one, and the outputs behind
        the float part of a model that was cut.

        A module that holds floats, or is not proved, is not tested; what refutes it is a finding.
        """
        from compiler.proof.derive import derive_static
        from compiler.proof.steps import check_forms, rounds_of
        from compiler.proof.work import declared_work

        prepared = self.prepared
        module = written.module
        if (pipeline := compared_whole(prepared.source.pipeline)) is not None:
            structure = prepared.source.structure
            parts = prepared.evaluation, prepared.inputs, (), pipeline, structure
            emitted = replace(emitted, closeness=Closeness.of(prepared.module, module, *parts))
        verdict = (written.proof or {}).get("verdict")
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
