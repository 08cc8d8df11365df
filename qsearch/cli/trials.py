"""``qsearch trials``: what was tried and what came of it."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of trials."""
    add = parser.add_argument
    add("folder", metavar="DIR", nargs="?", help="run folder")
    add("--storage", metavar="URL", help="storage, instead of a run folder's")
    add("--study", metavar="NAME", help="which study, if there are several")
    add("--state", metavar="S", action="append", help="complete, pruned, failed, …; repeatable")
    add(
        "-f",
        "--format",
        choices=("table", "json", "csv"),
        default="table",
        help="how to print them (table)",
    )
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Print the trials of one study."""
    from qsearch import api
    from qsearch.cli.table import csv_text, json_text, table

    rows = api.trials(args.folder, storage=args.storage, study=args.study, states=args.state)
    write = {"table": table, "json": json_text, "csv": csv_text}[args.format]
    print(write(rows), end="" if args.format == "csv" else "\n")
    return 0
