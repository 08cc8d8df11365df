"""Commands about a .qmod: run it, prove it, sign it, export it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from compiler.text_output import first_lines
from qsearch.cli.command import Call, command, given_verbosity
from qsearch.cli.output import json_printed, print_table, wrapped, write_text
from qsearch.errors import SettingsError
from qsearch.exit_codes import EXIT_OK, EXIT_TARGET_MISSED

if TYPE_CHECKING:
    from compiler.ranges.finding import Finding
    from qsearch.commands.verification import Verification
    from qsearch.settings.parameters import (
        Count,
        Dims,
        Json,
        Out,
        PathLike,
    )

_SHOWN: Final = 20
_RECORDS: Final = {
    "agrees": "the writer's record agrees",
    "disagrees": "the writer's record DISAGREES: the file is not what its writer recorded",
    "missing": "the writer's record is missing: whether the file was changed is not known",
}
_SIGNATURES: Final = {
    "unsigned": "none",
    "not checked": "by key {}, not checked; --key checks it",
    "valid": "valid, by key {}",
    "other key": "NOT by the given key: the file names key {}",
    "invalid": "INVALID: the file was changed after key {} signed it",
}


@command("run_module")
def run_command(run_module: Call, as_json: Json = False) -> None:
    """Run a .qmod or an exported .onnx file on data; print the score and a hash of the outputs.

    The samples run one after the other.
    """
    from qsearch.process import logging_to

    with logging_to(given_verbosity() or 0):
        found = run_module()
    if as_json:
        print(json.dumps(found))
        return
    warnings = found.pop("warnings")
    rows = {key: value for key, value in found.items() if value not in ("", None)}
    print("\n".join(f"{key:<16} {value}" for key, value in rows.items()))
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)


@command("profile")
def profile_command(profile: Call, out: Out = None, as_json: Json = False) -> None:
    """Measure the CPU time of every layer of a .qmod on the integer engine, with one thread.

    Args:
        out: write a page with plots, FILE.html
    """
    found = profile()
    if json_printed(found, as_json, out):
        return
    print_table(found.rows(), "--json has them")
    for name, value in found.facts().items():
        print(f"{name}: {value}")
    for note in found.notes:
        print(f"note: {note}")


@command("export")
def export_command(export: Call, as_json: Json = False) -> None:
    """Write a .qmod as C source, as ONNX, as a LiteRT file, or as commands of an accelerator."""
    found = export()
    if json_printed(found, as_json):
        return
    for path in found.files:
        print(f"wrote {path}")
    for fact, value in found.facts.items():
        if value is not None:
            print(f"  {fact:<24} {value}")
    if found.hint:
        print(f"next: {found.hint}")
    if found.python:
        print(f"in Python:\n{found.python}")


@command(own_code=False)
def keygen_command(out: Out = "qsearch.key") -> None:
    """Make a pair of Ed25519 keys: the private key signs modules, the public key checks them.

    Args:
        out: file for the private key; the public key is FILE.pub
    """
    from qsearch.run.signing import keygen

    public, fingerprint = keygen(out or "qsearch.key")
    print(
        f"private key: {out}; keep it secret, sign with --sign {out}\n"
        f"public key:  {public}; hand it out, check with qsearch verify M.qmod --key {public}\n"
        f"fingerprint: {fingerprint}"
    )


@command("verify")
def verify_command(
    verify: Call,
    require_record: bool = False,
    certificate: PathLike | None = None,
    against: PathLike | None = None,
    samples: Count = 8,
    strict: bool = False,
    dim: Dims = (),
    out: Out = None,
    as_json: Json = False,
) -> int:
    """Prove that a .qmod is integers only and cannot overflow; run its samples and compare.

    An int8 .onnx file is judged: overflow, where other machines give other answers, what this
    onnxruntime computes against exact evaluation.

    Exit codes: 0 proved, or nothing refuted; 1 refuted, or the record or signature does not match;
    2 the file cannot be read, or needs too much work.

    Args:
        require_record: refuse a file without a current record
        certificate: write words and bounds of a proved module, for `python -m
            compiler.proof.checker FILE`
        against: of an .onnx file: the float model; names grids that lose what they need not
        samples: of an .onnx file: samples that are measured
        strict: of an .onnx file: 1 also where a bound is open or a machine may differ
        out: the proof to write (proof.json beside the module); of an .onnx file a page, FILE.html
        as_json: print proof.json instead of the report
    """
    file = str(verify.given["path"])
    of_modules = {**verify.given, "require_record": require_record, "certificate": certificate}
    if Path(file).suffix == ".onnx":
        for name in ("path", "eval", "preprocess"):
            of_modules.pop(name, None)
        _only_of_kind(file, of_modules)
        judge = Call("judge", {"model": file, "samples": samples, "against": against, "dim": dim})
        return _judge(judge, verify.given, strict, out, as_json)
    _only_of_kind(file, {"against": against, "strict": strict, "dim": dim})
    from qsearch.run.run_folder import RunFolder

    found = verify()
    if out:
        target = Path(out)
    else:
        target = RunFolder(found.path.parent).proof
    # Told before it is written: a folder that takes no file loses nothing.
    if not json_printed(found, as_json):
        print("\n".join(wrapped(line, "    ") for line in _report(found)))
    found.save(target)
    if certificate is not None:
        found.save_certificate(Path(certificate))
    if not as_json:
        print(f"written: {target}")
    if found.acceptable(require_record):
        return EXIT_OK
    return EXIT_TARGET_MISSED


def _only_of_kind(file: str, given: Mapping[str, object]) -> None:
    """Refuse options of files of another kind.

    Raises:
        SettingsError: one was given.
    """
    for name, value in given.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            kind = "a .qmod" if file.endswith(".onnx") else "an .onnx file"
            raise SettingsError(f"{option} is for {kind}", where=file, fix=f"leave {option} out")


def _judge(judge: Call, data: Mapping[str, Any], strict: bool, out: Out, as_json: bool) -> int:
    """Judge an int8 ONNX file and print the report."""
    from qsearch.commands.judgement import LEGEND
    from qsearch.opening.open_model import DataSource
    from qsearch.process import logging_to

    with logging_to(-1):  # what the cure would leave as it is
        found = judge(data=DataSource(data.get("eval"), data.get("preprocess")))
    if not json_printed(found, as_json):
        for line in found.lines():
            print(wrapped(line, "           "))
        rows = found.shown_rows
        print(
            f"where answers differ ({len(found.machines) - len(rows)} layers are exact everywhere)"
        )
        if rows:
            print_table(rows, "--json has them")
            print(wrapped(LEGEND))
        for line in found.lines_behind():
            print(wrapped(line, "    "))
    if out is not None:
        write_text(Path(out), found.html())
        if not as_json:
            print(f"written: {out}")
    if found.acceptable(strict):
        return EXIT_OK
    return EXIT_TARGET_MISSED


def _report(found: Verification) -> list[str]:
    """The outcome in lines: verdict, record and signature, what is proved, what is tested."""
    from workers.user_code import imported_code

    lines = [f"{found.path}: {'proved' if found.proved else 'REFUTED'}"]
    lines += _finding_lines(found.findings)
    lines.append(f"record: {_RECORDS[found.record]}")
    lines += _finding_lines(found.record_findings)
    for code in imported_code():
        lines.append(
            f"imported: {code.given}, sha256 {code.sha256[:12]}; its rules are taken as true"
        )
    lines.append(f"signature: {_SIGNATURES[found.signature.state].format(found.signature.key)}")
    lines += found.outside
    if found.versions:
        lines.append(f"libraries: {found.versions}")
    if found.proof is None:
        return lines
    lines.append("for every input")
    for claim in found.proof.claims:
        lines.append(f"  {'proved' if claim.holds else 'REFUTED':<8} {claim.name}: {claim.detail}")
    if found.checked_again:
        lines.append(
            f"  checked again by compiler.proof.checker: {found.checked_again} bounds follow"
        )
    inputs = ", ".join(f"%{name} in [{low}, {high}]" for name, low, high in found.proof.inputs)
    lines.append(f"  with the inputs of @quantized_main: {inputs or 'unknown'}")
    lines += [f"  {sentence}" for sentence in found.proof.passthrough]
    lines.append("tested")
    for test in found.proof.comparisons:
        differing = f"{test.differing} of {test.elements} elements differ"
        if test.runs >= test.of:
            runs = f"{test.runs} runs"
        else:
            runs = f"{test.runs} of {test.of} runs"
        lines.append(f"  {test.what}: {runs}, {differing}")
    lines += [f"  {form}" for form in found.proof.steps]
    if found.evaluation is not None:
        lines.append(_score(found.evaluation))
    return lines


def _finding_lines(findings: Sequence[Finding]) -> list[str]:
    return first_lines([f"  {f.check:<10} {f}" for f in findings], _SHOWN)


def _score(values: Mapping[str, Any]) -> str:
    if values["top1"] is None:
        top1 = "no labels"
    else:
        top1 = f"top-1 {values['top1']:.4f}"
    stored = values["stored_outputs_sha256"]
    same = "other data than the search scored on"
    if stored is not None:
        if stored == values["outputs_sha256"]:
            same = "as stored"
        else:
            same = "NOT as stored"
    return (
        f"  {values['samples']} samples, {top1}, outputs {values['outputs_sha256'][:16]} ({same})"
    )
