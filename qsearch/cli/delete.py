"""``qsearch delete``: forget a study."""

from __future__ import annotations

import argparse
import sys

from qsearch.cli.arguments import Parser, add_study, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of delete."""
    add_study(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument("--force", action="store_true", help="also when it seems to be searched")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Delete, after asking on a terminal; elsewhere --yes must be said."""
    from qsearch import api
    from qsearch.errors import SettingsError

    if args.folder is None and args.study is None:
        raise SettingsError(
            "delete what?",
            where="qsearch delete",
            fix="name a run folder, or --storage and --study",
        )
    if not args.yes:
        if not sys.stdin.isatty():
            raise SettingsError("deleting needs a yes", where="qsearch delete", fix="say --yes")
        what = args.study or args.folder
        if input(f"delete {what} with all its trials? [y/N] ").strip().lower() != "y":
            return 1
    name = api.delete(args.folder, storage=args.storage, study=args.study, force=args.force)
    print(f"deleted: study {name}")
    return 0
