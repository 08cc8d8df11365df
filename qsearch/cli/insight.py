"""``qsearch insight``: which layers and tensors lose accuracy, as a table, JSON or a page."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from qsearch.cli.arguments import Parser, add_dims, add_model, add_verbosity, model_of, verbosity_of
from qsearch.cli.output_file import write_text

SAMPLES = 16


def add_arguments(parser: Parser) -> None:
    """Flags of insight."""
    add = parser.add_argument
    add_model(parser)
    add("--calib", metavar="C", help="calibration data; synthetic without it")
    add("--eval", metavar="E", help="data to examine on (the calibration data)")
    add(
        "--qconfig",
        metavar="K=V,…",
        default="",
        help="changes to the recommended configuration, a qconfig.json, or a .qmod made with it",
    )
    add("--samples", metavar="N", type=int, default=SAMPLES, help=f"samples examined ({SAMPLES})")
    add("--preprocess", metavar="P", help="how an image becomes the input")
    add_dims(parser)
    add("--seed", metavar="S", type=int, default=0, help="of synthetic data (0)")
    add("--json", action="store_true", help="one JSON object on stdout")
    add("-o", "--out", metavar="FILE.html", help="write a page with plots")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Examine, then print and write."""
    from qsearch import api
    from qsearch.cli.table import table
    from qsearch.report.insight.page import decibels, layer_rows

    quiet = verbosity_of(args) == -1 or not sys.stderr.isatty()
    found = api.insight(
        model_of(args),
        args.calib,
        args.eval,
        args.qconfig,
        samples=args.samples,
        preprocess=args.preprocess,
        dim=args.dim or (),
        seed=args.seed,
        progress=_silent if quiet else _show,
    )
    if args.out is not None:
        write_text(Path(args.out), found.html())
    if args.json:
        print(json.dumps(found.to_dict()))
        return 0
    insight = found.insight
    print(table(layer_rows(insight.layers)))
    for name, output in (("simulated", insight.simulated), ("integer", insight.integer)):
        if output is not None:
            agreement = f"{100 * output.agreement:.2f} %"
            print(f"{name}: SQNR {decibels(output.output_db)} dB, agreement {agreement}")
    for warning in found.warnings:
        print(f"note: {warning}")
    if args.out is not None:
        print(args.out)
    return 0


def _silent(_done: int, _of: int) -> None:
    """No progress where nobody watches."""


def _show(done: int, of: int) -> None:
    end = "\n" if done == of else ""
    print(f"\r{done} of {of} layers", end=end, file=sys.stderr, flush=True)
