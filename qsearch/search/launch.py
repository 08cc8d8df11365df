"""From settings to a running session: model, folder, workers, store; or a dry run of it."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from qsearch.data.prepared_data import check_exists, read_preprocess
from qsearch.errors import SettingsError
from qsearch.exit_codes import EXIT_OK, EXIT_TARGET_MISSED
from qsearch.masking import masked
from qsearch.opening.frameworks import model_file
from qsearch.opening.model_file import ModelSource, find_model
from qsearch.process import (
    interruptible,
    interrupts_kept,
    logging_to,
)
from qsearch.run.progress import Progress, make_progress
from qsearch.run.run_folder import PathLike, RunFolder
from qsearch.run.signing import private_key
from qsearch.run.tracking import RunFacts, Trackers
from qsearch.search.baseline import examination
from qsearch.search.context import Callback, Control, PreparedStudy, StudyContext
from qsearch.search.preparation import open_study, prepare_study, study_name
from qsearch.search.result import SearchResult
from qsearch.search.session import Session
from qsearch.search.space_file import on_a_line
from qsearch.search.trying import fields_of_text, wish, wishes
from qsearch.settings.config import IMPORT, Resolved, resolve
from qsearch.settings.launch_settings import Settings
from qsearch.settings.user_code import path_of
from qsearch.store.artifacts import artifact_store, write_atomically
from workers.errors import BrokenRunError
from workers.pool.kinds import open_pool
from workers.pool.protocol import WorkerSize
from workers.pool.queued_pool import WorkerPool
from workers.process import Stopwatch, code_version, library_versions
from workers.user_code import import_user_code

if TYPE_CHECKING:
    from qsearch.store.records import Study
    from qsearch.store.repository import Repository

log = logging.getLogger("qsearch.search.launch")

_ENDED = (EXIT_OK, EXIT_TARGET_MISSED)

# Settings of one run: a file that is given to -c again must not start over or print less.
_ONE_RUN_ONLY = ("dry_run", "fresh", "json", "keep_failed", "track", "try", "verbosity")


class LaunchOptions(TypedDict, total=False):
    """Keywords of ``launch`` beside its own: the fields of ``Settings``, None means the default."""

    trials: int | None
    preprocess: PathLike | None
    dim: Mapping[str, int] | Sequence[str] | None
    until: Sequence[str] | str | None
    from_: Sequence[str] | str | None
    set_input: Sequence[str] | Mapping[str, Any] | str | None
    passes: Sequence[Any] | str | None
    imports: Sequence[PathLike | ModuleType] | str | None
    metric: str | Callable[..., Any] | None
    minimize: Sequence[str] | str | None
    max_drop: float | str | None
    max_size: int | str | None
    for_: str | None
    assume_vnni: bool | None
    at_most: Mapping[str, float] | Sequence[str] | str | None
    hw: PathLike | None
    measure: str | None
    evaluator: str | None
    allow_float: bool | None
    timeout: float | None
    patience: int | str | None
    prune: float | None
    sampler: str | Callable[..., Any] | None
    seed: int | None
    batch: int | None
    space: PathLike | Mapping[str, Any] | None
    pool: str | None
    workers: int | None
    address: str | None
    worker_cpus: float | None
    worker_memory: int | str | None
    trial_timeout: float | None
    out: PathLike | None
    artifacts: str | None
    storage: str | None
    study: str | None
    sign: PathLike | None
    fresh: bool | None
    keep_failed: bool | None
    try_: Sequence[str] | str | None
    track: Sequence[str] | str | None
    dry_run: bool | None
    json: bool | None
    verbosity: int | None


def launch(
    model: Any,
    *,
    calib: Any = None,
    eval: Any = None,
    progress: bool | Progress | None = None,
    config: PathLike | None = None,
    callbacks: Sequence[Callback] = (),
    stop: threading.Event | None = None,
    **settings: Unpack[LaunchOptions],
) -> SearchResult:
    """Search for the best quantization of a model; the same call on the same folder resumes.

    Args:
        model: path of an ONNX file or of a folder with ``model.onnx``, the name of a shipped model
            ("digits"), a torch.nn.Module, a keras.Model, a ModelProto or its bytes; the run folder
            (``runs/model`` without ``out``) keeps those as ``model.onnx``. A module of torch is
            exported with the first samples of ``calib``, and compared on them; where ``calib`` is
            a folder or a file of texts, give ``(module, example)``.
        calib: calibration inputs: a path (.npz, .npy, folder of images), an array, a mapping of
            arrays, a tuple (inputs, labels), an iterable of mappings or (inputs, labels) pairs
            such as a torch DataLoader, a Hugging Face data set, ``qsearch.Dataset(items,
            transform_fn)``, a CalibrationDataReader, or a callable that gives one.
        eval: evaluation data of the same kinds; ``labels`` among the names scores top-1.
        progress: True shows it on stderr; None does so in notebooks.
        config: configuration file with the same names as the flags.
        callbacks: called with every trial after it was stored; a true answer stops the search.
        stop: set it from another thread to end the search in good order.
        settings: further fields of ``Settings``: ``trials`` of the study in total, over all runs
            (32), ``out``, ``pool``, …. ``metric``, ``sampler``
            and ``passes`` may be functions and classes: ``metric(outputs, labels)`` gives a float,
            a dictionary or one value per sample; ``sampler(seed)`` an Optuna sampler. ``imports``
            (``--import``) are own modules, as paths, dotted names or modules: every worker runs
            them first, and the default space has the calibrate modes that they register.
    Returns:
        The study so far; ``exit_code`` 1 says that no trial stayed within ``max_drop``,
        ``max_size`` and ``at_most``.
    Raises:
        CompilerError: anything that cannot be used, with what, where and how to fix it.
    Example:
        >>> import qsearch, tempfile
        >>> result = qsearch.launch("digits", trials=1, pool="inline", out=tempfile.mkdtemp())
        >>> result.best_params["weight_granularity"]
        'channel'
    """
    if model is not None and not isinstance(model, str | os.PathLike):
        folder = Path(settings.get("out") or "runs/model")
        if calib is None and eval is not None:
            model, eval = model_file(model, eval, folder)
        else:
            model, calib = model_file(model, calib, folder)
    flags = {"model": model, **_paths(settings)}
    objects: dict[str, Any] = {}
    for name, given in (("calib", calib), ("eval", eval)):
        if given is None or isinstance(given, str | os.PathLike):
            flags[name] = given
        else:
            objects[name] = given
    if progress is None:
        progress = "ipykernel" in sys.modules
    if progress is True:
        shown = make_progress(0)
    else:
        shown = progress or Progress()
    resolved = resolve(flags, config_file=None if config is None else Path(config))
    return run_search(
        resolved,
        calib=objects.get("calib"),
        evaluation=objects.get("eval"),
        progress=shown,
        control=Control(callbacks, stop or threading.Event()),
    )


def run_search(
    resolved: Resolved,
    *,
    calib: Any = None,
    evaluation: Any = None,
    model_name: str | None = None,
    progress: Progress,
    control: Control | None = None,
) -> SearchResult:
    """Do all that ``qsearch launch`` does.

    Args:
        calib, evaluation: Python objects that go before the paths of the settings.
        model_name: what reports call the model, which is a stranger's upload and refers to no
            other file; None calls it as its file.
        control: callbacks of trials, and events that stop the search.
    Raises:
        CompilerError: see ``qsearch.launch``.
    """
    watch = Stopwatch()
    settings = resolved.settings
    source = _source(settings)
    if model_name is not None:
        source = replace(source, name=model_name, alone=source.calib is None)
    if settings.sign is None:
        signer = None
    else:
        signer = private_key(Path(settings.sign))
    folder = run_folder(settings, source)
    storage = storage_url(settings, folder)
    _check_given(settings)
    control = control or Control()
    trackers = Trackers(settings.track, _facts(settings, folder))
    own = (trackers.trial, lambda _trial: folder.forget_earlier())
    control = replace(control, callbacks=(*control.callbacks, *own))
    state = "failed"
    try:
        with interruptible(), folder.in_use() as folder_is_there, _renewed(folder, settings):
            folder.check_owner(source.sha256)
            with logging_to(settings.verbosity, folder.log), _pool(settings) as pool:
                try:
                    prepared = prepare_study(
                        settings,
                        source,
                        calib=calib,
                        evaluation=evaluation,
                        objects_folder=folder.data,
                        progress=progress,
                    )
                    wanted = [fields_of_text(given) for given in settings.try_]
                    progress.message(f"workers: {_workers_line(settings)}")
                    if prepared.source.pipeline is not None:
                        progress.message(f"cut: {prepared.source.parts}")
                    progress.message(f"search: {prepared.objective.goal(settings.max_drop)}")
                    for warning in prepared.warnings:
                        progress.message(f"warning: {warning}")
                    with _repository(storage) as (repository, store_is_there):
                        code = (module.check_unchanged for module in prepared.code)
                        checks = (folder_is_there, source.check_unchanged, store_is_there, *code)
                        control = replace(control, checks=checks)
                        study = open_study(repository, prepared, folder, progress)
                        _wish(repository, study, wanted)
                        context = StudyContext(repository, study, pool, progress)
                        session = Session(prepared, folder, context, watch, control, signer)
                        write_config(folder, resolved, prepared)
                        try:
                            result = session.run()
                            state = "end" if result.exit_code in _ENDED else "interrupted"
                            return result
                        except Exception:
                            control.check()  # a folder that is gone shows itself as many errors
                            raise
                except Exception as error:
                    _note_how_to_resume(
                        error, folder, settings, calib is None and evaluation is None
                    )
                    log.info("the search ended with an error", exc_info=True)
                    raise
    except KeyboardInterrupt:
        state = "interrupted"
        raise
    finally:
        trackers.end(state, folder.results())
        progress.close()


def _renewed(folder: RunFolder, settings: Settings) -> contextlib.AbstractContextManager[None]:
    """Set the files of an earlier study aside for ``--fresh``, until the new one has a trial."""
    if settings.fresh:
        return folder.renewed()
    return contextlib.nullcontext()


def _facts(settings: Settings, folder: RunFolder) -> RunFacts:
    """Return the facts of a run that trackers are told."""
    given = settings.to_dict().items()
    told = {name: str(value) for name, value in given if value is not None}
    versions = {"code": code_version(), **library_versions()}
    study = study_name(settings, folder)
    command = shlex.join(map(masked, sys.argv))
    return RunFacts(study, told, command, versions, folder.path)


def _wish(repository: Repository, study: Study, wanted: Sequence[Mapping[str, Any]]) -> None:
    """Have what ``--try`` names evaluated, unless an earlier run of the command did so."""
    known = [(event.data or {}).get("qconfig") for event in wishes(repository, study.id)]
    for fields in wanted:
        if fields not in known:
            wish(repository, study, fields)


def _check_given(settings: Settings) -> None:
    """Refuse a storage and files that cannot be used, before anything is written.

    Raises:
        CompilerError: no such file, or no URL of a storage.
    """
    if settings.storage is not None:
        from qsearch.store.engine import parse_url

        parse_url(settings.storage)
    artifact_store(Path(), settings.artifacts)
    check_exists(settings.calib, "calib")
    check_exists(settings.eval, "eval")
    read_preprocess(settings.preprocess)


def _note_how_to_resume(
    error: Exception, folder: RunFolder, settings: Settings, from_files: bool
) -> None:
    """Add the command that resumes the search to its error.

    Args:
        from_files: all data came from files, which the command can read again.
    """
    if isinstance(error, BrokenRunError) and from_files:
        error.add_note(f"to go on: `qsearch launch -c {shlex.quote(str(folder.config))}`")
    if folder.imports and not settings.imports:
        had = f"its search was begun with {folder.imports}"
        error.add_note(f"{had}: give it again, if you trust it")


@contextlib.contextmanager
def _repository(storage: str) -> Iterator[tuple[Repository, Callable[[], None]]]:
    """The store, and a check that it is still there."""
    from qsearch.store.engine import exclusive, open_engine  # SQL is loaded when it is used
    from qsearch.store.repository import Repository

    engine = open_engine(storage)
    try:
        with exclusive(engine) as store_is_there:
            yield Repository(engine), store_is_there
    finally:
        engine.dispose()


def plan(resolved: Resolved) -> dict[str, Any]:
    """The settings of a search; writes nothing and starts no worker."""
    settings = resolved.settings
    source = _source(settings)
    if settings.sign is not None:
        private_key(Path(settings.sign))
    folder = run_folder(settings, source)
    with (
        tempfile.TemporaryDirectory(prefix="qsearch-") as scratch,
        contextlib.closing(open_pool("inline", 1)) as pool,
    ):
        prepared = prepare_study(settings, source, objects_folder=Path(scratch))
        found = examination(prepared, pool, pool.put(prepared.blob.data)).examine()
    size = prepared.space.size(settings.trials + 1)
    warnings = (*prepared.warnings, *(() if found is None else found.warnings))
    return {
        "model": f"{source.name} (sha256 {source.sha256[:12]})",
        "inputs": ", ".join(map(str, prepared.inputs)),
        "cut": "none" if prepared.source.pipeline is None else str(prepared.source.parts),
        "calibration": f"{prepared.calib.described}: {prepared.calib.count} samples",
        "evaluation": f"{prepared.evaluation.described}: {prepared.evaluation.count} samples"
        + (", labels" if prepared.has_labels else ""),
        "float model": "not examined: it gives no class that a label may name"
        if found is None
        else found.summary,
        "metric": prepared.objective.names[0],
        "search": prepared.objective.goal(settings.max_drop),
        "hardware": prepared.hardware[1] if prepared.hardware is not None else "none",
        "evaluator": settings.evaluator,
        "max drop": str(settings.max_drop),
        "space": " × ".join(f"{p.name}({len(p.choices)})" for p in prepared.space.parameters),
        "trials": min(settings.trials, size),
        "sampler": f"{settings.sampler}, seed {settings.seed}, batches of {settings.batch_size}",
        "workers": _workers_line(settings),
        "imported": ", ".join(module.name for module in prepared.code) or "no own code",
        "study": study_name(settings, folder),
        "storage": masked(storage_url(settings, folder)),
        "run folder": str(folder.path),
        "warnings": "; ".join(warnings) or "none",
    }


def run_folder(settings: Settings, source: ModelSource) -> RunFolder:
    """Return the run folder: ``-o``, or ``runs/<model>``."""
    return RunFolder(Path(settings.out) if settings.out else Path("runs") / source.stem)


def storage_url(settings: Settings, folder: RunFolder) -> str:
    """The database: ``--storage``, or a file in the run folder."""
    return settings.storage or f"sqlite:///{folder.database}"


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
    # What was decided from the data: the file begins no other search than this one.
    values["max_drop"] = str(prepared.settings.max_drop)
    values["patience"] = prepared.settings.patience
    for key in _ONE_RUN_ONLY:
        values.pop(key)
    for word in values.pop(IMPORT):
        lines.append(f"# imported: {word}")
    for key, value in values.items():
        lines.append(f"{on_a_line({key: value})[1:-1]}  # {resolved.sources[key]}")
    write_atomically(folder.config, ("\n".join(lines) + "\n").encode())
    if settings.preprocess is not None:
        write_atomically(folder.preprocess, Path(settings.preprocess).read_bytes())


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
    """Workers, which start when they are first needed, released however the run ends."""
    size = WorkerSize(settings.worker_cpus, settings.worker_memory)
    pool = open_pool(
        settings.pool_kind,
        settings.worker_count,
        settings.ray_address,
        settings.trial_timeout,
        size,
        import_user_code(settings.imports),
    )
    try:
        yield pool
    finally:
        with interrupts_kept():
            pool.close()


def _workers_line(settings: Settings) -> str:
    """Name the pool of workers, and the other pools where the user named none."""
    count = settings.worker_count
    kind = settings.pool_kind
    if kind == "inline":
        return "in this process"
    if kind == "ray":
        return f"{count} on Ray, {settings.ray_address or 'a cluster of its own'}"
    return f"{count} process{'es' if count > 1 else ''}"


def _paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Functions and classes among the settings as import paths, which every worker can follow."""
    found = dict(settings)
    here = found.get("pool") == "inline"
    for name in ("metric", "sampler"):
        if callable(found.get(name)):
            found[name] = path_of(found[name], name, in_this_process=here or name == "sampler")
    for word in ("from", "for", "try"):  # keywords of Python
        if (given := found.pop(f"{word}_", None)) is not None:
            found[word] = given
    if (modules := found.pop("imports", None)) is not None:
        if isinstance(modules, list | tuple):
            listed = modules
        else:
            listed = [modules]
        found[IMPORT] = [one.__name__ if isinstance(one, ModuleType) else one for one in listed]
    if found.get("passes") is not None and not isinstance(found["passes"], str):
        found["passes"] = [path_of(one, "pass", in_this_process=True) for one in found["passes"]]
    return found
