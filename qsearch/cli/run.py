"""``qsearch run``: a .qmod on data, with its score and the hash of its outputs."""

from __future__ import annotations

import argparse
import json

from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of run."""
    add = parser.add_argument
    add("module", metavar="M.qmod", help="what `launch` or `compile` wrote")
    add("--eval", metavar="E", required=True, help="data: .npz, .npy or a folder of images")
    add("--preprocess", metavar="P", help="how an image becomes the input")
    add("--json", action="store_true", help="one JSON object as last line of stdout")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Run sample after sample, batch 1."""
    from qsearch import api

    found = api.run_module(args.module, args.eval, preprocess=args.preprocess)
    if args.json:
        print(json.dumps(found))
    else:
        print("\n".join(f"{key:<16} {value}" for key, value in found.items()))
    return 0
