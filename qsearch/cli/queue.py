"""Commands of the users of a server: submit a study, wait for it, and see the queue."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

from qsearch.cli.command import command, named_model
from qsearch.cli.launch import given_settings, setting_options
from qsearch.cli.output import table
from qsearch.errors import SearchFailedError, SettingsError
from qsearch.exit_codes import EXIT_OK, EXIT_TARGET_MISSED

if TYPE_CHECKING:
    from qsearch.server.client import Client
    from qsearch.settings.parameters import (
        Configuration,
        Dims,
        Json,
        Model,
        Name,
        Out,
        ServerUrl,
    )

_NOT_SENT: Final = (
    "passes",
    "import",
    "address",
    "out",
    "storage",
    "artifacts",
    "sign",
    "fresh",
    "dry_run",
    "json",
    "keep_failed",
    "track",
    "try",
)
"""Settings of launch that ``submit`` does not take: places of this machine, and own code."""


@command(more=setting_options(without=_NOT_SENT), own_code=False)
def submit_command(
    model: Model,
    dim: Dims = (),
    *,
    server: ServerUrl,
    wait: bool = False,
    out: Out = None,
    config: Configuration = None,
    as_json: Json = False,
    **given: Any,
) -> int:
    """Queue a study on a server; run it again to resume. A server runs no code of yours.

    Model and data are uploaded once. With --wait the exit codes are those of launch.

    Args:
        wait: wait until the study ends
        out: wait, then download and verify the module: m.qmod
        config: yaml, toml or json with the names of the options
        as_json: print the job as one JSON object
    """
    from qsearch.server.client import Client
    from qsearch.server.packing import check_target
    from qsearch.settings.config import resolve

    if out is not None:
        check_target(out)
    flags = given_settings({**given, "model": model, "dim": dim})
    told = resolve(flags, config_file=config).settings.model
    flags.pop("model", None)
    model = named_model(told or None)
    study = flags.pop("study", None)
    client = Client(server)
    job = client.submit(model, study=study, config=config, **flags)
    name = job["name"]
    if not (wait or out):
        print(json.dumps(job) if as_json else _submitted(client, job))
        return EXIT_OK
    print(_stands(client, job), file=sys.stderr)
    try:
        job = client.wait(name, told=_tell)
    except KeyboardInterrupt:
        end = f"qsearch queue {name} --cancel --server {client.url}"
        print(f"{name} goes on; end it with `{end}`", file=sys.stderr)
        raise
    if as_json:
        print(json.dumps(job))
    return _finish(client, job, out, quiet=as_json)


def _place(job: dict[str, Any]) -> str:
    if job["position"]:
        return f", place {job['position']}"
    return ""


def _stands(client: Client, job: dict[str, Any]) -> str:
    """Describe the place of a job, and the event that it waits for."""
    told = f"{job['state']:<10} {job['name']}{_place(job)}"
    if job["state"] != "queued":
        return told
    running = [f"{o['name']} ({o['owner']})" for o in client.queue() if o["state"] == "running"]
    if running:
        return f"{told}; running: {', '.join(running)}"
    return told


def _submitted(client: Client, job: dict[str, Any]) -> str:
    return (
        f"{_stands(client, job)}\n"
        f"next       qsearch queue --server {client.url}\n"
        f"           qsearch best {job['name']} --server {client.url} -o {job['name']}.qmod"
    )


def _tell(job: dict[str, Any], finished: int) -> None:
    print(f"{job['state']}{_place(job)}, {finished} of {job['trials']} trials", file=sys.stderr)


def _finish(client: Client, job: dict[str, Any], out: Out, quiet: bool) -> int:
    """Print how a job ended; its exit code."""
    from qsearch.cli.studies import best_on_server, print_best

    if job["state"] == "failed":
        failure = SearchFailedError(**(job["error"] or {"what": "the search failed"}))
        print(f"error: {failure}", file=sys.stderr)
        return int(job["exit_code"] or failure.exit_code)
    if job["error"] is None:
        why = ""
    else:
        why = f": {job['error']['what']}"
    if job["state"] == "cancelled" or job["study"] is None:
        print(f"{job['state']:<10} {job['name']}{why}", file=sys.stderr)
    if job["study"] is None:
        return int(job["exit_code"] or EXIT_TARGET_MISSED)
    best = best_on_server(client, job["name"], None, out)
    if not quiet:
        print_best(best)
    return int(job["exit_code"] or (EXIT_OK if job["state"] == "done" else EXIT_TARGET_MISSED))


@command(own_code=False)
def queue_command(
    name: Name | None = None,
    *,
    server: ServerUrl,
    cancel: bool = False,
    uploads: bool = False,
    forget: str | None = None,
    as_json: Json = False,
) -> None:
    """List the studies of a server: running, waiting in their order, and recently ended.

    Args:
        name: only this study (all)
        cancel: end the study; a running study writes the best module so far
        uploads: list the files that you uploaded instead
        forget: delete an upload that no unfinished study needs
        as_json: print one JSON array
    """
    from qsearch.server.client import Client

    if name is None and cancel:
        raise SettingsError("which study?", where="queue", fix="qsearch queue NAME --cancel")
    client = Client(server)
    if forget is not None:
        client.forget_upload(forget.partition(".")[0])
    row: Any = _row
    if forget is not None or uploads:
        jobs = client.uploads()
        row = dict
    elif name is None:
        jobs = client.queue()
    elif cancel:
        jobs = [client.cancel(name)]
    else:
        jobs = [client.job(name)]
    print(json.dumps(jobs) if as_json else table([row(job) for job in jobs]))
    for why in [job.get("error") for job in jobs if name is not None and not as_json]:
        if why is not None:
            print(SearchFailedError(**why), file=sys.stderr)


def _row(job: dict[str, Any]) -> dict[str, Any]:
    shown = {name: job[name] for name in ("name", "owner", "state", "position")}
    why = job["error"]
    if job["cancelled"] and job["state"] == "running":
        note = "cancelling"
    else:
        note = None
    finished = job.get("finished")
    return {
        **shown,
        "trials": job["trials"] if finished is None else f"{finished}/{job['trials']}",
        "seconds": round(job["seconds"]),
        "note": note if why is None else why["what"],
    }
