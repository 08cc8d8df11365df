"""Commands that serve: the dashboard, the server of a queue, and its users."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from qsearch.cli.command import command, given_verbosity
from qsearch.errors import SettingsError
from qsearch.run.run_folder import RUNS
from qsearch.server.tokens import LIST, TOKENS_FILE, Tokens
from qsearch.settings.launch_settings import parse_bytes

if TYPE_CHECKING:
    from qsearch.server.submission import ServerOptions
    from qsearch.settings.parameters import (
        Count,
        Folder,
        Name,
        Number,
        PathLike,
        Pools,
        Storage,
        Words,
    )

LEAST_MEMORY: Final = 512 << 20
_DASHBOARD_STUDIES: Final = 4
"""Searches that a dashboard with --allow-launch runs at a time."""


def _serve(
    root: Path,
    folder_storage: str | None,
    server: ServerOptions | None,
    tokens: Tokens | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8090,
    token: str | None = None,
    allow_host: Words = (),
    max_upload: str = "256M",
) -> None:
    """Serve until interrupted.

    Args:
        host: listen address
        port: port; 0: a free one
        token: token that clients must send (QSEARCH_TOKEN, which no process list shows)
        allow_host: another host name of this server; repeatable
        max_upload: largest upload
    """
    from qsearch.dashboard.app import DashboardOptions
    from qsearch.dashboard.security import Policy
    from qsearch.dashboard.server import serve
    from qsearch.process import logging_to

    with logging_to(given_verbosity() or 0):
        policy = Policy(
            host=host,
            token=token or os.environ.get("QSEARCH_TOKEN") or None,
            allowed_hosts=tuple(name.lower() for name in allow_host),
            max_upload_bytes=_bytes(max_upload, "--max-upload"),
            tokens=tokens,
        )
        serve(DashboardOptions(root, folder_storage, policy, server), port)


def _bytes(size: str, where: str) -> int:
    try:
        return parse_bytes(size)
    except ValueError as error:
        raise SettingsError(f"{size!r} is no size", where=where, fix="256M, 2G") from error


@command(beside="_serve", own_code=False)
def dashboard_command(
    folder: Folder = None,
    storage: Storage = None,
    allow_launch: bool = False,
    launch_pool: Literal["auto", "process", "ray", "inline"] = "process",
    **listens: Any,
) -> None:
    """Show studies in a browser, live, until interrupted.

    Args:
        folder: a run folder, or a folder of them (runs)
        storage: show this storage too (QSEARCH_STORAGE)
        allow_launch: allow users to start searches from the page
        launch_pool: pool of these searches
    """
    from qsearch.server.submission import ServerOptions

    if folder is not None and not Path(folder).is_dir():
        found = Path(folder).exists()
        raise SettingsError(
            f"{folder} is a file, not a folder" if found else f"there is no folder {folder}",
            where="DIR",
            fix="give a run folder, a folder of run folders, or --storage",
        )
    root = Path(folder or RUNS)
    server = None
    if storage is None and (folder is None or allow_launch):
        storage = os.environ.get("QSEARCH_STORAGE") or None
    if allow_launch:
        server = ServerOptions(
            root=root,
            storage=storage,
            # SQLite admits one driver to a database.
            max_studies=1 if (storage or "").startswith("sqlite") else _DASHBOARD_STUDIES,
            workers=_cores(),
            pools=(launch_pool,),
        )
    _serve(root, storage, server, **listens)


@command(beside="_serve", own_code=False)
def serve_command(
    folder: Folder = None,
    storage: Storage = None,
    tokens: PathLike | None = None,
    max_studies: Count = 1,
    workers: Count | None = None,
    pool: Pools = (),
    address: str | None = None,
    max_memory: str | None = None,
    **listens: Any,
) -> None:
    """Run a server: users submit studies to its queue. Ctrl-C ends it.

    \b
    qsearch token ann --may submit       create a token for each user
    qsearch serve --host 0.0.0.0         serve the page and the API on port 8090
    qsearch submit --server URL …        submit a study from any machine

    Without tokens the server answers this machine only. Searches continue when the server ends;
    the next start finds them.

    Args:
        folder: folder for studies and uploads; created if missing (runs)
        storage: postgresql://… for the queue and all studies (QSEARCH_STORAGE, else files in DIR)
        tokens: file with the users and their tokens (DIR/tokens.json)
        max_studies: number of studies that run at the same time
        workers: number of workers per study, at most (cores / --max-studies)
        pool: allowed pool; repeatable, the first one is the default (process)
        address: address of the Ray cluster for --pool ray
        max_memory: memory of each process of a study on this machine: 2G (no limit)
    """
    from qsearch.server.submission import ServerOptions

    if address is not None and "ray" not in pool:
        raise SettingsError(
            "only the pool ray joins a cluster", where="--address", fix="add --pool ray"
        )
    if max_memory is None:
        memory = None
    else:
        memory = _bytes(max_memory, "--max-memory")
    if memory is not None and memory < LEAST_MEMORY:
        least = f"{LEAST_MEMORY >> 20}M"
        raise SettingsError(
            f"no driver starts with {max_memory}", where="--max-memory", fix=f"{least} or more"
        )
    root = Path(folder or RUNS)
    file = Path(tokens) if tokens else root / TOKENS_FILE
    if tokens and not file.is_file():
        raise SettingsError(
            f"there is no file {tokens}",
            where="--tokens",
            fix=f"qsearch token NAME --tokens {tokens}",
        )
    if root.exists() and not root.is_dir():
        raise SettingsError(f"{root} is no folder", where="DIR", fix="name a folder, or a new one")
    root.mkdir(parents=True, exist_ok=True)
    storage = storage or os.environ.get("QSEARCH_STORAGE") or None
    server = ServerOptions(
        root=root,
        storage=storage,
        max_studies=max_studies,
        workers=workers or max(1, _cores() // max_studies),
        pools=tuple(dict.fromkeys(pool)) or ("process",),
        address=address,
        max_memory=memory,
    )
    known = Tokens(file)
    known.users()  # a file that cannot be read is told now
    _serve(root, storage, server, known, **listens)


def _cores() -> int:
    return len(os.sched_getaffinity(0))


# Users ------------------------------------------------------------------------------------------


@command(own_code=False)
def token_command(
    name: Name,
    folder: Folder = None,
    tokens: PathLike | None = None,
    may: Literal["read", "submit"] | None = None,
    remove: bool = False,
    keep_token: bool = False,
    max_studies: Number | None = None,
) -> None:
    """Create the token of a user of a server and print it. The file keeps only its hash.

    A running server reads the file at once. A user who has a token keeps the rights and the limit
    that are not given. `qsearch token list` prints the users, their rights and limits.

    Args:
        name: name of the user; list: print all users
        folder: folder of the server (runs)
        tokens: file with the tokens (DIR/tokens.json)
        may: read: look at studies; submit: also submit studies and change your own (submit)
        remove: remove the token at once
        keep_token: change --may and --max-studies only; the token stays valid
        max_studies: studies that may wait or run at a time; 0: any number (0)
    """
    from qsearch.cli.output import table

    users = Tokens(Path(tokens) if tokens else Path(folder or RUNS) / TOKENS_FILE)
    known = users.users().get(name)
    may = may or (known.may if known else "submit")
    if max_studies is None and known is not None:
        max_studies = known.max_studies
    max_studies = max_studies or None  # 0 is any number
    if name == LIST:
        found = users.users().values()
        print(table([{"user": u.name, "may": u.may, "max_studies": u.max_studies} for u in found]))
    elif remove:
        users.remove(name)
        print(f"removed: {name}")
    elif keep_token:
        print(f"{users.change(name, may, max_studies)}; the token is as it was")
    else:
        print(users.add(name, may, max_studies))
        earlier = "; the earlier token is invalid now" if known else ""
        told = f"{users.users()[name]}{earlier}; this is shown once. Written: {users.path}"
        print(f"{told}. For the client:\nexport QSEARCH_TOKEN=…", file=sys.stderr)
