"""``qsearch stop``: end, pause or resume a running search, wherever it runs."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_study, add_verbosity, study_of


def add_arguments(parser: Parser) -> None:
    """Flags of stop."""
    add_study(parser)
    group = parser.add_mutually_exclusive_group()
    for kind, what in (("pause", "start no trial until told"), ("resume", "go on after a pause")):
        group.add_argument(f"--{kind}", action="store_const", const=kind, dest="kind", help=what)
    parser.set_defaults(kind="stop")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Leave the wish in the store; drivers look for it every second."""
    from qsearch import api

    name, listening = api.stop(**study_of(args), kind=args.kind)
    print(f"{args.kind}: study {name}, {listening} driver(s) listening")
    return 0
