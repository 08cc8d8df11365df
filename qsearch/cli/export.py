"""``qsearch export``: a .qmod as C source, as ONNX, or as commands of an accelerator."""

from __future__ import annotations

import argparse
import json

from qsearch.cli.arguments import Parser, add_hardware, add_verbosity
from qsearch.exit_codes import EXIT_OK


def add_arguments(parser: Parser) -> None:
    """Flags of export."""
    add = parser.add_argument
    add("module", metavar="M.qmod", help="what `launch` or `compile` wrote, or a run folder")
    add(
        "--format",
        metavar="F",
        default="c",
        help="c: C99 source with a self check; onnx: exact integers; grid: the same integers on "
        "float32 tensors; float: a module that is not on integers; commands: what the accelerator "
        "--hw and its host run, in order (c)",
    )
    add_hardware(parser)
    add("--matcher", metavar="greedy|optimal", default=None, help="how --hw draws groups (greedy)")
    add("-o", "--out", "--output", metavar="DIR", required=True, help="folder for the files")
    add("--name", metavar="N", help="base of the file names and C symbols (that of the module)")
    add("--json", action="store_true", help="print one JSON object instead of lines")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Write the files, say what they are."""
    from qsearch import api

    found = api.export(
        args.module, args.format, args.out, name=args.name, hw=args.hw, matcher=args.matcher
    )
    if args.json:
        print(json.dumps(found.to_dict()))
        return EXIT_OK
    for path in found.files:
        print(f"wrote {path}")
    for name, value in found.facts.items():
        print(f"  {name:<24} {value}")
    if found.hint:
        print(f"try it: {found.hint}")
    return EXIT_OK
