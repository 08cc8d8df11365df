"""``qsearch compare``: studies beside one another."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of compare."""
    add = parser.add_argument
    add("studies", metavar="STUDY", nargs="+", help="run folders, or names with --storage")
    add("--storage", metavar="URL", help="storage that holds the studies")
    add(
        "-f",
        "--format",
        choices=("table", "json", "csv"),
        default="table",
        help="how to print them (table)",
    )
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Print a row per study."""
    from qsearch import api
    from qsearch.cli.table import print_rows

    print_rows(api.compare(args.studies, storage=args.storage), args.format)
    return 0
