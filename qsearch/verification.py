"""``qsearch verify``: what a .qmod is shown to be, derived again from the file alone.

hashes → types → dtypes → ranges → what the file recorded → samples → executors → data

Whatever fails is a finding, and one finding refutes. A file that is no .qmod at all is an error.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime

from compiler.errors import ArtifactError, ArtifactHashError, TypeInferenceError
from compiler.ir.module import IRModule
from compiler.ir.printer import text
from compiler.proof.derive import FORMAT, Proof, compare_record, derive
from compiler.proof.finding import Finding
from compiler.proof.replay import Comparison, differing_elements
from compiler.runtime.archive import json_bytes, read_archive
from compiler.runtime.artifact import QModule, load_qmod
from compiler.targets.c.toolchain import find_compiler
from qsearch.data import PreparedData, prepare_data, read_preprocess
from qsearch.errors import RunFolderError
from qsearch.run_folder import RunFolder, module_at
from qsearch.store.artifacts import write_atomically
from workers.code_version import code_version
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs, open_dataset
from workers.feeding import ModelBatch, model_batches
from workers.metrics.judge import MetricSums

_CHUNK: Final = 16
_TYPE: Final = re.compile(r"/\* ty=(.*?) (?:span=[^*]*)?\*/")


@dataclass(frozen=True, slots=True)
class Verification:
    """The outcome for one file.

    Attributes:
        path: the file.
        file_sha256: of its bytes.
        findings: why it is refuted; empty when it is proved.
        proof: what was derived; None where the module could not be read for its findings.
        recorded: whether the file holds a record of its writer, which was compared.
        evaluation: score and output hash on the data that was given; None without data.
    """

    path: Path
    file_sha256: str
    findings: tuple[Finding, ...]
    proof: Proof | None = None
    recorded: bool = False
    evaluation: Mapping[str, Any] | None = None

    @property
    def proved(self) -> bool:
        """True when nothing was found against the file."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """proof.json; no time, host or path."""
        derived = {} if self.proof is None else self.proof.to_dict()
        return {
            **derived,
            "verdict": "proved" if self.proved else "refuted",
            "findings": [
                {"check": f.check, "node": f.node, "what": f.what, "bound": f.bound}
                for f in self.findings
            ],
            "file_sha256": self.file_sha256,
            "record_compared": self.recorded,
            "evaluation": None if self.evaluation is None else dict(self.evaluation),
            "checked_with": {
                "qsearch": code_version(),
                "numpy": np.__version__,
                "onnxruntime": onnxruntime.__version__,
            },
        }

    def save(self, path: Path) -> None:
        """Write proof.json.

        Raises:
            RunFolderError: it cannot be written there.
        """
        try:
            write_atomically(path, json_bytes(self.to_dict()))
        except OSError as error:
            raise RunFolderError(
                f"{path} cannot be written: {error.strerror}",
                fix="name another place with -o",
            ) from error


def verify_file(given: Path, data: Any, preprocess: str | None) -> Verification:
    """See ``qsearch.api.verify``."""
    path = module_at(given)
    if not path.is_file():
        raise ArtifactError(f"there is no file {path}", fix="check the path")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    try:
        source = read_archive(path).get("module.relay", b"").decode(errors="replace")
        module = load_qmod(path)
    except ArtifactHashError as error:
        return Verification(path, digest, (Finding("hashes", path.name, error.what),))
    except ArtifactError as error:
        if not isinstance(error.__cause__, TypeInferenceError):
            raise
        return Verification(path, digest, (Finding("types", path.name, str(error.__cause__)),))
    types = declared_types(source, module.module)
    proof = derive(module.module, module.samples, compiled=find_compiler() is not None)
    against = [*types, *proof.findings]
    # A record of another format was written by another version, and cannot be compared.
    recorded = module.proof is not None and module.proof.get("format") == FORMAT
    if module.proof is not None and recorded:
        against.extend(compare_record(module.proof, proof))
    if not module.samples and data is None:
        against.append(Finding("samples", path.name, "holds no sample; give data with --eval"))
    evaluation = None
    if data is not None:
        comparison, evaluation, found = _evaluate(path, module, data, preprocess)
        proof = proof.with_comparison(comparison, "eval")
        against.extend([*comparison.finding("eval"), *found])
    return Verification(path, digest, tuple(against), proof, recorded, evaluation)


def declared_types(source: str, module: IRModule) -> tuple[Finding, ...]:
    """Where the types that the text states differ from those that inference finds."""
    stated = _TYPE.findall(source)
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
    path: Path, module: QModule, data: Any, preprocess: str | None
) -> tuple[Comparison, dict[str, Any], tuple[Finding, ...]]:
    """Both executors on every sample of the data; score and hash of the reference's outputs."""
    inputs = input_specs(module.module)
    if preprocess is None and RunFolder(path.parent).preprocess.is_file():
        preprocess = str(RunFolder(path.parent).preprocess)
    with tempfile.TemporaryDirectory(prefix="qsearch-") as spool:
        prepared = prepare_data(
            data,
            inputs,
            name="eval",
            preprocess=read_preprocess(preprocess),
            spool_folder=Path(spool),
        )
        sums = MetricSums(
            ("top1",) if prepared.has_labels else (),
            has_labels=prepared.has_labels,
            has_reference=False,
        )
        digest = hashlib.sha256()
        elements = differing = 0
        for batch in _batches(prepared, inputs):
            ours = module.run(batch.inputs)
            compared, different = differing_elements(ours, module.run(batch.inputs, "integer"))
            elements, differing = elements + compared, differing + different
            outputs = [out[: batch.count] for out in ours]
            for sample in range(batch.count):
                for out in outputs:
                    digest.update(np.ascontiguousarray(out[sample], "<f4").tobytes())
            sums.add(outputs, None, batch.labels)
    found = {
        "samples": prepared.count,
        "data_sha256": prepared.sha256,
        "top1": sums.results().get("top1"),
        "outputs_sha256": digest.hexdigest(),
    }
    what = "@main, reference and integer ONNX, evaluation data"
    comparison = Comparison(what, prepared.count, elements, differing)
    return comparison, found, _compare_outputs(module.provenance, found)


def _batches(data: PreparedData, inputs: tuple[InputSpec, ...]) -> Iterator[ModelBatch]:
    dataset = open_dataset(data.ref, inputs)
    return iter(model_batches(dataset, data.samples, inputs, _CHUNK))


def _compare_outputs(provenance: Mapping[str, Any], found: dict[str, Any]) -> tuple[Finding, ...]:
    """The hash that the search stored, where it was made from the very same data."""
    stored = provenance.get("outputs_sha256")
    same_data = provenance.get("eval_sha256") == found["data_sha256"]
    found["stored_outputs_sha256"] = stored if same_data else None
    if not same_data or stored is None or stored == found["outputs_sha256"]:
        return ()
    what = f"outputs hash to {found['outputs_sha256'][:16]}, the search stored {stored[:16]}"
    return (Finding("eval", "evaluation data", what),)
