"""Commands about servers: the dashboard, the server of a queue, and what its users do."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from qsearch.cli import options
from qsearch.cli.launch import given_settings, setting_options
from qsearch.cli.options import OUTPUT, STUDY, Choice, Command, argument, grouped, option
from qsearch.cli.output import table
from qsearch.process import EXIT_OK, EXIT_TARGET_MISSED
from qsearch.settings import POOLS

if TYPE_CHECKING:
    from qsearch.server.client import Client
    from qsearch.server.submission import ServerOptions
    from qsearch.server.tokens import May, Tokens

Serve = Callable[..., None]
"""``serve(folder, storage, server, tokens)``: serves until it is interrupted."""

SERVER: Final = "Server"
SEARCHES: Final = "Searches"
QUOTA: Final = "Quota"
_NOT_SENT: Final = (
    *("passes", "import", "address", "out", "storage", "artifacts", "sign"),
    *("fresh", "dry_run", "json"),
)
"""Settings of launch that ``submit`` does not take: places of this machine, and own code."""
_DASHBOARD_STUDIES: Final = 4
"""Searches that a dashboard with --allow-launch runs at a time."""


def _make_serve(
    host: str, port: int, token: str | None, allow_host: tuple[str, ...], max_upload: str
) -> Serve:
    def serve(
        folder: str | None,
        storage: str | None,
        server: ServerOptions | None,
        tokens: Tokens | None = None,
    ) -> None:
        from qsearch.dashboard.security import Policy
        from qsearch.dashboard.server import dashboard
        from qsearch.process import logging_to

        with logging_to(options.given_verbosity() or 0):
            policy = Policy(
                host=host,
                token=token or os.environ.get("QSEARCH_TOKEN") or None,
                allowed_hosts=tuple(name.lower() for name in allow_host),
                max_upload_bytes=_bytes(max_upload, "--max-upload"),
                tokens=tokens,
            )
            dashboard(folder, storage=storage, port=port, policy=policy, server=server)

    return serve


def _bytes(size: str, where: str) -> int:
    from qsearch.errors import SettingsError
    from qsearch.settings import parse_bytes

    try:
        return parse_bytes(size)
    except ValueError as error:
        raise SettingsError(f"{size!r} is no size", where=where, fix="256M, 2G") from error


_on_server: Final = partial(option, panel=SERVER)
_on_searches: Final = partial(option, panel=SEARCHES)
_on_quota: Final = partial(option, panel=QUOTA)

listening: Final = grouped(
    "serve",
    _make_serve,
    _on_server("--host", metavar="H", default="127.0.0.1", help="listen address (127.0.0.1)"),
    _on_server("--port", metavar="P", type=int, default=8090, help="port; 0: a free one (8090)"),
    _on_server(
        "--token",
        metavar="T",
        help="token that clients must send (QSEARCH_TOKEN, which no process list shows)",
    ),
    _on_server(
        "--allow-host",
        metavar="NAME",
        multiple=True,
        help="another host name of this server; repeatable",
    ),
    _on_server("--max-upload", metavar="SIZE", default="256M", help="largest upload (256M)"),
)
"""Where a server listens, and whom it answers: the parameter ``serve``."""


@click.command(cls=Command)
@argument("folder", "DIR", "a run folder, or a folder of them (runs)", required=False)
@option("--storage", metavar="URL", help="show this storage too (QSEARCH_STORAGE)", panel=STUDY)
@listening
@_on_searches("--allow-launch", help="allow users to start searches from the page")
@_on_searches(
    "--launch-pool",
    type=Choice(POOLS),
    default="process",
    help="pool of these searches (process)",
)
@options.verbosity
def dashboard_command(
    folder: str | None,
    storage: str | None,
    serve: Serve,
    allow_launch: bool,
    launch_pool: str,
) -> int:
    """Show studies in a browser, live, until interrupted."""
    from qsearch.run_folder import RUNS
    from qsearch.server.submission import ServerOptions

    server = None
    if allow_launch:
        storage = storage or os.environ.get("QSEARCH_STORAGE") or None
        server = ServerOptions(
            root=Path(folder or RUNS),
            storage=storage,
            # SQLite admits one driver to a database.
            max_studies=1 if (storage or "").startswith("sqlite") else _DASHBOARD_STUDIES,
            workers=_cores(),
            pools=(launch_pool,),
        )
    serve(folder, storage, server)
    return EXIT_OK


def _searches(
    max_studies: int | None, workers: int | None, pool: tuple[str, ...], address: str | None
) -> dict[str, Any]:
    """How searches run, as fields of ``ServerOptions``.

    Raises:
        SettingsError: an address without the pool ray.
    """
    from qsearch.errors import SettingsError

    if address is not None and "ray" not in pool:
        raise SettingsError(
            "only the pool ray joins a cluster", where="--address", fix="add --pool ray"
        )
    most = max_studies or 1
    return {
        "max_studies": most,
        "workers": workers or max(1, _cores() // most),
        "pools": tuple(dict.fromkeys(pool)) or ("process",),
        "address": address,
    }


@click.command(cls=Command)
@argument(
    "folder", "DIR", "folder for studies and uploads; created if missing (runs)", required=False
)
@option(
    "--storage",
    metavar="URL",
    help="postgresql://… for the queue and all studies (QSEARCH_STORAGE, else files in DIR)",
    panel=STUDY,
)
@listening
@_on_server(
    "--tokens", metavar="FILE", help="file with the users and their tokens (DIR/tokens.json)"
)
@grouped(
    "searches",
    _searches,
    _on_searches(
        "--max-studies", help="number of studies that run at the same time (1)", **options.COUNT
    ),
    _on_searches(
        "--workers",
        help="number of workers per study, at most (cores / --max-studies)",
        **options.COUNT,
    ),
    _on_searches(
        "--pool",
        type=Choice(("process", "ray")),
        multiple=True,
        help="allowed pool; repeatable, the first one is the default (process)",
    ),
    _on_searches("--address", metavar="A", help="address of the Ray cluster for --pool ray"),
)
@options.verbosity
def serve_command(
    folder: str | None,
    storage: str | None,
    tokens: str | None,
    searches: dict[str, Any],
    serve: Serve,
) -> int:
    """Run a server: users submit studies to its queue. Ctrl-C ends it.

    \b
    qsearch token ann --may submit       create a token for each user
    qsearch serve --host 0.0.0.0         serve the page and the API on port 8090
    qsearch submit --server URL …        submit a study from any machine

    Without tokens the server answers this machine only. Searches continue when the server ends;
    the next start finds them.
    """
    from qsearch.errors import SettingsError
    from qsearch.run_folder import RUNS
    from qsearch.server.submission import ServerOptions
    from qsearch.server.tokens import TOKENS_FILE, Tokens

    root = Path(folder or RUNS)
    file = Path(tokens) if tokens else root / TOKENS_FILE
    if tokens and not file.is_file():
        raise SettingsError(
            f"there is no file {tokens}",
            where="--tokens",
            fix=f"qsearch token NAME --tokens {tokens}",
        )
    root.mkdir(parents=True, exist_ok=True)
    storage = storage or os.environ.get("QSEARCH_STORAGE") or None
    server = ServerOptions(root=root, storage=storage, **searches)
    known = Tokens(file)
    known.users()  # a file that cannot be read is told now
    serve(str(root), storage, server, known)
    return EXIT_OK


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# Users ------------------------------------------------------------------------------------------


def _limits(
    max_bytes: str | None, max_trials: str | None, max_seconds: str | None
) -> dict[str, float | None]:
    from qsearch.server.tokens import limits_of

    return limits_of({"max_bytes": max_bytes, "max_trials": max_trials, "max_seconds": max_seconds})


@click.command(cls=Command)
@argument("name", "NAME", "name of the user")
@argument("folder", "DIR", "folder of the server (runs)", required=False)
@option("--tokens", metavar="FILE", help="file with the tokens (DIR/tokens.json)", panel=SERVER)
@option(
    "--may",
    type=Choice(("read", "submit")),
    help="read: look at studies; submit: also submit studies and change your own (submit)",
)
@option("--remove", help="remove the token at once")
@option("--keep-token", help="change --may and the quota only; the token stays valid")
@grouped(
    "limits",
    _limits,
    _on_quota("--max-bytes", metavar="B", help="largest size of all uploads: 2G (no limit)"),
    _on_quota("--max-trials", metavar="N", help="trials in 24 hours (no limit)"),
    _on_quota("--max-seconds", metavar="N", help="running time in 24 hours (no limit)"),
)
@options.verbosity
def token_command(
    name: str,
    folder: str | None,
    tokens: str | None,
    may: May | None,
    remove: bool,
    keep_token: bool,
    limits: dict[str, Any],
) -> int:
    """Create the token of a user of a server and print it. The file keeps only its hash.

    A running server reads the file at once. A user who has a token keeps the rights and limits that
    are not given; `--max-trials none` removes a limit.
    """
    from qsearch.run_folder import RUNS
    from qsearch.server.tokens import TOKENS_FILE, Quota, Tokens

    users = Tokens(Path(tokens) if tokens else Path(folder or RUNS) / TOKENS_FILE)
    if remove:
        users.remove(name)
        print(f"removed: {name}")
    elif keep_token:
        print(f"{users.change(name, may, limits)}; the token is as it was")
    else:
        known = users.users().get(name)
        had, could = (known.quota, known.may) if known else (Quota(), "submit")
        print(users.add(name, may or could, replace(had, **limits)))
        earlier = "; the earlier token is invalid now" if known else ""
        told = f"{users.users()[name]}{earlier}; this is shown once. Written: {users.path}"
        print(f"{told}. For the client:\nexport QSEARCH_TOKEN=…", file=sys.stderr)
    return EXIT_OK


def server_option(required: bool = False) -> options.Decorator:
    """Which server."""
    return option(
        "--server",
        metavar="URL",
        required=required,
        help="URL of `qsearch serve`; the token is in QSEARCH_TOKEN",
        panel=SERVER,
    )


@click.command(cls=Command)
@options.model
@options.dims
@server_option(required=True)
@option("--priority", default=0, help="-10 to 10; greater runs first (0)", **options.PRIORITY)
@option("--wait", help="wait until the study ends")
@options.output(help="wait, then download and verify the module: m.qmod")
@options.stacked(*setting_options(without=_NOT_SENT))
@option("-c", "--config", metavar="FILE", help="yaml, toml or json with the names of the options")
@option("--json", "as_json", help="print the job as one JSON object", panel=OUTPUT)
@options.verbosity
def submit_command(
    server: str,
    priority: int,
    wait: bool,
    out: str | None,
    config: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Queue a study on a server. The options are those of launch; run it again to resume.

    The model and the data are uploaded unless the server has them already. A server runs no code of
    yours; launch does. With --wait the exit codes are those of launch.
    """
    from qsearch.config import resolve
    from qsearch.server.client import Client

    flags = given_settings(given)
    told = resolve(flags, config_file=config).settings.model
    flags.pop("model", None)
    model = options.named_model(told or None)
    study = flags.pop("study", None)
    client = Client(server)
    job = client.submit(model, study=study, priority=priority, config=config, **flags)
    name = job["name"]
    if not (wait or out):
        print(json.dumps(job) if as_json else _submitted(job, client.url))
        return EXIT_OK
    print(f"{job['state']:<10} {name}", file=sys.stderr)
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
    return f", place {job['position']}" if job["position"] else ""


