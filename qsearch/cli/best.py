"""``qsearch best``: the winner of a study."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any, Final

from qsearch.cli.arguments import Parser, add_study, add_verbosity, study_of

_COUNTED: Final = 1000
"""Numbers from here on are bytes and operations, and have no places."""


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
    from qsearch.search.objectives import own_scores

    found = api.best(**study_of(args))
    if args.qconfig:
        print(json.dumps(found["qconfig"], indent=1))
    elif args.json:
        print(json.dumps(found))
    else:
        params = ", ".join(f"{name}={value}" for name, value in found["params"].items())
        print(f"study      {found['study']}\nbest       trial {found['number']}")
        usual = {name: found.get(name) for name in ("top1", "agreement", "sqnr_db")}
        for name, value in (usual | own_scores(found)).items():
            if value is not None:
                print(f"{name:<10} {value:.4f}{_interval(found['intervals'].get(name))}")
        for one in found.get("front", ()):
            rest = ", ".join(f"{n} {_shown(v)}" for n, v in one.items() if n != "trial")
            print(f"front      trial {one['trial']}: {rest}")
        print(f"params     {params}\nmodule     {found['module'] or 'not written here'}")
    return 0


def _interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"  (95 %: {ends[0]:.4f} to {ends[1]:.4f})"


def _shown(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= _COUNTED else f"{value:.4g}"
