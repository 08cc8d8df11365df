"""``qsearch trials``: what was tried and what came of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from qsearch.cli.arguments import Parser, add_study, add_verbosity, at_least, study_of

_HASH_LETTERS: Final = 12


def add_arguments(parser: Parser) -> None:
    """Flags of trials."""
    add_study(parser)
    add = parser.add_argument
    add("--state", metavar="S", action="append", help="complete, pruned, failed, …; repeatable")
    add("--stage", metavar="S", help="only of this stage of the search")
    add("--min", metavar="M=V", action="append", help="least of a metric: top1=0.85; repeatable")
    add("--sort", metavar="COLUMN", help="sort by it, least first (number)")
    add("--reverse", action="store_true", help="with --sort: greatest first")
    add("--limit", metavar="N", type=at_least(1), help="so many at most")
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
        **study_of(args),
        states=args.state,
        stage=args.stage,
        least=dict(_least(word) for word in args.min or ()),
        sort=f"-{args.sort}" if args.sort and args.reverse else args.sort,
        limit=args.limit,
    )
    print_rows(_readable(rows) if args.format == "table" else rows, args.format)
    return 0


def _readable(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows for people: parameters that differ, what no trial has left out, hashes cut."""
    every = [row["params"] or {} for row in rows]
    same = {n for n in set().union(*every) if len({repr(params.get(n)) for params in every}) == 1}
    if len(rows) == 1:
        same = set()
    shown = [name for name in (rows[0] if rows else ()) if any(row[name] for row in rows)]
    return [
        {
            **{name: row[name] for name in shown},
            "params": {n: v for n, v in (row["params"] or {}).items() if n not in same},
            "outputs_sha256": (row["outputs_sha256"] or "")[:_HASH_LETTERS] or None,
        }
        for row in rows
    ]


def _least(word: str) -> tuple[str, float]:
    from qsearch.errors import SettingsError

    name, _, value = word.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise SettingsError(
            f"--min {word} is not METRIC=VALUE", where="qsearch trials", fix="--min top1=0.85"
        ) from error
