"""``qsearch verify``: what a .qmod is shown to be, derived again from the file alone.

hashes → types → dtypes → ranges → samples → executors → data → record → signature → certificate

Verdict, record and signature are three answers. Whatever fails in the module is a finding, and one
finding refutes. A record or a signature that does not hold leaves the verdict as it is and makes
the file unacceptable. A file that is no .qmod at all is an error.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from compiler.at_work import at_work
from compiler.errors import ArtifactError, ArtifactHashError, TypeInferenceError
from compiler.ir.module import IRModule
from compiler.ir.text.printer import text
from compiler.pipeline import C_LOWERING
from compiler.proof import checker
from compiler.proof.certificate import certificate
from compiler.proof.derive import Proof, derive
from compiler.proof.record import RecordState, compare_record, record_of, record_state
from compiler.proof.replay import Comparison, differing_elements
from compiler.proof.work import check_work, declared_work, planned_seconds
from compiler.ranges.finding import Finding
from compiler.runtime.archive import json_bytes, read_archive, write_archive
from compiler.runtime.artifact import QModule, load_qmod
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.tflite.interpreters import SHOWN, FileJudge, available
from qsearch.commands.onnx_file import parts_outside
from qsearch.commands.running import Runnable, run_samples
from qsearch.data.prepared_data import judged_output
from qsearch.errors import system_errors
from qsearch.limits import allow_cpu
from qsearch.opening.open_model import DataSource
from qsearch.run.run_folder import RunFolder, module_at
from qsearch.run.signing import (
    SIGNATURE,
    UNSIGNED,
    Signature,
    check_signature,
    private_key,
    public_key,
    sign_file,
)
from qsearch.settings.parameters import (
    Eval,
    File,
    PathLike,
    Preprocess,
)
from qsearch.store.artifacts import write_atomically
from workers.datasets.registry import input_specs
from workers.process import code_version, library_versions, other_versions

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )

_NOISE: Final = 8
"""Runs of a LiteRT file on noise."""

# No part of it can match what another part does: hostile comments are read once.
_TYPE: Final = re.compile(r"/\* ty=([^*\n]*) \*/")


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one file.

    Attributes:
        path: the file.
        file_sha256: of its bytes.
        findings: why it is refuted; empty when it is proved.
        proof: what was derived; None where the module could not be read for its findings.
        record: what the record of the writer is worth; "missing" where the module is unreadable.
        record_findings: where a record that disagrees does.
        signature: what the signature of the file is worth.
        evaluation: score and output hash on the data that was given; None without data.
        outside: what the file holds beside the module, of which nothing is shown: the float parts
            of a model that was cut.
        versions: the libraries that made the file, where they have other versions here.
        certificate: words and bounds of a module that nothing refutes, for ``proof.checker``.
        checked_again: bounds that it derived again.
    """

    path: Path
    file_sha256: str
    findings: tuple[Finding, ...]
    proof: Proof | None = field(default=None, repr=False)
    record: RecordState = "missing"
    record_findings: tuple[Finding, ...] = ()
    signature: Signature = UNSIGNED
    evaluation: Mapping[str, Any] | None = None
    outside: tuple[str, ...] = ()
    versions: str = ""
    certificate: bytes = field(default=b"", repr=False)
    checked_again: int = 0

    @property
    def proved(self) -> bool:
        """True when nothing was found against the module."""
        return not self.findings

    def acceptable(self, require_record: bool = False) -> bool:
        """Return whether the file is proved, and no record or signature is against it.

        Args:
            require_record: a record that is missing does not suffice.
        """
        recorded = self.record == "agrees" or (not require_record and self.record == "missing")
        return self.proved and recorded and self.signature.holds

    def to_dict(self) -> dict[str, Any]:
        """proof.json; no time, host or path."""
        derived = {} if self.proof is None else self.proof.to_dict()
        return {
            **derived,
            "verdict": "proved" if self.proved else "refuted",
            "findings": [asdict(f) for f in self.findings],
            "file_sha256": self.file_sha256,
            "record": self.record,
            "record_findings": [asdict(f) for f in self.record_findings],
            "signature": {"state": self.signature.state, "key": self.signature.key},
            "outside": list(self.outside),
            "checked_again": self.checked_again,
            "evaluation": None if self.evaluation is None else dict(self.evaluation),
            "checked_with": {"qsearch": code_version(), **library_versions()},
        }

    def save(self, path: Path) -> None:
        """Write proof.json.

        Raises:
            RunFolderError: it cannot be written there.
        """
        write_atomically(path, json_bytes(self.to_dict()), fix="name another file with -o")

    def save_certificate(self, path: Path) -> None:
        """Write the words and bounds of a proved module.

        Raises:
            ArtifactError: the module is refuted.
            RunFolderError: it cannot be written there.
        """
        if not self.proved:
            raise ArtifactError(
                "a refuted module has no certificate", where=str(self.path), fix="leave it out"
            )
        write_atomically(path, self.certificate, fix="name another file with --certificate")


