"""``qsearch store``: the schema of a store, checked or brought up to date."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_verbosity
from qsearch.exit_codes import EXIT_OK, EXIT_TARGET_MISSED


def add_arguments(parser: Parser) -> None:
    """Flags of store."""
    parser.epilog = "exit codes of check: 0 up to date, 1 to be migrated"
    add = parser.add_argument
    add("action", choices=("check", "migrate"), help="look, or change; make a copy before")
    add("folder", metavar="DIR", nargs="?", help="run folder")
    add("--storage", metavar="URL", help="storage, instead of a run folder's")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Say which schema is there and which is needed; migrate if that was asked for."""
    from qsearch import api

    if args.action == "migrate":
        before, now = api.migrate_store(args.folder, storage=args.storage)
        print(f"schema {now}" + (", nothing to do" if before == now else f", was {before}"))
        return EXIT_OK
    found, needed = api.check_store(args.folder, storage=args.storage)
    print(f"schema {found or 'none'}, needed {needed}")
    return EXIT_OK if found == needed else EXIT_TARGET_MISSED
