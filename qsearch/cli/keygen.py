"""``qsearch keygen``: a pair of Ed25519 keys, to sign modules and to check who signed them."""

from __future__ import annotations

import argparse

from qsearch.cli.arguments import Parser, add_verbosity


def add_arguments(parser: Parser) -> None:
    """Flags of keygen."""
    add = parser.add_argument
    add(
        "-o",
        "--out",
        "--output",
        metavar="FILE",
        default="qsearch.key",
        help="where the private key goes; the public key goes to FILE.pub (qsearch.key)",
    )
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Write both and say what each is for."""
    from qsearch import api

    public, fingerprint = api.keygen(args.out)
    print(
        f"private key: {args.out}; keep it secret, sign with --sign {args.out}\n"
        f"public key:  {public}; hand it out, check with qsearch verify M.qmod --key {public}\n"
        f"fingerprint: {fingerprint}"
    )
    return 0
