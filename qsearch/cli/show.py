"""``qsearch show``: a model, a module, or a model after some passes, as text or as a drawing."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from qsearch.cli.arguments import Parser, add_dims, add_hardware, add_verbosity
from qsearch.cli.output_file import write_text

TEXT = "text"


def add_arguments(parser: Parser) -> None:
    """Flags of show."""
    add = parser.add_argument
    add("file", metavar="M.onnx|M.qmod", help="what to print")
    add("--trial", metavar="N", type=int, help="with a run folder: all that is known of a trial")
    add("--after", metavar="PASS", help="run these passes first: FoldConstant,FuseOps{max_depth=2}")
    add_hardware(parser)
    add("--matcher", metavar="greedy|optimal", default=None, help="how --hw draws groups (greedy)")
    add_dims(parser)
    add("--format", default=TEXT, metavar="F", help="text, dot, svg or html; with --hw json too")
    add("--full", action="store_true", help="text with every constant, which parses again")
    add("-o", "--out", metavar="FILE", help="write it there, in full, instead of printing it")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Print or write; text is coloured on a terminal only.

    Constants are printed in brief unless asked for: a real model has megabytes of them.
    """
    from qsearch import api
    from qsearch.errors import SettingsError

    if args.trial is not None:
        print(json.dumps(api.trial(args.file, args.trial), indent=1))
        return 0
    dim = args.dim or ()
    if args.matcher is not None and args.hw is None:
        raise SettingsError("--matcher draws hardware groups", where="show", fix="add --hw opu_q")
    if args.hw is not None:
        shown = api.show_hardware(
            args.file, args.hw, args.format, matcher=args.matcher, after=args.after, dim=dim
        )
    elif args.format == TEXT:
        brief = args.out is None and not args.full
        shown = api.show_text(args.file, after=args.after, dim=dim, brief=brief)
    else:
        shown = api.draw(args.file, args.format, after=args.after, dim=dim)
    if args.out is not None:
        write_text(Path(args.out), shown)
    elif args.format == TEXT and args.hw is None and sys.stdout.isatty():
        from qsearch.cli.colours import print_coloured

        print_coloured(shown)
    else:
        print(shown.rstrip("\n"))
    return 0
