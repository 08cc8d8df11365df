"""The Python API: launch, load, quantize, and what the other commands call. CLI and dashboard go
no deeper than this file; what is about one model lies in ``modules``, about studies in ``studies``.

    import qsearch
    result = qsearch.launch("m.onnx", calib=arrays, eval=arrays, trials=16)
    outputs = result.best_module().run({"input": image})
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from qsearch.config import Resolved, resolve
from qsearch.modules import (
    compile_model,
    diff,
    doctor,
    draw,
    export,
    insight,
    keygen,
    load,
    quantize,
    run_module,
    show_hardware,
    show_text,
    verify,
)
from qsearch.progress import Progress, SilentProgress, make_progress
from qsearch.search.context import Callback, Control
from qsearch.search.result import SearchResult
from qsearch.studies import (
    best,
    check_store,
    compare,
    delete,
    export_optuna,
    find_study,
    migrate_store,
    status,
    stop,
    trial,
    trials,
)
from qsearch.watching import (
    dashboard,
    dashboard_beside,
    report,
)

__all__ = [
    "best",
    "check_store",
    "compare",
    "compile_model",
    "dashboard",
    "dashboard_beside",
    "delete",
    "diff",
    "doctor",
    "draw",
    "export",
    "export_optuna",
    "find_study",
    "insight",
    "keygen",
    "launch",
    "launch_async",
    "launch_resolved",
    "load",
    "migrate_store",
    "plan_launch",
    "quantize",
    "report",
    "run_module",
    "show_hardware",
    "show_text",
    "status",
    "stop",
    "trial",
    "trials",
    "verify",
]

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
            arrays, a tuple (inputs, labels), an iterable of mappings or (inputs, labels) pairs
            such as a torch DataLoader, a Hugging Face data set, ``qsearch.Dataset(items,
            transform_fn)``, a CalibrationDataReader, or a callable that gives one.
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
    from qsearch.search.launch import run_search

    return run_search(
        resolved, calib=calib, evaluation=evaluation, progress=progress, control=control
    )


def plan_launch(resolved: Resolved) -> dict[str, Any]:
    """What ``launch`` would do, found out without writing or running anything."""
    from qsearch.search.launch import plan

    return plan(resolved)


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
