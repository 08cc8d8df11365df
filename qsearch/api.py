"""The Python API: launch, load, quantize, and what the other commands call. CLI and dashboard go
no deeper than this file.

    import qsearch
    result = qsearch.launch("m.onnx", calib=arrays, eval=arrays, trials=16)
    outputs = result.best_module().run({"input": image})
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qsearch.progress import Progress, SilentProgress, make_progress
from qsearch.result import SearchResult
from qsearch.search.control import Callback, Control
from qsearch.settings import Resolved, resolve
from qsearch.watching import dashboard as dashboard
from qsearch.watching import dashboard_beside as dashboard_beside
from qsearch.watching import report as report

if TYPE_CHECKING:
    from compiler.difference import Difference
    from compiler.qtypes.qconfig import QConfig
    from compiler.runtime.artifact import QModule
    from qsearch.diagnosis import ModelDiagnosis
    from qsearch.export import ExportedFiles
    from qsearch.insight import ModelInsight
    from qsearch.managing import StudyAddress
    from qsearch.store.records import CommandKind
    from qsearch.verification import Verification

PathLike = str | os.PathLike[str]


def launch(
    model: PathLike,
    *,
    calib: Any = None,
    eval: Any = None,
    trials: int | None = None,
    progress: bool | Progress = False,
    config: PathLike | None = None,
    callbacks: Sequence[Callback] = (),
    stop: threading.Event | None = None,
    **settings: Any,
) -> SearchResult:
    """Search for the best quantization of a model; the same call on the same folder resumes.

    Args:
        model: path of an ONNX file, or the name of a shipped model ("digits").
        calib: calibration inputs: a path (.npz, .npy, folder of images), an array, a mapping of
            arrays, an iterable of mappings or (inputs, labels) pairs such as a torch DataLoader, a
            Hugging Face data set, ``qsearch.Dataset(items, transform_fn)``, a
            CalibrationDataReader, or a callable that gives one.
        eval: evaluation data of the same kinds; ``labels`` among the names scores top-1.
        trials: of the study in total, over all runs (32).
        progress: True shows it on stderr.
        config: configuration file with the same names as the flags.
        callbacks: called with every trial after it was stored; a true answer stops the search.
        stop: set it from another thread to end the search in good order.
        settings: further fields of ``Settings``, such as ``out``, ``pool``. ``metric``, ``sampler``
            and ``passes`` may be functions and classes: ``metric(outputs, labels)`` gives a float,
            a dictionary or one value per sample; ``sampler(seed)`` an Optuna sampler.
    Returns:
        The study so far; ``exit_code`` 1 says that no trial stayed within ``max_drop``.
    Raises:
        CompilerError: anything that cannot be used, with what, where and how to fix it.
    Example:
        >>> import qsearch, tempfile
        >>> result = qsearch.launch("digits", trials=1, pool="inline", out=tempfile.mkdtemp())
        >>> result.best_params["weight_granularity"]
        'channel'
    """
    flags = {"model": model, "trials": trials, **_paths(settings)}
    objects: dict[str, Any] = {}
    for name, given in (("calib", calib), ("eval", eval)):
        if given is None or isinstance(given, str | os.PathLike):
            flags[name] = given
        else:
            objects[name] = given
    shown = make_progress(0) if progress is True else progress or SilentProgress()
    resolved = resolve(flags, config_file=None if config is None else Path(config))
    return launch_resolved(
        resolved,
        calib=objects.get("calib"),
        evaluation=objects.get("eval"),
        progress=shown,
        control=Control(callbacks, stop or threading.Event()),
    )


async def launch_async(model: PathLike, **options: Any) -> SearchResult:
    """``launch`` for programs with an event loop; cancelling it ends the search in good order.

    The search runs in a thread of its own; callbacks are called there.

    Example:
        >>> import asyncio, qsearch, tempfile
        >>> run = qsearch.launch_async("digits", trials=1, pool="inline", out=tempfile.mkdtemp())
        >>> len(asyncio.run(run).trials)
        1
    """
    stop = options.pop("stop", None) or threading.Event()
    search = asyncio.create_task(asyncio.to_thread(launch, model, stop=stop, **options))
    try:
        return await asyncio.shield(search)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.wait([search])
        raise


def launch_resolved(
    resolved: Resolved,
    *,
    calib: Any = None,
    evaluation: Any = None,
    progress: Progress,
    control: Control | None = None,
) -> SearchResult:
    """Like ``launch``, with settings that know where they came from."""
    from qsearch.search.launching import run_search

    return run_search(
        resolved, calib=calib, evaluation=evaluation, progress=progress, control=control
    )


def _paths(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Functions and classes among the settings as import paths, which every worker can follow."""
    from qsearch.import_path import path_of

    found = dict(settings)
    here = found.get("pool") == "inline"
    for name in ("metric", "sampler"):
        if callable(found.get(name)):
            found[name] = path_of(found[name], name, in_this_process=here or name == "sampler")
    if found.get("passes") is not None and not isinstance(found["passes"], str):
        found["passes"] = [path_of(one, "pass", in_this_process=True) for one in found["passes"]]
    return found


