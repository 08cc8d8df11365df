"""``qsearch dashboard``: studies in a browser, live."""

from __future__ import annotations

import argparse

from qsearch.choices import POOLS
from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of dashboard."""
    add = parser.add_argument
    add("folder", metavar="DIR", nargs="?", help="a run folder, or a folder of them (runs)")
    add("--storage", metavar="URL", help="storage, instead of the folders' (QSEARCH_STORAGE)")
    add("--host", metavar="H", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    add("--port", metavar="P", type=int, default=8090, help="port; 0 takes a free one (8090)")
    add(
        "--token",
        metavar="T",
        help="what clients must know (QSEARCH_TOKEN, which others on this "
        "machine cannot see in the list of processes)",
    )
    add(
        "--allow-host",
        metavar="NAME",
        action="append",
        default=[],
        help="a further name of this server; repeatable",
    )
    add("--allow-launch", action="store_true", help="searches may be started from the page")
    add(
        "--launch-pool",
        metavar="|".join(POOLS),
        choices=POOLS,
        default="process",
        help="where workers of such searches run (process)",
    )
    add("--max-upload", metavar="SIZE", default="256M", help="largest upload (256M)")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from qsearch import api

    api.dashboard(
        args.folder,
        storage=args.storage,
        host=args.host,
        port=args.port,
        token=args.token,
        allow_hosts=args.allow_host,
        allow_launch=args.allow_launch,
        launch_pool=args.launch_pool,
        max_upload=args.max_upload,
    )
    return 0
