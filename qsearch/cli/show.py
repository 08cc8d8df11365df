"""``qsearch show``: the text of a model, of a module, or of a model after some passes."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of show."""
    add = parser.add_argument
    add("file", metavar="M.onnx|M.qmod", help="what to print")
    add("--after", metavar="PASS", help="run these passes first: FoldConstant,FuseOps{max_depth=2}")
    add("--dim", metavar="NAME=N", action="append", help="size of a named dimension; repeatable")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Print IR text."""
    from qsearch import api

    print(api.show_text(args.file, after=args.after, dim=args.dim or ()))
    return 0