def verify(
    path: File,
    eval: Eval = None,
    *,
    preprocess: Preprocess = None,
    key: PathLike | None = None,
    record: bool = False,
    sign: PathLike | None = None,
    tflite: PathLike | None = None,
    allow_large: bool = False,
) -> Verification:
    """Derive again that a .qmod is integers only and cannot overflow, and test what it says.

    The run folder's own preprocess file is read where none is given. A LiteRT file must give the
    module's integers in TFLM and in LiteRT's reference kernels; in XNNPACK it need not.

    Args:
        path: a .qmod, a run folder, or an int8 .onnx file of any author
        eval: also score the module on data; an .onnx file is measured on them (synthetic)
        key: refuse a file that was not signed with this key's private key
        record: write a current record into a proved file without one
        sign: sign a proved file with this private key
        tflite: also run this exported LiteRT file in TFLM and LiteRT, and count differing integers
        allow_large: also verify a small file whose module needs much work
    Raises:
        ArtifactError: the file cannot be read at all, or is too much work.
        DataError: the data does not fit the module.
        SettingsError: a key cannot be read, or the package cryptography is missing.
        TfliteExportError: the LiteRT file cannot be run here.
    """
    signer = None if sign is None else private_key(Path(sign))
    trusted = None if key is None else public_key(Path(key))
    beside = None if tflite is None else Path(tflite)
    data = DataSource.of(eval, preprocess)
    found = _verify(Path(path), data, trusted, allow_large, beside)
    if record and found.proved and found.record == "missing":
        found = _with_record(found)
    if signer is not None and found.acceptable():
        found = _signed(found, signer)
    return found


def _verify(
    given: Path,
    source: DataSource,
    trusted: Ed25519PublicKey | None,
    allow_large: bool,
    beside: Path | None,
) -> Verification:
    path = module_at(given)
    if not path.is_file():
        raise ArtifactError(f"there is no file {path}", fix="check the path")
    digest = hashlib.sha256(_read(path)).hexdigest()
    try:
        at_work(str, "the members of the file")
        members = read_archive(path)
        stated = members.get("module.relay", b"").decode(errors="replace")
        module = load_qmod(path)
    except ArtifactHashError as error:
        return Verification(path, digest, (Finding("hashes", path.name, error.what),))
    except ArtifactError as error:
        if not isinstance(error.__cause__, TypeInferenceError):
            raise
        return Verification(path, digest, (Finding("types", path.name, str(error.__cause__)),))
    if not allow_large:
        work = declared_work(module.module)
        check_work(work)
        allow_cpu(planned_seconds(work))
    types = declared_types(stated, module.module)
    in_c = None if find_compiler() is None else C_LOWERING
    proof = derive(module.module, module.samples, in_c)
    against = [*types, *proof.findings]
    differences = compare_record(module.proof, proof.to_dict())
    record: RecordState = "disagrees" if differences else record_state(module.proof)
    if not module.samples and source.data is None:
        against.append(Finding("samples", path.name, "holds no sample; give data with --eval"))
    evaluation = None
    judge = None if beside is None else _file_judge(beside, module)
    if source.data is not None:
        allow_cpu(None)
        comparison, evaluation, found = _evaluate(path, module, source, judge)
        proof = proof.with_comparison(comparison, "eval")
        against.extend([*comparison.finding("eval"), *found])
    if judge is not None and beside is not None:
        for name, differing in judge.differing.items():
            what = f"{beside.name} in {name}"
            comparison = Comparison(what, judge.runs, judge.elements, differing, judge.runs)
            proof = replace(proof, comparisons=(*proof.comparisons, comparison))
            if name in judge.judges:
                against.extend(comparison.finding("tflite"))
    words = b""
    checked_again = 0
    if not against:
        at_work(str, "the certificate of bounds")
        words = certificate(module.module)
        try:
            checked_again = checker.check(io.BytesIO(words))
        except checker.RefusedError as error:
            against.append(Finding("certificate", path.name, str(error)))
    return Verification(
        path,
        digest,
        tuple(against),
        proof,
        record,
        differences,
        check_signature(members, trusted),
        evaluation,
        tuple(parts_outside(module)),
        other_versions(module.provenance.get("libraries")),
        words,
        checked_again,
    )


