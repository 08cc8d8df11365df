"""Commands about one model: doctor, compile, insight, show, diff."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from compiler.text_output import abbreviated
from qsearch.cli import options
from qsearch.cli.options import INPUT, OUTPUT, Command, argument, option
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
    from qsearch.opening.open_model import DataSource

TEXT: Final = "text"
SIGN_HELP: Final = "sign the module with this private key (qsearch keygen)"
SAMPLES = 16
NODES_SHOWN = 3


def _qconfig(help: str, default: str = "") -> options.Decorator:
    """--qconfig of a command: several of them add up."""
    return option(
        "--qconfig",
        metavar="K=V,…",
        help=help,
        multiple=True,
        default=(default,),
        # "auto" is what the others change, wherever it stands.
        callback=lambda _context, _option, given: ",".join(
            sorted(dict.fromkeys(given), key="auto".__ne__)
        ),
    )


# doctor -----------------------------------------------------------------------------------------


@click.command(cls=Command)
@options.model
@_qconfig("changes to the recommended configuration, or a qconfig.json")
@options.hardware
@option("--calib", metavar="C", help="data that give open axes their sizes", panel=INPUT)
@options.preprocess
@options.dims
@options.cuts
@option("--space-out", metavar="FILE", help="write the space, for launch --space", panel=OUTPUT)
@options.searched
@options.as_json
@options.imports
def doctor_command(
    model: str | None,
    qconfig: str,
    calib: str | None,
    preprocess: str | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """List which operators of a model become integer, which stay in float, and how to change it.

    Exit codes: 0 a module on integers only is possible, 1 operators stay in float.
    """
    from qsearch.commands.analysis import doctor
    from qsearch.opening.open_model import DataSource

    given = options.named_model(model)
    found = doctor(given, qconfig, calib=DataSource(calib, preprocess), **asked)
    if not json_printed(found, as_json):
        listed = (options.given_verbosity() or 0) > 0
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
    name = found.model if width is None else shortened(found.model, width - 1)
    print(wrapped(f"{name}: {', '.join(map(str, found.inputs))}", "  "))
    for hint in (*found.hints(), *found.warnings):
        print(wrapped(f"  {hint}", "    "))
    if found.cut is not None:
        print(wrapped(f"  {found.cut}", "    "))
    print()
    conversions = sum(entry.reason == "conversion" for entry in diagnosis.operators)
    why = f", {conversions} of which convert the inputs" if conversions else ""
    copies = sum(entry.reason == "copied" for entry in diagnosis.operators)
    why += f", {copies} of which return an input as an output" if copies else ""
    print(f"{diagnosis.integer_count} operators integer, {diagnosis.float_count} float{why}")
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
    print(f"integers only: {'yes' if diagnosis.fully_integral else 'no'}")
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

    name = entry.op if entry.conv_index is None else f"{entry.op} [{entry.conv_index}]"
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


@click.command(cls=Command)
@options.model
@options.calib_data
@_qconfig(
    "changes to the recommended configuration (lists: skip_conv_layers=[0,3]), or a "
    "qconfig.json; auto chooses from the calibration data and gives reasons, auto,nbit_weight=4 "
    "changes what it chooses, auto,for=tflite (qdq) is for that form (auto)",
    default="auto",
)
@options.output(help="the .qmod to write (M.qmod, in the working directory)")
@option("--sign", metavar="KEY", help=SIGN_HELP, panel=OUTPUT)
@options.dims
@options.cuts
@option(
    "--keep-float-parts",
    help="leave in float what an int8 file leaves in float (softmax, norms): the module is then "
    "not on integers only",
)
@option(
    "--dump-ir",
    metavar="DIR",
    help="write the text of the module after every pass, and why operators were not fused",
    panel=OUTPUT,
)
@options.imports
def compile_command(
    model: str | None,
    calib: DataSource,
    qconfig: str,
    out: str | None,
    sign: str | None,
    dump_ir: str | None,
    **cut: Any,
) -> int:
    """Quantize a model with one configuration, without a search, and write a .qmod.

    Exit codes: 0 the module is written, 1 it is written, but its outputs are below 6 dB SQNR or an
    overflow is possible.
    """
    given = options.named_model(model)
    out = out or f"{Path(given).stem}.qmod"
    from compiler.runtime.artifact import refuse_onnx_name
    from compiler.transform import DumpDir, PassContext
    from qsearch.commands.quantization import COMPARED_DATA, form_of_auto, quantize
    from qsearch.process import logging_to
    from qsearch.run.progress import LONG_S, PlainProgress
    from qsearch.run.signing import private_key, sign_file
    from qsearch.search.audit import AUDIT
    from qsearch.search.closeness import Closeness, has_few_bits

    refuse_onnx_name(out)
    signer = private_key(Path(sign)) if sign else None
    verbosity = options.given_verbosity() or 0
    # Without their constants: a model of 20 MB in thirty files is for reading, not for parsing.
    dumps = (DumpDir(Path(dump_ir), show_meta=False),) if dump_ir else ()
    with logging_to(verbosity), PassContext(instruments=dumps):
        late = None if verbosity < 0 else PlainProgress(quiet_s=LONG_S)
        module = quantize(given, calib, qconfig, **cut, progress=late)
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
        export = export_step(place, module.qconfig.partition_conversions, form_of_auto(qconfig))
        # Beside stdout, where scripts read the path.
        print(f"next: qsearch verify {place}\nnext: {export}", file=sys.stderr)
    assert module.qconfig is not None
    wrong = closeness is not None and closeness.wrong and not has_few_bits(module.qconfig)
    refuted = (module.proof or {}).get("verdict") == "refuted"  # the log says where
    if wrong or refuted:
        return EXIT_TARGET_MISSED
    return EXIT_OK


# insight ----------------------------------------------------------------------------------------


@click.command(cls=Command)
@options.model
@options.calib
@option("--eval", metavar="E", help="evaluation data (the calibration data)", panel=INPUT)
@options.preprocess
@options.seed
@_qconfig(
    "changes to the recommended configuration, a qconfig.json, a .qmod made with it, or auto, as "
    "compile chooses"
)
@option(
    "--samples",
    metavar="N",
    type=int,
    default=SAMPLES,
    help=f"number of samples ({SAMPLES})",
    panel=INPUT,
)
@options.dims
@options.cuts
@options.as_json
@options.output(metavar="FILE.html", help="write a page with plots")
@options.imports
def insight_command(
    model: str | None,
    calib: str | None,
    eval: str | None,
    preprocess: str | None,
    seed: int,
    qconfig: str,
    as_json: bool,
    out: str | None,
    **asked: Any,
) -> None:
    """Find the layers and tensors of a quantized model that lose accuracy."""
    given = options.named_model(model)
    from qsearch.commands.analysis import insight
    from qsearch.opening.open_model import DataSource
    from qsearch.report.build import layers_told
    from qsearch.report.insight import layer_rows, output_told

    quiet = options.given_verbosity() == -1 or not sys.stderr.isatty()
    found = insight(
        given,
        DataSource(calib, preprocess, seed),
        DataSource(eval, preprocess, seed),
        qconfig,
        progress=(lambda _done, _of: None) if quiet else _show_layers,
        **asked,
    )
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


@click.command(cls=Command)
@argument("file", "M.onnx|M.qmod", "what to print", type=options.Suggested("FILE"))
@option("--after", metavar="PASS", help="run these passes first: FoldConstant,FuseOps{max_depth=2}")
@options.dims
@options.cuts
@options.hardware
@option(
    "--format",
    metavar="text|dot|json",
    default=TEXT,
    help="text; dot for Graphviz; json: boxes and edges, or the report of --hw (text)",
    panel=OUTPUT,
)
@option("--full", help="with types, sources and every constant; it can be parsed", panel=OUTPUT)
@options.output(help="write the full text or drawing to this file")
@options.imports
def show_command(
    file: str,
    hw: str | None,
    format: str,
    full: bool,
    out: str | None,
    **prepared: Any,
) -> None:
    """Print the text of a model or module, or draw it.

    Constants are abbreviated, types and sources left out; --full prints them.
    """
    from qsearch.commands.views import draw, show_hardware, show_text

    if hw is not None:
        shown = show_hardware(file, hw, format, **prepared)
    elif format == TEXT:
        shown = show_text(file, brief=out is None and not full, **prepared)
    else:
        shown = draw(file, format, **prepared)
    if out is not None:
        write_text(Path(out), shown)
    elif format == TEXT and hw is None and sys.stdout.isatty():
        print_coloured(shown)
    else:
        print(shown.rstrip("\n"))


# diff -------------------------------------------------------------------------------------------


@click.command(cls=Command)
@argument("a", "A", "reference module: .onnx, .qmod or .relay")
@argument("b", "B", "module to compare with A")
@options.eval_data(
    "data: .npz, .npy or a folder of images (the samples in the .qmod, else synthetic data)"
)
@option("--samples", metavar="N", type=int, default=4, help="number of samples (4)", panel=INPUT)
@option("--rtol", metavar="X", type=float, default=0.0, help="relative tolerance (same bits)")
@option("--atol", metavar="X", type=float, default=0.0, help="absolute tolerance (same bits)")
@options.cuts
@options.dims
@options.as_json
@options.imports
def diff_command(a: str, b: str, data: DataSource, as_json: bool, **asked: Any) -> int:
    """Run two modules on the same inputs and name the first node that differs.

    Exit codes: 0 all outputs are equal, 1 one is not.
    """
    from qsearch.commands.views import diff

    found = diff(a, b, data, **asked)
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
    dtype = node.dtype_a if node.dtype_a == node.dtype_b else f"{node.dtype_a} / {node.dtype_b}"
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
