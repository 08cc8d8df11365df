"""``qsearch verify``: is this module integers only, without overflow, and what it claims to be?"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from qsearch.cli.arguments import Parser, add_verbosity
from qsearch.exit_codes import EXIT_OK, EXIT_TARGET_MISSED

if TYPE_CHECKING:
    from compiler.proof.finding import Finding
    from qsearch.verification import Verification

_SHOWN = 20
_RECORDS = {
    "agrees": "the writer's record agrees",
    "disagrees": "the writer's record DISAGREES: the file is not what its writer recorded",
    "missing": "the writer's record is missing: whether the file was changed is not known",
    "older": "the writer's record is of an older format and was not compared: whether the file was "
    "changed is not known; --record writes a new one",
}
_SIGNATURES = {
    "unsigned": "none",
    "not checked": "by key {}, not checked; --key checks it",
    "valid": "valid, by key {}",
    "other key": "NOT by the given key: the file names key {}",
    "invalid": "INVALID: the file was changed after key {} signed it",
}


def add_arguments(parser: Parser) -> None:
    """Flags of verify."""
    parser.epilog = (
        "exit codes: 0 proved, 1 refuted, or its record or signature does not hold, "
        "2 the file cannot be read"
    )
    add = parser.add_argument
    add("module", metavar="M.qmod", help="what `launch` or `compile` wrote, or a run folder")
    add("--eval", metavar="E", help="also compare and score on data: .npz, .npy, folder of images")
    add("--preprocess", metavar="P", help="how an image becomes the input")
    add("-o", "--out", "--output", metavar="FILE", help="where proof.json goes (beside the module)")
    add("--require-record", action="store_true", help="refuse a file without a record of today")
    add(
        "--record",
        action="store_true",
        help="write the record of a file that has none or an old one",
    )
    add("--key", metavar="PUB", help="refuse a file that this public key did not sign")
    add("--sign", metavar="KEY", help="sign the file with this private key if it is proved")
    add("--json", action="store_true", help="print proof.json instead of the report")
    add_verbosity(parser)


def run(args: argparse.Namespace) -> int:
    """Verify, write proof.json, say what was found."""
    from qsearch import api
    from qsearch.run_folder import RunFolder

    found = api.verify(
        args.module,
        args.eval,
        preprocess=args.preprocess,
        key=args.key,
        record=args.record,
        sign=args.sign,
    )
    target = Path(args.out) if args.out else RunFolder(found.path.parent).proof
    found.save(target)
    if args.json:
        print(json.dumps(found.to_dict()))
    else:
        print("\n".join([*_report(found), f"written: {target}"]))
    return EXIT_OK if found.acceptable(args.require_record) else EXIT_TARGET_MISSED


def _report(found: Verification) -> list[str]:
    """The outcome in lines: verdict, record and signature, what is proved, what is tested."""
    lines = [f"{found.path}: {'proved' if found.proved else 'REFUTED'}"]
    lines += _finding_lines(found.findings)
    lines.append(f"record: {_RECORDS[found.record]}")
    lines += _finding_lines(found.record_findings)
    lines.append(f"signature: {_SIGNATURES[found.signature.state].format(found.signature.key)}")
    if found.proof is None:
        return lines
    lines.append("for every input")
    for claim in found.proof.claims:
        lines.append(f"  {'proved' if claim.holds else 'REFUTED':<8} {claim.name}: {claim.detail}")
    inputs = ", ".join(f"%{name} in [{low}, {high}]" for name, low, high in found.proof.inputs)
    lines.append(f"  with the inputs of @quantized_main: {inputs or 'unknown'}")
    lines += [f"  {sentence}" for sentence in found.proof.passthrough]
    lines.append("tested")
    for test in found.proof.comparisons:
        differing = f"{test.differing} of {test.elements} elements differ"
        lines.append(f"  {test.what}: {test.runs} runs, {differing}")
    if found.evaluation is not None:
        lines.append(_score(found))
    return lines


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    lines = [f"  {f.check:<10} {f}" for f in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        lines.append(f"  and {len(findings) - _SHOWN} more; all are in the JSON")
    return lines


def _score(found: Verification) -> str:
    assert found.evaluation is not None
    values = found.evaluation
    top1 = "no labels" if values["top1"] is None else f"top-1 {values['top1']:.4f}"
    stored = values["stored_outputs_sha256"]
    same = "other data than the search scored on"
    if stored is not None:
        same = "as stored" if stored == values["outputs_sha256"] else "NOT as stored"
    return (
        f"  {values['samples']} samples, {top1}, outputs {values['outputs_sha256'][:16]} ({same})"
    )