def _file_judge(path: Path, module: QModule) -> FileJudge:
    """Return a function that runs a LiteRT file beside its module, after the samples in the .qmod
    and noise."""
    judge = FileJudge(module.module, _read(path), (*available(), SHOWN))
    for inputs, _ in module.samples:
        judge.compare(inputs)
    judge.compare_noise(_NOISE)
    return judge


def _read(path: Path) -> bytes:
    with system_errors(ArtifactError, f"{path} cannot be read"):
        return path.read_bytes()


def _with_record(found: Verification) -> Verification:
    """Put today's record into the file; a signature is taken out, as it would no longer hold."""
    assert found.proof is not None
    record = record_of(found.proof.to_dict())
    members = _unchanged_members(found)
    members.pop(SIGNATURE, None)
    write_archive(found.path, {**members, "proof.json": json_bytes(record)})
    digest = hashlib.sha256(found.path.read_bytes()).hexdigest()
    return replace(found, file_sha256=digest, record="agrees", signature=UNSIGNED)


def _signed(found: Verification, signer: Ed25519PrivateKey) -> Verification:
    _unchanged_members(found)
    made = sign_file(found.path, signer)
    digest = hashlib.sha256(found.path.read_bytes()).hexdigest()
    return replace(found, file_sha256=digest, signature=Signature("valid", made))


def _unchanged_members(found: Verification) -> dict[str, bytes]:
    """Members of the file that was verified.

    Raises:
        ArtifactError: it is another file by now.
    """
    if hashlib.sha256(found.path.read_bytes()).hexdigest() != found.file_sha256:
        raise ArtifactError(f"{found.path} changed while it was verified", fix="verify it again")
    return read_archive(found.path)


def declared_types(source: str, module: IRModule) -> tuple[Finding, ...]:
    """Name the types that the text states otherwise than inference."""
    stated = [found.partition(" span=")[0] for found in _TYPE.findall(source)]
    if not stated:
        return ()
    derived = _TYPE.findall(text(module, external_data={}, show_spans=False))
    if len(stated) != len(derived):
        what = f"states {len(stated)} types, the module has {len(derived)}"
        return (Finding("types", "module.relay", what),)
    for number, (one, other) in enumerate(zip(stated, derived)):
        if one != other:
            what = f"states {one} as type number {number}, inference finds {other}"
            return (Finding("types", "module.relay", what),)
    return ()


def _evaluate(
    path: Path, module: QModule, source: DataSource, judge: FileJudge | None
) -> tuple[Comparison, dict[str, Any], tuple[Finding, ...]]:
    """Both executors on every sample of the data; score and hash of the reference's outputs."""
    if source.preprocess is None and RunFolder(path.parent).preprocess.is_file():
        source = replace(source, preprocess=RunFolder(path.parent).preprocess)
    elements = differing = 0

    def compared(inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        nonlocal elements, differing
        ours = module.run(inputs, "reference", core=True)
        both = differing_elements(ours, module.run(inputs, "integer", core=True))
        elements = elements + both[0]
        differing = differing + both[1]
        if judge is not None:
            judge.compare(inputs)
        return ours

    core = Runnable(
        input_specs(module.module),
        compared,
        pipeline=module.pipeline,
        judged=judged_output(module.module, None, "") if module.pipeline is None else None,
    )
    scored = run_samples(core, source)
    found = {
        "samples": scored.count,
        "data_sha256": scored.data_sha256,
        **scored.score,
        "outputs_sha256": scored.digest,
    }
    what = "@main, reference and integer ONNX, evaluation data"
    comparison = Comparison(what, scored.count, elements, differing, scored.count)
    return comparison, found, _compare_outputs(module.provenance, found)


def _compare_outputs(provenance: Mapping[str, Any], found: dict[str, Any]) -> tuple[Finding, ...]:
    """The hash that the search stored, where it was made from the very same data."""
    stored = provenance.get("outputs_sha256")
    same_data = provenance.get("eval_sha256") == found["data_sha256"]
    found["stored_outputs_sha256"] = stored if same_data else None
    if not same_data or stored is None or stored == found["outputs_sha256"]:
        return ()
    what = f"outputs hash to {found['outputs_sha256'][:16]}, the search stored {stored[:16]}"
    return (Finding("eval", "evaluation data", what),)
