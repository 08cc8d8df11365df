"""Commands about one model: doctor, compile, insight, show, diff."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compiler.text_output import abbreviated
from qsearch.cli.command import Call, command, given_verbosity, named_model
from qsearch.cli.output import (
    json_printed,
    print_coloured,
    print_legend,
    print_table,
    shortened,
    terminal_width,
    without_empty,
    wrapped,
    write_text,
)
from qsearch.exit_codes import EXIT_OK, EXIT_TARGET_MISSED

if TYPE_CHECKING:
    from compiler.difference import NodeDifference
    from qsearch.commands.analysis import ModelDiagnosis
    from qsearch.settings.parameters import (
        Json,
        Out,
        PathLike,
    )

NODES_SHOWN = 3


# doctor -----------------------------------------------------------------------------------------


@command("doctor")
def doctor_command(
    doctor: Call,
    allow_float: bool = False,
    minimize: str | None = None,
    max_size: str | None = None,
    as_json: Json = False,
) -> int:
    """List which operators of a model become integer, which stay in float, and how to change it.

    Exit codes: 0 a module on integers only is possible, 1 operators stay in float.

    Args:
        allow_float: as for launch, with --space-out
        minimize: as for launch, with --space-out
        max_size: as for launch, with --space-out
    """
    named_model(doctor.given.get("model"))
    found = doctor(allow_float=allow_float or None, minimize=minimize, max_size=max_size)
    if not json_printed(found, as_json):
        listed = (given_verbosity() or 0) > 0
        _print_diagnosis(found, every=listed)
        if found.hardware is not None:
            print(f"\n{found.hardware}")
        for line in found.judgement:
            print(wrapped(line, "  "))
    if found.diagnosis.fully_integral:
        return EXIT_OK
    return EXIT_TARGET_MISSED


def _print_diagnosis(found: ModelDiagnosis, every: bool) -> None:
    """Print the operators that need attention, then those that stay in float, or every one."""
    from compiler.quantize.diagnosis import why_float
    from compiler.targets.engine.library import detected_isa

    diagnosis = found.diagnosis
    width = terminal_width()
    if width is None:
        name = found.model
    else:
        name = shortened(found.model, width - 1)
    print(wrapped(f"{name}: {', '.join(map(str, found.inputs))}", "  "))
    for hint in (*found.hints(), *found.warnings):
        print(wrapped(f"  {hint}", "    "))
    if found.cut is not None:
        print(wrapped(f"  {found.cut}", "    "))
    print()
    conversions = sum(entry.reason == "conversion" for entry in diagnosis.operators)
    if conversions:
        why = f", {conversions} of which convert the inputs"
    else:
        why = ""
    copies = sum(entry.reason == "copied" for entry in diagnosis.operators)
    why += f", {copies} of which return an input as an output" if copies else ""
    noun = "operator" if diagnosis.integer_count == 1 else "operators"
    print(f"{diagnosis.integer_count} {noun} integer, {diagnosis.float_count} float{why}")
    if causes := diagnosis.causes():
        print("what keeps it from integers:")
    for cause in causes:
        follow = cause["consequences"]
        more = f", and {follow} that follow" if follow else ""
        named = cause["onnx_nodes"]
        if width is not None:
            named = [shortened(node, width // 2) for node in named]
        nodes = f": {abbreviated(named, NODES_SHOWN)}" if named else ""
        told = f"  {cause['count']} x {cause['op']} ({why_float(cause['reason'])}){more}{nodes}"
        print(wrapped(told, "    "))
        print(wrapped(f"    {cause['advice']}", "    "))
    for note in diagnosis.notes:
        print(wrapped(note, "  "))
    if not diagnosis.fully_integral:
        answer = "no"
    elif found.cut is None:
        answer = "yes"
    else:
        answer = "yes, without the parts around the cut"
    print(f"integers only: {answer}")
    if diagnosis.fully_integral:
        print(f"kernels of the engine on this machine: {detected_isa()}")
    for obstacle in () if diagnosis.fully_integral else diagnosis.obstacles:
        for line in obstacle.splitlines():
            print(wrapped(f"  {line}", "    "))
    rows = [
        _operator_row(place, entry)
        for place, entry in enumerate(diagnosis.operators)
        if every or entry.status != "integer"
    ]
    if rows:
        print()
        print_table(without_empty(rows), "--json has them")
    if len(rows) < len(diagnosis.operators):
        print(f"({len(diagnosis.operators) - len(rows)} integer operators are listed with -v)")


def _operator_row(place: int, entry: Any) -> dict[str, Any]:
    from compiler.quantize.diagnosis import why_float

    if entry.conv_index is None:
        name = entry.op
    else:
        name = f"{entry.op} [{entry.conv_index}]"
    return {
        "": place,
        "operator": name,
        "layer": entry.layer,
        "becomes": entry.status,
        "why": why_float(entry.reason),
        "what to do": _what_to_do(entry),
        "ONNX nodes": abbreviated(entry.onnx_nodes, NODES_SHOWN),
    }


def _what_to_do(entry: Any) -> str:
    """Causes are told once, above the table; consequences name theirs."""
    if entry.status == "integer" or not entry.advice:
        return ""
    if entry.because_of is not None:
        return str(entry.advice)
    return "see above"


# compile ----------------------------------------------------------------------------------------


@command("quantize")
def compile_command(
    quantize: Call, out: Out = None, sign: PathLike | None = None, dump_ir: PathLike | None = None
) -> int:
    """Quantize a model with one configuration, without a search, and write a .qmod.

    Exit codes: 0 the module is written, 1 it is written, but its outputs are below 6 dB SQNR or an
    overflow is possible.

    Args:
        out: the .qmod to write (M.qmod, in the working directory)
        sign: sign the module with this private key (qsearch keygen)
        dump_ir: write the text of the module after every pass, and why operators were not fused
    """
    given = named_model(quantize.given.get("model"))
    out = out or f"{Path(given).stem}.qmod"
    from compiler.runtime.artifact import refuse_onnx_name
    from compiler.transform import DumpDir, PassContext
    from qsearch.commands.quantization import AUTO, COMPARED_DATA, form_of_auto
    from qsearch.process import logging_to
    from qsearch.run.progress import LONG_S, PlainProgress
    from qsearch.run.signing import private_key, sign_file
    from qsearch.search.audit import AUDIT
    from qsearch.search.closeness import Closeness, has_few_bits

    refuse_onnx_name(out)
    signer = private_key(Path(sign)) if sign else None
    verbosity = given_verbosity() or 0
    # Without their constants: a model of 20 MB in thirty files is for reading, not for parsing.
    dumps = (DumpDir(Path(dump_ir), show_meta=False),) if dump_ir else ()
    with logging_to(verbosity), PassContext(instruments=dumps):
        late = None if verbosity < 0 else PlainProgress(quiet_s=LONG_S)
        module = quantize(progress=late)
    closeness = Closeness.recorded(module.provenance)
    if dump_ir:
        from compiler.fusion.fuse_ops import fuse_report

        report = Path(dump_ir) / "fuse_report.txt"
        write_text(report, fuse_report(module.module) + "\n")
    module.save(out)
    if signer is not None:
        sign_file(Path(out), signer)
    print(out)
    if verbosity >= 0 and module.qconfig is not None:
        if "cut" in module.provenance:
            print(wrapped(f"cut: {module.provenance['cut']}", "  "), file=sys.stderr)
        for decision in module.provenance.get("decisions", ()):
            print(wrapped(f"chosen: {decision}", "  "), file=sys.stderr)
        for repair in module.provenance.get(AUDIT, {}).get("repairs", ()):
            print(wrapped(f"repaired: {repair}", "  "), file=sys.stderr)
        if closeness is not None and closeness.close:
            print(closeness.sentence(COMPARED_DATA), file=sys.stderr)
        from qsearch.cli.launch import export_step

        place = shlex.quote(str(Path(out)))
        export = export_step(
            place,
            module.qconfig.partition_conversions,
            form_of_auto(quantize.given.get("qconfig", AUTO)),
        )
        # Beside stdout, where scripts read the path.
        print(f"next: qsearch verify {place}\nnext: {export}", file=sys.stderr)
    assert module.qconfig is not None
    wrong = closeness is not None and closeness.wrong and not has_few_bits(module.qconfig)
    refuted = (module.proof or {}).get("verdict") == "refuted"  # the log says where
    if wrong or refuted:
        return EXIT_TARGET_MISSED
    return EXIT_OK


# insight ----------------------------------------------------------------------------------------


@command("insight")
def insight_command(insight: Call, out: Out = None, as_json: Json = False) -> None:
    """Find the layers and tensors of a quantized model that lose accuracy.

    Args:
        out: write a page with plots, FILE.html
    """
    named_model(insight.given.get("model"))
    from qsearch.report.build import layers_told
    from qsearch.report.insight import layer_rows, output_told

    quiet = given_verbosity() == -1 or not sys.stderr.isatty()
    found = insight(progress=(lambda _done, _of: None) if quiet else _show_layers)
    if json_printed(found, as_json, out):
        return
    figures = found.insight
    print_table(without_empty(layer_rows(figures.layers)), "--json has them")
    print(wrapped("SQNR dB, agreement %: of the network with this layer alone quantized"))
    for name, output in (("simulated", figures.simulated), ("integer", figures.integer)):
        if output is not None:
            print(wrapped(f"{name}, all layers: {output_told(output)}"))
    if own := layers_told(
        {"layers": {n: c.to_dict() for n, c in found.qconfig.layers.points.items()}}
    ):
        print(wrapped(f"single points: {own}"))
    print_legend(("SQNR", "agreement"))
    if out is not None:
        print(out)


def _show_layers(done: int, of: int) -> None:
    print(f"\r{done} of {of} layers", end="\n" * (done == of), file=sys.stderr, flush=True)


# show -------------------------------------------------------------------------------------------


@command("show")
def show_command(show: Call, out: Out = None) -> None:
    """Print the text of a model or module, or draw it.

    Constants are abbreviated, types and sources left out; --full prints them.

    Args:
        out: write the full text or drawing to this file
    """
    full = show.given.pop("full") or out is not None
    shown = show(full=full)
    if out is not None:
        write_text(Path(out), shown)
    elif show.given["format"] == "text" and "hw" not in show.given and sys.stdout.isatty():
        print_coloured(shown)
    else:
        print(shown.rstrip("\n"))


# diff -------------------------------------------------------------------------------------------


@command("diff")
def diff_command(diff: Call, as_json: Json = False) -> int:
    """Run two modules on the same inputs and name the first node that differs.

    Exit codes: 0 all outputs are equal, 1 one is not.
    """
    found = diff()
    if not json_printed(found, as_json):
        rows = [_difference_row(node) for node in (*found.nodes, *found.outputs)]
        print_table(rows, "--json has them")
        left = f"{found.only_in_a} nodes only in A, {found.only_in_b} only in B"
        equal = "equal" if found.equal else "differ"
        print(wrapped(f"outputs {equal}; {found.sentence()}; {left}", "  "))
        told = "SNR dB: how near B's values are to A's; higher is better"
        if any(node.undone_db is not None for node in found.nodes):
            told += "; undone dB: the same once factors and offsets of channels are undone, which "
            told += "smoothing and zero points put in between and later operators take back"
        print(wrapped(told), file=sys.stderr)
    if found.equal:
        return EXIT_OK
    return EXIT_TARGET_MISSED


def _difference_row(node: NodeDifference) -> dict[str, Any]:
    operator = node.operator_b
    if node.operator_a != node.operator_b:
        operator = f"{node.operator_a} / {node.operator_b}"
    if node.dtype_a == node.dtype_b:
        dtype = node.dtype_a
    else:
        dtype = f"{node.dtype_a} / {node.dtype_b}"
    return {
        "node": node.name,
        "operator": operator,
        "shape": "x".join(map(str, node.shape)) or "scalar",
        "dtype": dtype,
        "SNR dB": "equal" if node.equal else f"{node.snr_db:.1f}",
        "undone dB": "" if node.undone_db is None else f"{node.undone_db:.1f}",
        "largest error": "-" if node.equal else f"{node.max_abs_error:.3g}",
        "scale of B": "-" if node.scale == 1.0 else f"{node.scale:.4g}",
    }
