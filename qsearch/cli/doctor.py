"""``qsearch doctor``: before a search, operator by operator, what will be integer and what not."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from qsearch.cli.arguments import Parser, add_dims, add_hardware, add_model, add_verbosity, model_of

if TYPE_CHECKING:
    from qsearch.diagnosis import ModelDiagnosis

EXIT_INTEGRAL = 0
EXIT_FLOAT_LEFT = 1
NODES_SHOWN = 3


def add_arguments(parser: Parser) -> None:
    """Flags of doctor."""
    add = parser.add_argument
    add_model(parser)
    add(
        "--qconfig",
        metavar="K=V,…",
        default="",
        help="changes to the recommended configuration, or a qconfig.json",
    )
    add_hardware(parser)
    add_dims(parser)
    add("--space-out", metavar="FILE", help="write what launch searches, to change it (--space)")
    add("--summary", action="store_true", help="counts and causes without the list of operators")
    add("--json", action="store_true", help="one JSON object on stdout")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Diagnose; exit code 0 when a fully integral module is possible, 1 when float is left."""
    from qsearch import api

    found = api.doctor(
        model_of(args), args.qconfig, dim=args.dim or (), hw=args.hw, space_out=args.space_out
    )
    if args.json:
        print(json.dumps(found.to_dict()))
    else:
        _print(found, summary=args.summary)
        if found.hardware is not None:
            print(f"\n{found.hardware.summary() if args.summary else found.hardware}")
    return EXIT_INTEGRAL if found.diagnosis.fully_integral else EXIT_FLOAT_LEFT


def _print(found: ModelDiagnosis, *, summary: bool) -> None:
    from qsearch.cli.table import table

    diagnosis = found.diagnosis
    print(f"{found.model}: {', '.join(map(str, found.inputs))}")
    for hint in (*found.hints(), *found.warnings):
        print(f"  {hint}")
    if not summary:
        print()
        print(table([_row(place, entry) for place, entry in enumerate(diagnosis.operators)]))
    print()
    conversions = sum(entry.reason == "conversion" for entry in diagnosis.operators)
    why = f", {conversions} of which convert the inputs" if conversions else ""
    print(f"{diagnosis.integer_count} operators integer, {diagnosis.float_count} float{why}")
    causes = diagnosis.causes()
    if causes:
        print("what keeps it from integers:")
    for cause in causes:
        follow = cause["consequences"]
        more = f", and {follow} that follow" if follow else ""
        nodes = f": {_nodes(cause['onnx_nodes'])}" if cause["onnx_nodes"] else ""
        print(f"  {cause['count']} x {cause['op']} ({cause['reason']}){more}{nodes}")
        print(f"    {cause['advice']}")
    for note in diagnosis.notes:
        print(note)
    if diagnosis.fully_integral:
        print("fully integral: yes")
        return
    print("fully integral: no")
    for obstacle in diagnosis.obstacles:
        print("  " + obstacle.replace("\n", "\n  "))


def _row(place: int, entry: Any) -> dict[str, Any]:
    name = entry.op if entry.conv_index is None else f"{entry.op} [{entry.conv_index}]"
    return {
        "": place,
        "operator": name,
        "layer": entry.layer,
        "ONNX nodes": _nodes(entry.onnx_nodes),
        "becomes": entry.status,
        "why": entry.reason,
        "what to do": _what_to_do(entry),
    }


def _what_to_do(entry: Any) -> str:
    """Causes are told once, below the table; consequences name theirs."""
    if entry.status == "integer" or not entry.advice:
        return ""
    return str(entry.advice) if entry.because_of is not None else "see below"


def _nodes(names: Any) -> str:
    shown = ", ".join(names[:NODES_SHOWN])
    return shown + (f" and {len(names) - NODES_SHOWN} more" if len(names) > NODES_SHOWN else "")