def _submitted(job: dict[str, Any], url: str) -> str:
    return (
        f"{job['state']:<10} {job['name']}{_place(job)}\n"
        f"next       qsearch queue --server {url}\n"
        f"           qsearch best {job['name']} --server {url} -o {job['name']}.qmod"
    )


def _tell(job: dict[str, Any], finished: int) -> None:
    print(f"{job['state']}{_place(job)}, {finished} of {job['trials']} trials", file=sys.stderr)


def _finish(client: Client, job: dict[str, Any], out: str | None, quiet: bool) -> int:
    """Print how a job ended; its exit code."""
    from qsearch.cli.studies import print_best
    from qsearch.errors import SearchFailedError

    if job["state"] == "failed":
        error = job["error"] or {"what": "the search failed", "where": None, "fix": None}
        found = SearchFailedError(error["what"], where=error["where"], fix=error["fix"])
        print(f"error: {found}", file=sys.stderr)
        return int(job["exit_code"] or found.exit_code)
    if job["study"] is None:
        print(f"{job['state']}: {job['name']}")
        return EXIT_TARGET_MISSED
    best = client.best(job["name"])
    if out is not None:
        proof = client.download(job["name"], out)
        best["module"] = f"{out} ({'proved here' if proof.proved else 'not integers only'})"
    if not quiet:
        print_best(best)
    return int(job["exit_code"] or (EXIT_OK if job["state"] == "done" else EXIT_TARGET_MISSED))


