"""The module of any trial of a stored study, built again from what the study kept.

Float module, statistics and ranges are artefacts, and a build is deterministic: the module has the
bits that were scored, whichever trial won.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Final

from compiler.errors import NotFullyIntegralError
from compiler.ir.blob import ModuleBlob
from compiler.pipeline import evaluate
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration
from compiler.quantize.calibration.flow import NoData
from compiler.runtime.artifact import QModule, fitting_samples
from compiler.runtime.interface import KEY as INTERFACE
from compiler.runtime.pipeline import AFTER, BEFORE
from qsearch.errors import RunFolderError, SettingsError, StoreError, system_errors
from qsearch.report.listing import opened, trial_of
from qsearch.run.run_folder import PathLike, RunFolder, StudyAddress, find_study
from qsearch.search.calibration import StoredStatistics, statistics_key
from qsearch.search.context import StudyArtifacts
from qsearch.search.session import FLOAT_MODULE
from qsearch.search.shipped import (
    INPUTS,
    SAMPLES,
    Shipped,
    build_winner,
    provenance_of,
    runs_of,
)
from qsearch.settings.user_code import check_imports
from qsearch.store.artifacts import ArtifactStore
from qsearch.store.records import Study, Trial
from workers.user_code import imported_code

_NO_MODULE: Final = {
    "pruned": "it was stopped early as worse than the best, so its score is not known",
    "failed": "it failed",
    "waiting": "it has not begun",
    "running": "it is still running",
}


def write_trial(
    folder: PathLike | None,
    number: int,
    out: PathLike,
    *,
    storage: str | None = None,
    study: str | None = None,
) -> QModule:
    """Write the module of a trial as a .qmod; the module that was written.

    It has the bits that the trial was scored with; that of the winner has those of ``best.qmod``.

    Args:
        folder: run folder, or a folder of run folders.
        number: of the trial.
        out: the file.
    Raises:
        SettingsError: there is no such trial, or it was pruned, failed or did not end.
        StoreError: the files of the study are not on this machine.
        NotFullyIntegralError: the configuration leaves float in a module that may hold none.
        RunFolderError: the file cannot be written.
    """
    made = _trial_module(find_study(folder, storage, study), number)
    path = Path(out)
    what = f"{path} cannot be written"
    with system_errors(RunFolderError, what, where="-o", fix="name another file"):
        path.parent.mkdir(parents=True, exist_ok=True)
        made.save(path)
    return made


def _trial_module(address: StudyAddress, number: int) -> QModule:
    with opened(address) as (repository, study):
        trial = trial_of(repository, study, number)
        _refuse_without_score(study, trial)
        if address.folder is None:
            raise StoreError(
                "the files of the study lie in its run folder, which was not named",
                where=address.url,
                fix="give the run folder: qsearch best DIR --trial N -o FILE",
            )
        files = ArtifactStore(RunFolder(address.folder).artifacts)
        return _built(study, trial, StudyArtifacts(repository, study.id, files))


def _refuse_without_score(study: Study, trial: Trial) -> None:
    if trial.state == "complete":
        return
    why = _NO_MODULE.get(trial.state, f"it is {trial.state}")
    failure = trial.outcome.failure
    if trial.state == "failed" and failure is not None:
        why = f"{why}: {failure.what}"
    raise SettingsError(
        f"trial {trial.number} of study {study.name!r} has no module: {why}",
        where="--trial",
        fix="choose a complete one: qsearch trials --filter state=complete; or `qsearch compile` "
        "with its configuration",
    )


def _built(study: Study, trial: Trial, artifacts: StudyArtifacts) -> QModule:
    # What this process imported for others changes nothing here.
    named = study.spec.get("imports", {})
    code = tuple(module for module in imported_code() if module.name in named)
    check_imports(study.name, study.spec, code)
    spec = study.spec
    qconfig = QConfig.from_dict(trial.qconfig)
    module = ModuleBlob(_bytes(artifacts, FLOAT_MODULE)).unpack()
    store = StoredStatistics(artifacts, statistics_key(spec, study.code_version))
    calibration = Calibration(module, NoData(), percentiles=tuple(spec["percentiles"]), store=store)
    try:
        shipped = Shipped.of(build_winner(calibration, qconfig))
    except NotFullyIntegralError as error:
        error.add_note(f"trial {trial.number} was scored with float parts; it has no module")
        raise
    names = [param.name_hint for param in module["main"].params]
    kept = artifacts.arrays(INPUTS, spec["calib_sha256"]) or {}
    runs = runs_of(kept, names)[:SAMPLES]
    samples = fitting_samples(shipped.module, runs, partial(evaluate, shipped.module))
    interface = json.loads(_bytes(artifacts, INTERFACE))
    known = provenance_of(spec, interface, trial.outcome.outputs_sha256)
    before, after = (_part(artifacts, name.removesuffix(".onnx")) for name in (BEFORE, AFTER))
    return shipped.packed(qconfig, known, samples, (before, after))


def _part(artifacts: StudyArtifacts, kind: str) -> bytes | None:
    """A float part of a model that was cut."""
    there = artifacts.repository.artifacts_of(artifacts.study_id, kind)
    if there:
        return _bytes(artifacts, kind)
    return None


def _bytes(artifacts: StudyArtifacts, kind: str) -> bytes:
    """The one artefact of a kind.

    Raises:
        StoreError: it is not on this machine.
    """
    for row in artifacts.repository.artifacts_of(artifacts.study_id, kind):
        return artifacts.files.get(kind, row.sha256)
    raise StoreError(
        f"the study kept no {kind.replace('_', ' ')}",
        where="artifacts",
        fix="run the same `qsearch launch` again; it goes on where it stopped",
    )
