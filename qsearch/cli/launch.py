"""``qsearch launch``: search, and write the best module."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from qsearch.cli.command import (
    Option,
    command,
    find_user_code,
    given_verbosity,
    named_model,
    with_default,
)
from qsearch.cli.output import wrapped
from qsearch.exit_codes import EXIT_INTERRUPTED, EXIT_TARGET_MISSED
from qsearch.settings.launch_settings import DASHBOARD_PORT, Flag, MaxDrop, Settings
from workers.metrics.size import LITERT, QDQ

if TYPE_CHECKING:
    from qsearch.settings.parameters import (
        Configuration,
        Dims,
        Model,
    )


def setting_options(without: Collection[str] = ()) -> Iterator[click.Option]:
    """Make an option of every setting that has a flag, with its help, default and legal words.

    Each is also a key of ``-c`` files and a QSEARCH_ variable.

    Args:
        without: settings that the command does not take.
    """
    for name, field in Settings.model_fields.items():
        key = field.alias or name
        flag = next((held for held in field.metadata if isinstance(held, Flag)), None)
        if key in without or flag is None:
            continue
        if isinstance(field.default, MaxDrop):
            default = str(field.default)
        else:
            default = field.default
        spellings = (f"--{key.replace('_', '-')}", *flag.also, name)
        text = with_default(field.description or "", default)
        own: dict[str, Any] = {"help": text, "default": None, "multiple": flag.repeatable}
        if flag.metavar:
            own["metavar"] = flag.metavar
            own["shell_complete"] = partial(_words_of, flag)
        else:
            own["is_flag"] = True
        yield Option(spellings, flag.panel, flag.everyday, **own)


def _words_of(flag: Flag, _ctx: Any, _param: Any, incomplete: str) -> list[str]:
    words = flag.words or flag.metavar.split("|")
    return [word for word in words if word.islower() and word.startswith(incomplete)]


def given_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a command line gave, by their keys, without those it left out."""
    names = {name: field.alias or name for name, field in Settings.model_fields.items()}
    return {names[name]: value for name, value in given.items() if value not in (None, ())}


@command(more=setting_options(), own_code=False)
def launch_command(
    model: Model,
    dim: Dims = (),
    dashboard: bool = False,
    config: Configuration = None,
    **given: Any,
) -> int:
    """Search for the best quantization of a model. Run the same command again to resume.

    Exit codes: 0 the winner keeps the limits, 1 no trial keeps them (all files are written).

    Args:
        dashboard: show the search in a browser while it runs
        config: yaml, toml or json with the names of the options
    """
    from qsearch.process import interrupts_kept
    from qsearch.settings.config import resolve

    # An orderly stop, like Ctrl-C: running trials return to the queue, the best is written.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    find_user_code()
    flags = given_settings({**given, "model": model, "dim": dim})
    flags["verbosity"] = given_verbosity()
    resolved = resolve(flags, config_file=config)
    named_model(resolved.settings.model or None)
    with interrupts_kept():
        from qsearch.run.progress import make_progress
        from qsearch.search.launch import plan, run_search  # imports all that the search needs
        from qsearch.search.result import INDENT

    settings = resolved.settings
    if settings.dry_run:
        planned = plan(resolved)
        print(json.dumps(planned) if settings.as_json else _lines(planned))
        return 0
    with dashboard_beside(settings) if dashboard else contextlib.nullcontext():
        progress = make_progress(settings.verbosity)
        result = run_search(resolved, progress=progress)
    if settings.as_json:
        print(json.dumps(result.summary))
        return int(result.exit_code)
    for line in result.text().splitlines():
        print(line if line.lstrip().startswith("qsearch ") else wrapped(line, INDENT))
    if settings.verbosity >= 0:
        print(after_launch(result.folder, result.summary, result.exit_code, settings))
    return int(result.exit_code)


def _lines(plan: Mapping[str, object]) -> str:
    width = max(len(key) for key in plan)
    lines = (wrapped(f"{key:<{width}}  {value}", " " * (width + 2)) for key, value in plan.items())
    return "\n".join(lines)


# What can be done next, as command lines to copy ------------------------------------------------


def after_launch(
    folder: Path, summary: Mapping[str, Any], exit_code: int, settings: Settings
) -> str:
    """Command lines in the columns of ``SearchResult.text``, one in each line.

    Args:
        folder: the run folder.
        summary: of the result.
        exit_code: a missed target asks for a look at the layers, an interrupt for going on.
        settings: of the search: its data and its storage.
    """
    from qsearch.run.run_folder import RunFolder

    place = shlex.quote(str(folder))
    steps = []
    if exit_code == EXIT_INTERRUPTED:
        config = shlex.quote(str(RunFolder(folder).config))
        steps.append(f"qsearch launch -c {config}  # goes on from here")
    elif summary["module"]:
        steps.append(f"qsearch verify {place}")
        if exit_code == EXIT_TARGET_MISSED:
            steps.append(_insight_step(settings, str(summary["module"])))
        else:
            conversions = summary["best"]["qconfig"]["partition_conversions"]
            steps.append(export_step(place, conversions, settings.for_))
    steps.append(_dashboard_step(place, settings))
    return "next      " + "\n          ".join(steps)


def _insight_step(settings: Settings, module: str) -> str:
    """Return the command that shows the layers which lose accuracy, on the data of the search."""
    given = {
        "--calib": settings.calib,
        "--eval": settings.eval,
        "--preprocess": settings.preprocess,
        "--qconfig": module,
    }
    words = ["qsearch", "insight", settings.model]
    words += [word for name, value in given.items() if value for word in (name, value)]
    words += [word for name, size in settings.dim for word in ("--dim", f"{name}={size}")]
    return f"{shlex.join(words)}  # which layers lose accuracy"


def _dashboard_step(place: str, settings: Settings) -> str:
    """Return the command that shows the study; a password is neither printed nor kept."""
    if settings.storage is None:
        return f"qsearch dashboard {place}"
    if settings.to_dict()["storage"] == settings.storage:
        return f"qsearch dashboard --storage {shlex.quote(settings.storage)}"
    return "qsearch dashboard  # where QSEARCH_STORAGE holds the URL of this storage"


def export_step(place: str, conversions: str, form: str = "c") -> str:
    """Return the command that exports a module.

    Args:
        conversions: its configuration's partition_conversions.
        form: that the search was for; a .qmod, and what a core runs, is exported as C.
    """
    told = {**dict.fromkeys(LITERT, "tflite"), QDQ: QDQ}
    mixed = {"enabled": "onnx", "disabled": "float"}
    return f"qsearch export {place} --format {mixed.get(conversions) or told.get(form, 'c')}"


@contextlib.contextmanager
def dashboard_beside(settings: Settings) -> Iterator[None]:
    """A dashboard of the search that the block runs, in a process that ends with it.

    It listens on this machine only, on port 8090 or any that is free, and says where on stderr.
    """
    from qsearch.opening.model_file import find_model
    from qsearch.search.launch import run_folder

    folder = run_folder(settings, find_model(settings.model)).path
    folder.mkdir(parents=True, exist_ok=True)
    environment = {k: v for k, v in os.environ.items() if k != "QSEARCH_STORAGE"}
    words = [str(folder)]
    if settings.storage is not None:
        # Others on this machine see command lines, not environments.
        environment["QSEARCH_STORAGE"] = settings.storage
        words = []
    port = str(_free_port())
    command = [sys.executable, "-m", "qsearch", "dashboard", *words, "--port", port]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment)
    print(f"dashboard  http://127.0.0.1:{port}/", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    """The usual port, or any where another process has it."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DASHBOARD_PORT))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