def plan_launch(resolved: Resolved) -> dict[str, Any]:
    """What ``launch`` would do, found out without writing or running anything."""
    from qsearch.search.launching import plan

    return plan(resolved)


def load(path: PathLike) -> QModule:
    """A module written by ``launch``, ``compile`` or ``QModule.save``.

    Raises:
        ArtifactError: the file is missing, damaged, or no .qmod.
    """
    from compiler.runtime.artifact import load_qmod

    return load_qmod(path)


def quantize(
    model: PathLike,
    calib: Any = None,
    qconfig: QConfig | Mapping[str, Any] | str | None = None,
    *,
    preprocess: str | None = None,
    dim: Mapping[str, int] | Sequence[str] = (),
    seed: int = 0,
) -> QModule:
    """Quantize with one configuration, without a search, in this process.

    Args:
        calib: as for ``launch``; None is synthetic inputs, and not needed for global_scale.
        qconfig: a QConfig is taken as it is; a mapping, ``"k=v,k=[v]"`` or the path of a
            qconfig.json changes ``QConfig.recommended()``, which is also what None means.
        dim: sizes of named dimensions.
        seed: of synthetic inputs.
    Raises:
        CompilerError: the model, data or configuration cannot be used.
    """
    from qsearch.single import quantize_once

    return quantize_once(model, calib, qconfig, preprocess=preprocess, dim=dim, seed=seed)


def compile_model(
    model: PathLike,
    calib: Any,
    qconfig: QConfig | Mapping[str, Any] | str | None,
    **options: Any,
) -> QModule:
    """What ``qsearch compile`` does: ``quantize`` under the name of the command."""
    return quantize(model, calib, qconfig, **options)


def doctor(
    model: PathLike,
    qconfig: QConfig | Mapping[str, Any] | str | None = None,
    *,
    dim: Mapping[str, int] | Sequence[str] = (),
    hw: str | None = None,
    space_out: PathLike | None = None,
) -> ModelDiagnosis:
    """Which operators of a model will be integer, which not, why, and what to do; needs no data.

    Args:
        qconfig: as for ``quantize``.
        dim: sizes of named dimensions.
        hw: an accelerator (opu_q, npu, a file) that the quantized model's groups are drawn for.
        space_out: file to write what ``launch`` would search, for ``space``.
    Raises:
        CompilerError: the model or configuration cannot be used; operators that cannot be imported
            are all named in one message.
    """
    from qsearch.diagnosis import diagnose_model

    return diagnose_model(model, qconfig, dim, hw, space_out)


