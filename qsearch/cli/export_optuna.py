"""``qsearch export-optuna``: a study for optuna-dashboard and its kin."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of export-optuna."""
    add = parser.add_argument
    add("study", metavar="STUDY", help="run folder, or a name with --storage")
    add("url", metavar="URL", help="Optuna storage to write to: sqlite:///optuna.db")
    add("--storage", metavar="URL", help="our storage that holds the study")
    add("--name", metavar="NAME", help="name in the Optuna storage (that of the study)")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Write the study, say how to look at it."""
    from qsearch import api

    stored = args.storage is not None
    name, count = api.export_optuna(
        None if stored else args.study,
        args.url,
        storage=args.storage,
        study=args.study if stored else None,
        name=args.name,
    )
    print(f"wrote {count} trials as study {name}\ntry it: optuna-dashboard {args.url}")
    return 0
