"""From settings to a running session: model, folder, workers, store; or only the plan of it."""

from __future__ import annotations

import contextlib
import logging
import shlex
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from qsearch.config import Resolved
from qsearch.data import check_exists, read_preprocess
from qsearch.errors import SettingsError
from qsearch.model_source import ModelSource, find_model
from qsearch.process import logging_to
from qsearch.progress import Progress
from qsearch.run_folder import RunFolder
from qsearch.search.context import Control, Stopwatch, StudyContext
from qsearch.search.result import SearchResult
from qsearch.search.session import Session
from qsearch.search.study import PreparedStudy, open_study, prepare_study, study_name
from qsearch.settings import Settings
from qsearch.store.artifacts import write_atomically
from qsearch.store.engine import exclusive, masked, open_engine, parse_url
from qsearch.store.repository import Repository
from workers.errors import BrokenRunError
from workers.pool.protocol import WorkerPool, WorkerSize, open_pool

log = logging.getLogger("qsearch.search.launch")

# Wishes for one run: a file that is given to -c again must not start over or fall silent.
_ONE_RUN_ONLY = ("dry_run", "fresh", "json", "verbosity")


def run_search(
    resolved: Resolved,
    *,
    calib: Any = None,
    evaluation: Any = None,
    progress: Progress,
    control: Control | None = None,
) -> SearchResult:
    """Do all that ``qsearch launch`` does.

    Args:
        calib, evaluation: Python objects that go before the paths of the settings.
        control: who is told of trials, and who may stop the search.
    Raises:
        CompilerError: see ``qsearch.launch``.
    """
    watch = Stopwatch()
    settings = resolved.settings
    source = _source(settings)
    folder = run_folder(settings, source)
    storage = storage_url(settings, folder)
    parse_url(storage)
    check_exists(settings.calib, "calib")
    check_exists(settings.eval, "eval")
    read_preprocess(settings.preprocess)
    try:
        with folder.in_use() as folder_is_there:
            folder.prepare(source.sha256, fresh=settings.fresh)
            # Workers start in the background while the model is imported.
            with logging_to(settings.verbosity, folder.log), _pool(settings) as pool:
                try:
                    prepared = prepare_study(
                        settings,
                        source,
                        calib=calib,
                        evaluation=evaluation,
                        spool_folder=folder.data,
                    )
                    for warning in prepared.warnings:
                        progress.message(f"warning: {warning}")
                    with _repository(storage) as (repository, store_is_there):
                        checks = (folder_is_there, source.check_unchanged, store_is_there)
                        control = replace(control or Control(), checks=checks)
                        study = open_study(repository, prepared, folder, progress)
                        context = StudyContext(repository, study, pool, progress)
                        session = Session(prepared, folder, context, watch, control)
                        write_config(folder, resolved, prepared)
                        try:
                            return session.run()
                        except Exception:
                            control.check()  # a folder that is gone shows itself as many errors
                            raise
                except Exception as error:
                    if isinstance(error, BrokenRunError) and calib is None and evaluation is None:
                        again = f"qsearch launch -c {shlex.quote(str(folder.config))}"
                        error.add_note(f"to go on: `{again}`")
                    log.info("the search ended with an error", exc_info=True)
                    raise
    finally:
        progress.close()


@contextlib.contextmanager
def _repository(storage: str) -> Iterator[tuple[Repository, Callable[[], None]]]:
    """The store, and a check that it is still there."""
    engine = open_engine(storage)
    try:
        with exclusive(engine) as store_is_there:
            yield Repository(engine), store_is_there
    finally:
        engine.dispose()


def plan(resolved: Resolved) -> dict[str, Any]:
    """What would be done: nothing is written and no worker started."""
    settings = resolved.settings
    source = _source(settings)
    folder = run_folder(settings, source)
    prepared = prepare_study(settings, source)
    size = prepared.space.size(settings.trials + 1)
    return {
        "model": f"{source.name} (sha256 {source.sha256[:12]})",
        "inputs": ", ".join(map(str, prepared.inputs)),
        "calibration": f"{prepared.calib.described}: {prepared.calib.count} samples",
        "evaluation": f"{prepared.evaluation.described}: {prepared.evaluation.count} samples"
        + (", labels" if prepared.has_labels else ""),
        "metric": prepared.metric,
        "hardware": prepared.hardware[1] if prepared.hardware is not None else "none",
        "judge": settings.judge,
        "max drop": str(settings.max_drop),
        "space": " × ".join(f"{p.name}({len(p.choices)})" for p in prepared.space.parameters),
        "trials": min(settings.trials, size),
        "sampler": f"{settings.sampler}, seed {settings.seed}, batches of {settings.batch_size}",
        "workers": f"{settings.pool}, {worker_count(settings)}",
        "study": study_name(settings, folder),
        "storage": masked(parse_url(storage_url(settings, folder))),
        "run folder": str(folder.path),
        "warnings": "; ".join(prepared.warnings) or "none",
    }


def run_folder(settings: Settings, source: ModelSource) -> RunFolder:
    """Where files go: ``-o``, or ``runs/<model>``."""
    return RunFolder(Path(settings.out) if settings.out else Path("runs") / source.stem)


def storage_url(settings: Settings, folder: RunFolder) -> str:
    """The database: ``--storage``, or a file in the run folder."""
    return settings.storage or f"sqlite:///{folder.database}"


def worker_count(settings: Settings) -> int:
    """Workers: as told, or one per core this process may use."""
    return settings.worker_count


def write_config(folder: RunFolder, resolved: Resolved, prepared: PreparedStudy) -> None:
    """``config.resolved.yaml``: every setting with where it came from; usable as ``-c``."""
    settings = resolved.settings
    lines = [
        "# What this run used. The file can be given to `qsearch launch -c`.",
        f"# model_sha256: {prepared.source.sha256}",
        f"# calibration: {prepared.calib.described} (sha256 {prepared.calib.sha256[:16]})",
        f"# evaluation: {prepared.evaluation.described} (sha256 {prepared.evaluation.sha256[:16]})",
    ]
    values = settings.to_dict() | {"study": study_name(settings, folder)}
    for key in _ONE_RUN_ONLY:
        values.pop(key)
    for key, value in values.items():
        text = yaml.safe_dump(
            {key: value}, default_flow_style=True, sort_keys=False, width=10_000
        ).strip()
        lines.append(f"{text[1:-1]}  # {resolved.sources[key]}")
    write_atomically(folder.config, ("\n".join(lines) + "\n").encode())
    if settings.preprocess is not None:
        shutil.copyfile(settings.preprocess, folder.preprocess)


def _source(settings: Settings) -> ModelSource:
    if not settings.model:
        raise SettingsError(
            "no model was given",
            where="model",
            fix="--model m.onnx, or --model digits for the one that ships with the package",
        )
    return find_model(settings.model)


@contextlib.contextmanager
def _pool(settings: Settings) -> Iterator[WorkerPool]:
    """Workers, released however the run ends."""
    size = WorkerSize(settings.worker_cpus, settings.worker_gpus, settings.worker_memory)
    pool = open_pool(
        settings.pool, worker_count(settings), settings.address, settings.trial_timeout, size
    )
    try:
        yield pool
    finally:
        pool.close()