def insight(
    model: PathLike,
    calib: Any = None,
    eval: Any = None,
    qconfig: QConfig | Mapping[str, Any] | str | None = None,
    *,
    samples: int = 16,
    preprocess: str | None = None,
    dim: Mapping[str, int] | Sequence[str] = (),
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> ModelInsight:
    """What every layer and every quantize point of one configuration costs.

    Args:
        calib: as for ``quantize``.
        eval: data to examine on; None takes the calibration data.
        qconfig: as for ``quantize``; the path of a .qmod means the configuration in it.
        samples: how many of the data are examined.
        dim: sizes of named dimensions.
        seed: of synthetic inputs.
        progress: called with (layers done, layers).
    Raises:
        CompilerError: the model, data or configuration cannot be used.
    """
    from qsearch.insight import insight_of

    return insight_of(
        model,
        calib,
        eval,
        qconfig,
        samples=samples,
        preprocess=preprocess,
        dim=dim,
        seed=seed,
        progress=progress,
    )


def run_module(path: PathLike, data: Any, *, preprocess: str | None = None) -> dict[str, Any]:
    """Run a .qmod on data, sample after sample, by the exact integer reference.

    Returns:
        ``top1`` (None without labels), ``n``, ``outputs_sha256`` over the little-endian float32
        outputs, and the time it took.
    """
    from qsearch.single import run_on_data

    return run_on_data(load(path), data, preprocess=preprocess)


def verify(path: PathLike, eval: Any = None, *, preprocess: str | None = None) -> Verification:
    """Derive again that a .qmod is integers only and cannot overflow, and test what it says.

    Args:
        path: a .qmod, or a run folder that holds one.
        eval: data on which two independent executors are compared and the module is scored; the
            samples in the file serve without it.
        preprocess: how an image becomes the input; the run folder's own where there is one.
    Raises:
        ArtifactError: the file cannot be read at all.
        DataError: the data does not fit the module.
    """
    from qsearch.verification import verify_file

    return verify_file(Path(path), eval, preprocess)


def export(
    path: PathLike, format: str = "c", out: PathLike = ".", *, name: str | None = None
) -> ExportedFiles:
    """Write a .qmod in a form that runs without qsearch.

    Args:
        path: a .qmod, or a run folder that holds one.
        format: "c", C99 source whose main.c checks itself; "onnx", exact integers; "grid", the same
            integers on float32 tensors; "float", a module that is not on integers.
        out: folder for the files; made if it is missing.
        name: base of the file names and C symbols; that of the module without it.
    Raises:
        SettingsError: unknown format.
        CodegenError: something in the module has no C form.
        OnnxExportError: something in the module has no such ONNX form.
    """
    from qsearch.export import export_file

    return export_file(Path(path), format, Path(out), name)


def show_text(path: PathLike, *, after: str | None = None, dim: Sequence[str] = ()) -> str:
    """IR text of an .onnx model or a .qmod, after some passes if they are named."""
    from qsearch.single import text_of

    return text_of(Path(path), after, dim)


def draw(
    path: PathLike, format: str = "html", *, after: str | None = None, dim: Sequence[str] = ()
) -> str:
    """A drawing of what ``show_text`` would print: "dot", "svg", or "html" to click through."""
    from qsearch.single import drawing_of

    return drawing_of(Path(path), format, after, dim)


def show_hardware(
    path: PathLike,
    hw: str,
    format: str = "text",
    *,
    matcher: str | None = None,
    after: str | None = None,
    dim: Sequence[str] = (),
) -> str:
    """The groups of a model on an accelerator: "text", "json", or a drawing.

    Args:
        path: .onnx (norms are folded first), .qmod or .relay.
        hw: a shipped description (opu, opu_q, npu) or the path of a TOML or JSON file.
        matcher: "greedy" (None) or "optimal".
        after: passes to run first, as text.
    Raises:
        CompilerError: the file or the description cannot be used.
    """
    from qsearch.hardware import show_hardware as shown

    return shown(Path(path), hw, matcher or "greedy", format, after, dim)


def diff(
    a: PathLike,
    b: PathLike,
    data: Any = None,
    *,
    samples: int = 4,
    rtol: float = 0.0,
    atol: float = 0.0,
    preprocess: str | None = None,
    dim: Mapping[str, int] | Sequence[str] = (),
) -> Difference:
    """Run two modules on the same inputs; which node differs first, and how far each is off.

    Args:
        a: .onnx, .qmod or .relay, taken as right.
        b: the one that is judged.
        data: as for ``launch``; None is synthetic inputs.
        samples: how many of the data are used.
        rtol: |a-b| <= atol + rtol·|a| counts as equal; zero asks for the same bits.
        atol: see ``rtol``.
    Raises:
        CompilerError: a file or the data cannot be used, or inputs and outputs do not match.
    """
    from qsearch.comparison import compare

    return compare(
        Path(a),
        Path(b),
        data,
        samples=samples,
        rtol=rtol,
        atol=atol,
        preprocess=preprocess,
        dim=dim,
    )


def status(
    folder: PathLike | None, *, storage: str | None = None, study: str | None = None
) -> list[dict[str, Any]]:
    """One row per study of a run folder or storage."""
    from qsearch.report.listing import study_rows

    return study_rows(_storage(folder, storage), study)


def trials(
    folder: PathLike | None,
    *,
    storage: str | None = None,
    study: str | None = None,
    states: Iterable[str] | None = None,
    stage: str | None = None,
    least: Mapping[str, float] | None = None,
    sort: str | None = None,
    limit: int | None = None,
) -> list[dict[str, Any]]:
    """One row per trial of a study, by number or as ``sort`` says.

    Args:
        states, stage: only these.
        least: metric name → least value.
        sort: column; ``-`` before it puts the greatest first.
        limit: rows at most.
    """
    from qsearch.report.listing import TrialFilter, trial_rows

    wanted = TrialFilter(tuple(states or ()), stage, dict(least or {}), sort, limit)
    return trial_rows(_storage(folder, storage), study, wanted)


def best(
    folder: PathLike | None, *, storage: str | None = None, study: str | None = None
) -> dict[str, Any]:
    """The winner of a study: scores, parameters, whole configuration, module.

    Raises:
        SearchFailedError: no trial was completed.
    """
    from qsearch.managing import best_of

    return best_of(_address(folder, storage, study))


def trial(
    folder: PathLike | None, number: int, *, storage: str | None = None, study: str | None = None
) -> dict[str, Any]:
    """All that is known of one trial: its row, configuration, failure, shards and logs."""
    from qsearch.managing import trial_of

    return trial_of(_address(folder, storage, study), number)


def compare(studies: Sequence[PathLike], *, storage: str | None = None) -> list[dict[str, Any]]:
    """One row per study beside one another; run folders, or names in ``storage``."""
    from qsearch.managing import StudyAddress, compared

    if storage is None:
        return compared([StudyAddress(Path(folder)) for folder in studies])
    return compared([StudyAddress(None, storage, str(name)) for name in studies])


def stop(
    folder: PathLike | None,
    *,
    storage: str | None = None,
    study: str | None = None,
    kind: CommandKind = "stop",
) -> tuple[str, int]:
    """Ask every driver of a study to stop in good order, to pause, or to resume.

    Returns:
        The study's name, and how many drivers are listening.
    """
    from qsearch.managing import command

    return command(_address(folder, storage, study), kind)


def delete(
    folder: PathLike | None,
    *,
    storage: str | None = None,
    study: str | None = None,
    force: bool = False,
) -> str:
    """Forget a study with all its trials; of a run folder also the files. The study's name.

    Raises:
        SettingsError: it is being searched, and ``force`` was not said.
    """
    from qsearch.managing import delete as delete_study

    return delete_study(_address(folder, storage, study), even_if_running=force)


def export_optuna(
    folder: PathLike | None,
    url: str,
    *,
    storage: str | None = None,
    study: str | None = None,
    name: str | None = None,
) -> tuple[str, int]:
    """Write a study into an Optuna storage; its name there, and how many trials.

    Raises:
        SettingsError: the name is taken there, or the storage cannot be used.
    """
    from qsearch.managing import export_optuna as write

    return write(_address(folder, storage, study), url, name)


def migrate_store(folder: PathLike | None, *, storage: str | None = None) -> tuple[str, str]:
    """Bring a store of an older version to the schema this version needs; both schemas.

    Raises:
        StoreError: there is no such store, or it is of a newer version.
    """
    from qsearch.store.engine import migrate

    return migrate(_storage(folder, storage))


def check_store(folder: PathLike | None, *, storage: str | None = None) -> tuple[str | None, str]:
    """The schema of a store (None: it holds no study), and the one this version needs."""
    from qsearch.store.engine import schema_version

    return schema_version(_storage(folder, storage))


def _address(folder: PathLike | None, storage: str | None, study: str | None) -> StudyAddress:
    from qsearch.managing import StudyAddress

    return StudyAddress(None if folder is None else Path(folder), storage, study)


def _storage(folder: PathLike | None, storage: str | None) -> str:
    return _address(folder, storage, None).url
