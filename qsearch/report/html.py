"""A study as one HTML file: the dashboard's head, plots and tables; see ``page``."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from compiler.errors import CompilerError
from qsearch.masking import masked
from qsearch.report.listing import opened
from qsearch.report.measures import Measures, value_of
from qsearch.report.page import page
from qsearch.report.view import (
    COLLAPSED,
    WITHOUT_MODULE,
    StudyView,
    constant_names,
    importances_of,
    measure_out,
    parameter_names,
    trials_as_columns,
)
from qsearch.run.run_folder import RunFolder, StudyAddress, find_study
from qsearch.settings.parameters import (
    Folder,
    Out,
    Storage,
    Study,
)
from qsearch.store.artifacts import write_atomically
from qsearch.store.records import Study as StoredStudy
from qsearch.store.repository import Repository
from qsearch.store.view_queries import NO_NOTE


def write_report(
    folder: Folder = None,
    out: Out = "report.html",
    *,
    storage: Storage = None,
    study: Study = None,
) -> Path:
    """Write a study as one HTML file that needs nothing else; return its path.

    Args:
        out: the page to write
    Raises:
        StoreError: no such storage or study.
        SettingsError: several studies and no name.
        RunFolderError: the file cannot be written.
    """
    told = study_data(find_study(folder, storage, study))
    file = Path(out or "report.html")
    text = page(told["study"]["name"], told)
    write_atomically(file, text.encode(), fix="name another file with -o")
    return file


def proof_verdict(module: Path) -> str | None:
    """ "proved" or "refuted", derived from the file; None where there is none that can be read."""
    from compiler.proof.derive import derive_static
    from compiler.runtime.artifact import load_qmod

    if not module.is_file():
        return None
    try:
        verdict: str = derive_static(load_qmod(module).module).to_dict()["verdict"]
    except CompilerError:
        return None
    return verdict


def study_data(address: StudyAddress) -> dict[str, Any]:
    """All that a report shows, read once.

    Raises:
        StoreError: no such storage or study.
    """
    with opened(address) as (repository, study):
        if address.folder is None:
            folder = None
        else:
            folder = RunFolder(address.folder)
        view = _view(repository, study, folder, address.storage)
        told = _study_out(repository, view)
        best = told["best"]
        if best:
            found = repository.trials_by_number(study.id, [best["number"]])
        else:
            found = []
        layers = repository.layers_of(study.id)
    measures = view.measures
    points = view.points
    rank = measures.objective.rank
    done = [i for i, p in enumerate(points) if p.state == "complete" and p.score is not None]
    done.sort(key=lambda i: rank(points[i].score or {}, points[i].number), reverse=True)
    why = Counter(point.error or COLLAPSED for point in points if point.state in WITHOUT_MODULE)
    changed = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(study.updated_at))
    drawn = [m for m in measures.all if any(value_of(m, p) is not None for p in points)]
    return {
        "study": told,
        "facts": [
            study.model_name,
            f"model sha256 {study.model_sha256[:16]}",
            study.code_version,
            f"seed {study.seed}",
            f"changed {changed}",
            *([f"stopped: {masked(study.stopped)}"] if study.stopped else []),
        ],
        "columns": trials_as_columns(measures, points),
        "importances": {
            m.name: dict(zip(("importances", "left_out"), importances_of(m, points))) for m in drawn
        },
        "layers": [asdict(layer) for layer in layers],
        "best_first": done,
        "failures": [[count, masked(what)] for what, count in why.most_common()],
        "qconfig": dict(found[0].qconfig) if found else {},
    }


def _view(
    repository: Repository, study: StoredStudy, folder: RunFolder | None, storage: str | None
) -> StudyView:
    points = repository.points_of(study.id)
    measures = Measures.of(study, points)
    known = (study, measures, points, measures.best(points))
    return StudyView.of(repository, known, folder, storage)


def _study_out(repository: Repository, view: StudyView) -> dict[str, Any]:
    """The study as the API gives it, as far as pages of one file use it."""
    study = view.study
    points = view.points
    measures = view.measures
    note = repository.newest_notes(study.id).get(None, NO_NOTE)
    module = None if view.folder is None else view.folder.module
    return {
        **view.head(),
        "silent": view.silent,
        "listening": view.listening,
        "rate_per_min": 0,
        "measures": [measure_out(measure) for measure in measures.all],
        "parameters": parameter_names(points),
        "constant": constant_names(measures, points),
        "layer_kinds": sorted({layer.kind for layer in repository.layers_of(study.id)}),
        "drivers": [{"id": d.id, "name": d.name} for d in view.drivers],
        "proof": None if view.folder is None else proof_verdict(view.folder.module),
        "module_bytes": module.stat().st_size if module is not None and module.is_file() else None,
        "note": note.note,
        "tags": list(note.tags),
    }
