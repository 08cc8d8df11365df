"""``qsearch compile``: one configuration, one .qmod, no search."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from qsearch.cli.arguments import Parser, add_dims, add_model, add_verbosity, model_of, verbosity_of


def add_arguments(parser: Parser) -> None:
    """Flags of compile."""
    add = parser.add_argument
    add_model(parser)
    add("--calib", metavar="C", help="calibration data; synthetic without it")
    add(
        "--qconfig",
        metavar="K=V,…",
        default="",
        help="changes to the recommended configuration (lists: skip_conv_layers=[0,3]), "
        "or a qconfig.json",
    )
    add("-o", "--out", "--output", metavar="FILE", required=True, help="the .qmod to write")
    add("--preprocess", metavar="P", help="how an image becomes the input")
    add("--sign", metavar="KEY", help="sign the module with this private key (qsearch keygen)")
    add_dims(parser)
    add(
        "--dump-ir",
        metavar="DIR",
        help="write the module's text after every pass, and why operators share no kernel",
    )
    add("--seed", metavar="S", default="0", help="of synthetic data (0)")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Quantize and write."""
    from compiler.transform import DumpDir, PassContext
    from qsearch import api
    from qsearch.log import logging_to
    from qsearch.signing import private_key, sign_file

    signer = private_key(Path(args.sign)) if args.sign else None

    # Without their constants: a model of 20 MB in thirty files is for reading, not for parsing.
    dumps = (DumpDir(Path(args.dump_ir), show_meta=False),) if args.dump_ir else ()
    with logging_to(verbosity_of(args) or 0), PassContext(instruments=dumps):
        module = api.compile_model(
            model_of(args),
            args.calib,
            args.qconfig,
            preprocess=args.preprocess,
            dim=args.dim or (),
            seed=args.seed,
        )
    if args.dump_ir:
        from compiler.fusion.fuse_ops import fuse_report

        report = Path(args.dump_ir) / "fuse_report.txt"
        report.write_text(fuse_report(module.module) + "\n", encoding="utf-8")
    module.save(args.out)
    if signer is not None:
        sign_file(Path(args.out), signer)
    print(args.out)
    if (verbosity_of(args) or 0) >= 0 and module.qconfig is not None:
        from qsearch.cli.next_steps import after_compile

        # Beside stdout, where scripts read the path.
        print(after_compile(Path(args.out), module.qconfig.partition_conversions), file=sys.stderr)
    return 0
