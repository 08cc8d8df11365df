"""``qsearch status``: every study of a run folder or storage, in a line each."""

from __future__ import annotations

import argparse
import json

from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of status."""
    add = parser.add_argument
    add("folder", metavar="DIR", nargs="?", help="run folder, or folder of such (runs)")
    add("--storage", metavar="URL", help="storage, instead of a run folder's")
    add("--study", metavar="NAME", help="only this one")
    add("--json", action="store_true", help="one JSON array")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Print how the studies stand."""
    from qsearch import api
    from qsearch.cli.table import table

    rows = api.status(args.folder, storage=args.storage, study=args.study)
    print(json.dumps(rows) if args.json else table(rows))
    return 0