@click.command(cls=Command)
@argument("name", "NAME", "only this study (all)", required=False)
@server_option(required=True)
@option("--cancel", help="end the study; a running study writes the best module so far")
@option("--priority", help="set it: -10 to 10; greater runs first", **options.PRIORITY)
@option("--uploads", help="list the files that you uploaded instead")
@option("--forget", metavar="UPLOAD", help="delete an upload that no unfinished study needs")
@option("--json", "as_json", help="print one JSON array", panel=OUTPUT)
@options.verbosity
def queue_command(name: str | None, server: str, as_json: bool, **asked: Any) -> int:
    """List the studies of a server: running, waiting in their order, and recently ended."""
    from qsearch.errors import SettingsError
    from qsearch.server.client import Client

    priority, forget = asked["priority"], asked["forget"]
    if name is None and (asked["cancel"] or priority is not None):
        raise SettingsError("which study?", where="queue", fix="qsearch queue NAME --cancel")
    client = Client(server)
    if forget is not None:
        client.forget_upload(forget.partition(".")[0])
    row: Any = _row
    if forget is not None or asked["uploads"]:
        jobs, row = client.uploads(), dict
    elif name is None:
        jobs = client.queue()
    elif asked["cancel"]:
        jobs = [client.cancel(name)]
    elif priority is not None:
        jobs = [client.set_priority(name, priority)]
    else:
        jobs = [client.job(name)]
    print(json.dumps(jobs) if as_json else table([row(job) for job in jobs]))
    return EXIT_OK


def _row(job: dict[str, Any]) -> dict[str, Any]:
    shown = {name: job[name] for name in ("name", "owner", "state", "position", "priority")}
    why = job["error"]
    note = "cancelling" if job["cancelled"] and job["state"] == "running" else None
    finished = job.get("finished")
    return {
        **shown,
        "trials": job["trials"] if finished is None else f"{finished}/{job['trials']}",
        "seconds": round(job["seconds"]),
        "note": note if why is None else why["what"],
    }
