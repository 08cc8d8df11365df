"""``qsearch trials``: what was tried and what came of it."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_study, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of trials."""
    add_study(parser)
    add = parser.add_argument
    add("--state", metavar="S", action="append", help="complete, pruned, failed, …; repeatable")
    add("--stage", metavar="S", help="only of this stage of the search")
    add("--min", metavar="M=V", action="append", help="least of a metric: top1=0.85; repeatable")
    add("--sort", metavar="COLUMN", help="sort by it, least first (number)")
    add("--reverse", action="store_true", help="with --sort: greatest first")
    add("--limit", metavar="N", type=int, help="so many at most")
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
    from qsearch.cli.table import print_rows

    rows = api.trials(
        args.folder,
        storage=args.storage,
        study=args.study,
        states=args.state,
        stage=args.stage,
        least=dict(_least(word) for word in args.min or ()),
        sort=f"-{args.sort}" if args.sort and args.reverse else args.sort,
        limit=args.limit,
    )
    print_rows(rows, args.format)
    return 0


def _least(word: str) -> tuple[str, float]:
    from qsearch.errors import SettingsError

    name, _, value = word.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise SettingsError(
            f"--min {word} is not METRIC=VALUE", where="qsearch trials", fix="--min top1=0.85"
        ) from error
