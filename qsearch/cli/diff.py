"""``qsearch diff A B``: which node differs first, and a table of how far each is off."""

from __future__ import annotations

import argparse
import json
import math
from typing import TYPE_CHECKING, Any

from qsearch.cli.arguments import Parser, add_dims, add_verbosity

if TYPE_CHECKING:
    from compiler.difference import NodeDifference

EXIT_EQUAL = 0
EXIT_DIFFERENT = 1


def add_arguments(parser: Parser) -> None:
    """Flags of diff."""
    add = parser.add_argument
    add("a", metavar="A", help="module taken as right: .onnx, .qmod or .relay")
    add("b", metavar="B", help="module that is compared with A")
    add("--eval", metavar="E", help="data: .npz, .npy or a folder of images (synthetic)")
    add("--preprocess", metavar="P", help="how an image becomes the input")
    add("--samples", metavar="N", type=int, default=4, help="how many of the data (4)")
    add("--rtol", metavar="X", type=float, default=0.0, help="relative tolerance (same bits)")
    add("--atol", metavar="X", type=float, default=0.0, help="absolute tolerance (same bits)")
    add_dims(parser)
    add("--json", action="store_true", help="one JSON object on stdout")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Compare; exit code 0 when all outputs are equal, 1 when one is not."""
    from qsearch import api
    from qsearch.cli.table import table

    found = api.diff(
        args.a,
        args.b,
        args.eval,
        samples=args.samples,
        rtol=args.rtol,
        atol=args.atol,
        preprocess=args.preprocess,
        dim=args.dim or (),
    )
    if args.json:
        print(json.dumps(found.to_dict()))
    else:
        print(table([_row(node) for node in (*found.nodes, *found.outputs)]))
        left = f"{found.only_in_a} nodes only in A, {found.only_in_b} only in B"
        print(f"outputs {'equal' if found.equal else 'differ'}; {found.sentence()}; {left}")
    return EXIT_EQUAL if found.equal else EXIT_DIFFERENT


def _row(node: NodeDifference) -> dict[str, Any]:
    operator = node.operator_b
    if node.operator_a != node.operator_b:
        operator = f"{node.operator_a} / {node.operator_b}"
    dtype = node.dtype_a if node.dtype_a == node.dtype_b else f"{node.dtype_a} / {node.dtype_b}"
    return {
        "node": node.name,
        "operator": operator,
        "shape": "x".join(map(str, node.shape)) or "scalar",
        "dtype": dtype,
        "SNR dB": "equal" if node.equal else _decibels(node.snr_db),
        "largest error": "-" if node.equal else f"{node.max_abs_error:.3g}",
        "scale of B": "-" if node.scale == 1.0 else f"{node.scale:.4g}",
    }


def _decibels(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else str(value)
