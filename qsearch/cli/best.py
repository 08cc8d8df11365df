"""``qsearch best``: the winner of a study."""

from __future__ import annotations

import argparse
import json

from qsearch.cli.arguments import Parser, add_study, add_verbosity, study_of


def add_arguments(parser: Parser) -> None:
    """Flags of best."""
    add_study(parser)
    parser.add_argument(
        "--qconfig",
        action="store_true",
        help="print its configuration alone, as `compile` takes it",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Print the best trial."""
    from qsearch import api

    found = api.best(**study_of(args))
    if args.qconfig:
        print(json.dumps(found["qconfig"], indent=1))
    elif args.json:
        print(json.dumps(found))
    else:
        params = ", ".join(f"{name}={value}" for name, value in found["params"].items())
        print(f"study      {found['study']}\nbest       trial {found['number']}")
        for name in ("top1", "agreement", "sqnr_db"):
            if found[name] is not None:
                print(f"{name:<10} {found[name]:.4f}")
        for one in found.get("front", ()):
            rest = ", ".join(f"{name} {value}" for name, value in one.items() if name != "trial")
            print(f"front      trial {one['trial']}: {rest}")
        print(f"params     {params}\nmodule     {found['module'] or 'not written here'}")
    return 0
