"""``qsearch report``: a study as one HTML file, to attach to a ticket."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_study, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of report."""
    add_study(parser)
    add = parser.add_argument
    add("-o", "--out", metavar="FILE", default="report.html", help="the page (report.html)")
    add("--svg", metavar="DIR", help="also write every plot as an SVG file there")
    add("--png", metavar="DIR", help="also write every plot as a PNG file there")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Write the files, say which."""
    from qsearch import api

    for path in api.report(
        args.folder,
        args.out,
        storage=args.storage,
        study=args.study,
        plots=args.svg,
        png=args.png,
    ):
        print(f"wrote {path}")
    return 0
