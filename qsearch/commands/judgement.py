"""``qsearch verify FILE.onnx``: the judgement of an int8 file that some tool wrote.

read → compare its outputs with the float model's → bound accumulators and biases → evaluate
samples exactly → count what kernels of other machines do with them → run the file as it is in this
onnxruntime and compare → compare the grids with the float model → compile a cure and compare it.
"""

from __future__ import annotations

import math
import shlex
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime

from compiler.at_work import at_work
from compiler.errors import CodegenError, CompilerError, EvaluationError
from compiler.frontend.from_onnx.model_file import read_model
from compiler.insight.groups import joined_fields
from compiler.judgement.exact import Evaluation, evaluate
from compiler.judgement.float_model import Loss, compare_grids
from compiler.judgement.kernels import read_kernels
from compiler.judgement.layers import Network, read_network
from compiler.judgement.machines import (
    EXACT,
    MACHINES,
    RULES,
    Row,
    differs,
    machines,
    padding_notes,
    reasons,
)
from compiler.judgement.nodes import DYNAMIC, QUANTIZE
from compiler.judgement.overflow import OPEN, PROVED, Claim, overflow, with_witnesses
from compiler.ops.number_format import Array
from compiler.targets.ort.session import OrtExecutor, with_outputs
from compiler.text_output import abbreviated, first_lines
from qsearch.data.prepared_data import Batches
from qsearch.limits import allow_cpu
from qsearch.opening.model_file import ModelSource, find_model
from qsearch.opening.open_model import DataSource, dims_with
from qsearch.search.closeness import Closeness
from workers.datasets.protocol import InputSpec
from workers.metrics.sqnr import sqnr_db

SAMPLES: Final = 8
_MOST_S: Final = 20.0
"""No further sample is evaluated after so many seconds; one always is."""
_COMPARED: Final = 64
"""Samples whose outputs are compared with the float model's."""
_SAME: Final = 1e-5
"""Float outputs nearer than this share of the largest are one output: onnxruntime has float32."""
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True)
class Measured:
    """The file in this onnxruntime against exact evaluation, with one setting of the session.

    Attributes:
        optimized, threads: the setting.
        differing, elements: of the outputs of all samples.
        largest: the largest difference of an output, in its units.
        integers, of: integers of quantization points that differ, and all of them.
        steps: the largest difference of such an integer.
        first: the first layer whose integers differ; "" where none do.
    """

    optimized: bool
    threads: int
    differing: int
    elements: int
    largest: float
    integers: int
    of: int
    steps: int
    first: str


@dataclass(frozen=True, slots=True)
class Cure:
    """A command that writes the same grids for kernels that add up in 32 bits.

    Attributes:
        command: for a shell.
        file: that it writes.
        to_file_db: SQNR of its outputs to exact evaluation of the judged file; None is equal.
        float_db, file_float_db: SQNR of its outputs, and of the judged file's, to the float model.
    """

    command: str
    file: str
    to_file_db: float | None = None
    float_db: float | None = None
    file_float_db: float | None = None

    @property
    def worse(self) -> bool:
        """True if its outputs are farther from the float model than those of the judged file."""
        mine = self.float_db
        theirs = self.file_float_db
        return mine is not None and (theirs is None or mine < theirs)

    def __str__(self) -> str:
        sums = "adds up in 32 bits in the engine, C and exact ONNX"
        told = f"{self.file} keeps these grids, and {sums}: the same outputs on the samples"
        if self.to_file_db is not None:
            told = f"{self.file} {sums}, with integers of its own: {self.to_file_db:.1f} dB to this"
            told += " file on the samples"
        if self.float_db is not None and self.file_float_db is not None:
            told += (
                f"; {self.float_db:.1f} dB to the float model, this file {self.file_float_db:.1f}"
            )
        return told


@dataclass(frozen=True, slots=True)
class Judgement:
    """The judgement of an int8 file.

    Attributes:
        file: the path.
        form: QDQ, QOperator or dynamic.
        opset: of the standard operators.
        overflow: of accumulators and biases.
        machines: layers on every machine.
        measured: settings of onnxruntime; none where the file could not be evaluated.
        data: the samples in words.
        samples: how many were evaluated.
        ties: ties that the samples meet, by layer.
        closeness: the file's outputs in this onnxruntime against those of the float model; None
            without it.
        against_float: grids that lose what they need not against the float model.
        cure: the way to a file without these; None where none is needed, or data are missing.
        notes: what was not judged, and why.
    """

    file: Path
    form: str
    opset: int
    overflow: Sequence[Claim]
    machines: Sequence[Row]
    measured: Sequence[Measured]
    data: str
    samples: int
    ties: Mapping[str, int]
    closeness: Closeness | None
    against_float: Sequence[Loss]
    cure: Cure | None
    notes: Sequence[str]

    @property
    def refuted(self) -> bool:
        """Some accumulator or bias leaves int32."""
        return any(claim.refuted for claim in self.overflow)

    @property
    def wrong(self) -> bool:
        """The file computes another function than the float model, or loses a group of channels."""
        return self.closeness is not None and self.closeness.wrong

    @property
    def verdict(self) -> str:
        """The first word about the file."""
        if self.wrong:
            return "WRONG"
        if self.refuted:
            return "REFUTED"
        return "nothing refuted"

    def acceptable(self, strict: bool = False) -> bool:
        """Nothing is wrong or refuted; with ``strict``, nothing is open, no machine may differ."""
        is_open = any(claim.verdict == OPEN for claim in self.overflow)
        if self.wrong or self.refuted:
            return False
        return not (strict and (is_open or differs(self.machines)))

    def against_lines(self) -> list[str]:
        """Sentences on right or wrong: against the float model, or that none was given."""
        found = self.closeness
        if found is None:
            told = "not judged: without --against FLOAT.onnx nobody knows what the file should give"
            return [f"right or wrong: {told}"]
        lines = [
            f"right or wrong: {'WRONG, ' if found.wrong else ''}{found.told(f'data ({self.data})')}"
        ]
        if (found.wrong or not found.close) and self.against_float:
            loss = self.against_float[0]
            lines.append(f"  first lost at {loss.layer}, {loss.what}: {loss.cause}")
        return lines

    @property
    def shown_rows(self) -> list[dict[str, str]]:
        """Rows of the table that are not exact everywhere, in short words."""
        rows = [
            r
            for r in self.machines
            if {r.cells[m] for m in MACHINES[:-1]} - {EXACT} or "tflm" in r.rules
        ]
        return [
            {"layer": r.layer, **{_HEADS[m]: _CELLS[r.cells[m]] for m in MACHINES}} for r in rows
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **asdict(self),
            "file": str(self.file),
            "verdict": self.verdict.lower().replace("nothing", "not"),
            "overflow": [claim.to_dict() for claim in self.overflow],
            "rules": {key: asdict(RULES[key]) for key in reasons(self.machines)},
            "onnxruntime": onnxruntime.__version__,
        }

    def html(self) -> str:
        """One page that needs no other file."""
        from qsearch.report.page import plot_page

        lines = [self.against_lines()[0], *self.summary()]
        facts = dict(line.split(": ", 1) for line in lines)
        facts |= (
            {} if self.cure is None else {"cure": self.cure.command, "its file": str(self.cure)}
        )
        tables: dict[str, Sequence[Mapping[str, Any]]] = {
            "where answers differ": [
                {"layer": r.layer, "operator": r.op, **r.cells} for r in self.machines
            ],
            "overflow": [
                {n: v for n, v in claim.to_dict().items() if n != "witness"}
                for claim in self.overflow
            ],
            "measured here": [asdict(each) for each in self.measured],
            "against the float model": [asdict(loss) for loss in self.against_float],
            "rules": [
                {"rule": key, **asdict(RULES[key]), "layers": ", ".join(layers)}
                for key, layers in reasons(self.machines).items()
            ],
            "witnesses": [{"witness": line} for line in self.witnesses()],
        }
        return plot_page(f"Judgement: {self.file.name}", facts, [], tables)

    def summary(self) -> list[str]:
        """Three lines: overflow, machines, what was measured."""
        refuted = [c for c in self.overflow if c.refuted]
        proved = sum(c.verdict == PROVED for c in self.overflow)
        left = sum(c.verdict == OPEN for c in self.overflow)
        told = f"{proved} accumulators and biases proved within int32"
        told += f", {left} open" if left else ""
        told += f", REFUTED: {_names(c.layer for c in refuted)}" if refuted else ""
        rows = self.machines
        floats = {"float sums", "function", "fused"}
        causes = {
            "pairs saturate without VNNI ({}), which the session option "
            "session.x64quantprecision=1 avoids": [r.layer for r in rows if r.pair is not None],
            "ties ({})": [r.layer for r in rows if r.tie is not None],
            "float parts ({})": [r.layer for r in rows if floats & {*r.rules}],
            "data rounded by MatMulNBits ({})": [r.layer for r in rows if "blocks" in r.rules],
            "ranges of the batch ({})": [r.layer for r in rows if "batch" in r.rules],
        }
        parts = [words.format(_names(layers)) for words, layers in causes.items() if layers]
        lines = [
            f"overflow: {told}",
            f"where answers differ: {'; '.join(parts) or 'nowhere in onnxruntime'}",
        ]
        worst = max(self.measured, key=lambda m: (m.integers, m.differing), default=None)
        if worst is None:
            return [*lines, f"measured here: nothing, {'; '.join(self.notes)}"]
        here = f"{worst.differing} of {worst.elements} outputs differ from exact evaluation"
        here += f", first in {worst.first}" if worst.first else ""
        return [*lines, f"measured here: {here}"]

    def witnesses(self) -> list[str]:
        """Sentences of operands that saturate, wrap or meet a tie."""
        lines = []
        for row in self.machines:
            pair = row.pair
            tie = row.tie
            if pair is not None:
                told = (
                    f"{row.layer}: {pair['data']} by {pair['weights']} is {pair['exact']}, "
                    f"{pair['saturated']} with vpmaddubsw"
                )
                if "whole_exact" in pair:
                    told += f"; a whole sum {pair['whole_exact']} becomes {pair['whole_saturated']}"
                if row.samples is not None:
                    told += f"; {row.samples} of {self.samples} samples saturate"
                lines.append(told)
            if tie is not None:
                told = f"{row.layer}: accumulator {tie['accumulator']} of channel {tie['channel']} "
                told += f"is {tie['value']:g} steps, a tie"
                told += "; operands add up to it" if tie["operands"] is not None else ""
                lines.append(told)
            if row.witness:
                lines.append(f"{row.layer}: {row.witness}")
        return lines

    def lines(self) -> list[str]:
        """The report before its table."""
        lines = [f"{self.file}: {self.verdict}", *self.against_lines()]
        lines.append(f"{self.form}, opset {self.opset}, layers: {len(self.machines)}")
        lines.append("overflow")
        proved = [c for c in self.overflow if c.verdict == PROVED]
        if proved:
            near = max(proved, key=lambda c: max(-c.low, c.high))
            share = 100 * max(-near.low, near.high) / 2**31
            lines.append(
                f"  proved   {len(proved)} accumulators and biases are within int32; the nearest "
                f"is {near.layer}, {share:.3g} % of it"
            )
        others: list[str] = []
        for claim in (c for c in self.overflow if c.verdict != PROVED):
            word = "REFUTED" if claim.refuted else "open"
            if claim.verdict.endswith("layer"):
                where = " at the layer"
            else:
                where = ""
            if claim.witness is not None:
                more = "; --json has the input"
            else:
                more = ""
            others.append(f"  {word:<8} {claim.layer}, {claim.what}{where}: {claim.detail}{more}")
        return lines + first_lines(others, _SHOWN)

    def lines_behind(self) -> list[str]:
        """The report behind its table: rules, witnesses, measurement, notes."""
        lines: list[str] = []
        why = reasons(self.machines)
        lines += ["why"] if why else []
        for key, layers in why.items():
            rule = RULES[key]
            lines.append(f"  {_names(layers)}: {rule.says} ({rule.source}; {rule.version})")
        found = [f"  {line}" for line in self.witnesses()]
        lines += ["shown by operands", *first_lines(found, _SHOWN)] if found else []
        if self.measured:
            lines.append(
                f"measured here: onnxruntime {onnxruntime.__version__}, {self.samples} samples, "
                f"{self.data}, against exact evaluation"
            )
        for each in self.measured:
            how = f"optimizations {'on' if each.optimized else 'off'}, {each.threads} "
            how += "threads" if each.threads > 1 else "thread"
            told = f"{each.differing} of {each.elements} outputs differ"
            told += f" by up to {each.largest:.3g}" if each.differing else ""
            if each.first:
                told += f"; {each.integers} of {each.of} integers by up to {each.steps}, first in "
                told += each.first
            lines.append(f"  {how}: {told}")
        if self.ties:
            told = ", ".join(f"{count} in {layer}" for layer, count in self.ties.items())
            lines.append(f"  exact ties in these samples: {told}")
        losses = []
        for loss in self.against_float:
            grid = f" ({loss.sqnr_db:.1f} dB, {loss.best_db:.1f} on its own grid)"
            told = f"  {loss.layer}, {loss.what}: {loss.cause}"
            losses.append(told + grid * (loss.best_db > 0))
        lines += ["against the float model", *first_lines(losses, _SHOWN)] if losses else []
        if self.cure is not None:
            lines += ["cure", f"  {self.cure.command}", f"  {self.cure}"]
        return lines + [f"note: {note}" for note in self.notes]


_HEADS: Final = dict(
    zip(MACHINES, ("AVX2", "AVX512", "VNNI", "AMX", "dot", "i8mm", "TFLM"), strict=True)
)
_CELLS: Final = {"exact": "exact", "may differ": "may", "can saturate": "sat.", "not examined": "?"}
LEGEND: Final = (
    "exact: the integers of exact sums; may: may differ; sat.: can saturate; ?: not examined. "
    "AVX2, AVX512 (without VNNI), VNNI, AMX: x86; dot, i8mm: Arm"
)


def _names(layers: Any) -> str:
    return abbreviated(list(dict.fromkeys(layers)), 3)


def judge(
    model: Any,
    data: Any = None,
    *,
    against: Any = None,
    samples: int = SAMPLES,
    dim: Mapping[str, int] | Sequence[str] = (),
) -> Judgement:
    """Judge an int8 ONNX file of any author.

    Args:
        model: path of the file.
        data: samples that it is measured on, as the ``eval`` of ``insight``; None is synthetic.
        against: path of the float model that it was made of.
        samples: how many of them.
        dim: sizes of named dimensions.
    Raises:
        OnnxImportError: the file cannot be read, or is not quantized.
        DataError: the data do not fit.
    """
    source = find_model(model)
    at_work(str, "the graph of the file")
    network = read_network(source.path)
    given = DataSource.of(data)
    specs = _specs(source, dims_with(given.data, source, dim, given.fields))
    notes: list[str] = []
    runs: list[Evaluation] = []
    taken: list[Mapping[str, Array]] = []
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="qsearch-") as scratch:
        opened = given.prepared(specs, "eval", Path(scratch))
        described = opened.described
        if against is not None:
            compared = list(Batches(opened, specs, _COMPARED))
        else:
            compared = []
        try:
            at_work(str, "a session of onnxruntime")
            # Limited in time and memory, before our own evaluation: anybody wrote the file.
            first = _Sessions(network, False, 1)
            allow_cpu(_MOST_S)
            plain = []
            begun = time.monotonic()
            for batch in Batches(opened, specs, samples):
                if runs and time.monotonic() - begun > _MOST_S:
                    break
                plain.append(first.run(batch))
                runs.append(evaluate(network, batch))
                taken.append(batch)
            measured.append(_measured(network, plain, runs, False, 1))
            for optimized, threads in ((False, 2), (True, 1), (True, 2)):
                sessions = _Sessions(network, optimized, threads)
                found = map(sessions.run, taken)
                measured.append(_measured(network, found, runs, optimized, threads))
        except (CodegenError, EvaluationError) as error:
            notes.append(f"not measured: {error.what}")
    terms = {
        p.name: int(run.values[p.data_name].shape[-1])
        for run in runs[:1]
        for p in network.products
        if p.weights is None and p.data_name in run.values
    }
    notes += padding_notes(network.model)  # OrtExecutor runs without this optimizer
    zeros = [{s.name: np.zeros(s.shape, s.dtype) for s in specs}]
    claims = with_witnesses(network, overflow(network, terms), taken or zeros)
    ops = {node.op_type for node in network.model.graph.node}
    if QUANTIZE in ops or "DequantizeLinear" in ops:
        static = "QDQ"
    elif "MatMulNBits" in ops:
        static = "MatMulNBits"
    else:
        static = "dynamic"
    form = "QOperator" if network.integer_forms else static
    opset = max((o.version for o in network.model.opset_import if not o.domain), default=0)
    try:
        at_work(str, "the optimized graph of onnxruntime")
        kernels = read_kernels(network.model) if runs else {}
    except CodegenError as error:
        kernels = {}
        notes.append(f"the optimized graph of onnxruntime was not read: {error.what}")
    rows = machines(network, runs, kernels)
    losses: list[Loss] = []
    closeness = None
    if against is not None:
        if given.data is None:
            notes.append("synthetic data may reach what real ones do not: --eval gives real ones")
        try:
            closeness = _closeness(network, read_model(find_model(against).path), compared)
            losses = compare_grids(network, find_model(against).path, taken)
        except (CodegenError, EvaluationError) as error:
            notes.append(f"not compared with the float model: {error.what}")
    ill = any(r.pair is not None or "softmax" in r.rules for r in rows)
    cure = None
    if closeness is not None and closeness.wrong:
        float_file = shlex.quote(str(find_model(against).path))
        notes.append(f"no cure keeps these grids: `qsearch compile {float_file} --calib DATA`")
    elif ill and taken and given.data is not None:
        try:
            cure = _cure(source, given, dim, network, taken, runs, against)
            if cure.worse:
                notes.append(f"no cure: {cure}")
                cure = None
        except CompilerError as error:
            notes.append(f"no cure by `qsearch compile`: {error.what}")
    return Judgement(
        source.path,
        form,
        opset,
        claims,
        rows,
        measured,
        described,
        len(runs),
        _ties(network, runs),
        closeness,
        losses,
        cure,
        notes,
    )


def _cure(
    source: ModelSource,
    given: DataSource,
    dim: Any,
    network: Network,
    inputs: Sequence[Mapping[str, Array]],
    runs: Sequence[Evaluation],
    against: Any,
) -> Cure:
    """Compile the file and compare the module, whose sums saturate nowhere, with it."""
    from qsearch.commands.quantization import quantize

    module = quantize(source.path, given, dim=dim)
    exact = [[run.values[name] for name in network.outputs] for run in runs]
    cured = [module.run(values) for values in inputs]
    target = f"{source.path.stem}.qmod"
    words = ["qsearch", "compile", str(source.path), "--calib", str(given.data), "-o", target]
    if given.preprocess is not None:
        words += ["--preprocess", str(given.preprocess)]
    cure = Cure(shlex.join(words), target, _sqnr(exact, cured))
    if against is None:
        return cure
    session = OrtExecutor(read_model(find_model(against).path), limited=True)
    plain = [session.run(list(values.values())) for values in inputs]
    return replace(cure, float_db=_sqnr(plain, cured), file_float_db=_sqnr(plain, exact))


def _sqnr(wanted: Sequence[Sequence[Array]], found: Sequence[Sequence[Array]]) -> float | None:
    """SQNR in dB of the outputs of all samples; None where they are one but for float32."""
    value = sqnr_db(wanted, found)
    if value is None or value > -20 * math.log10(_SAME):
        return None
    return round(value, 1)


def _specs(source: ModelSource, dims: Mapping[str, int]) -> tuple[InputSpec, ...]:
    def size(name: str, axis: int, dim: int | str) -> int:
        own = dims.get(f"{name}:{axis}", 1)
        if isinstance(dim, int):
            return dim
        return dims.get(dim, own)

    return tuple(
        InputSpec(p.name, tuple(size(p.name, i, d) for i, d in enumerate(p.dims)), p.dtype)
        for p in source.declared.inputs
    )


def _points(network: Network) -> list[str]:
    """Tensors of integers that the file writes, in order."""
    own = {name for node in network.model.graph.node for name in node.output}
    return [
        node.output[0]
        for node in network.nodes
        if node.op_type in (QUANTIZE, DYNAMIC) and node.output[0] in own & network.live
    ]


class _Sessions:
    """The file as it is in onnxruntime, and once more with the integers of its points.

    Further outputs keep onnxruntime from fusing nodes, so that outputs are of the first alone.
    """

    def __init__(self, network: Network, optimized: bool, threads: int) -> None:
        points = with_outputs(network.model, _points(network))
        options: dict[str, Any] = {"optimize": optimized, "threads": threads, "limited": True}
        self._plain = OrtExecutor(network.model, folds=optimized, **options)
        self._points = OrtExecutor(points, folds=optimized, **options)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return outputs and points by name."""
        values = dict(zip(self._points.output_names, self._points.run(inputs)))
        return values | dict(zip(self._plain.output_names, self._plain.run(inputs)))


def _closeness(
    network: Network, float_model: onnx.ModelProto, samples: Iterable[Mapping[str, Array]]
) -> Closeness | None:
    """Compare the outputs of the file with those of the float model, group by group."""
    exact = OrtExecutor(float_model, limited=True)
    judged = OrtExecutor(network.model, limited=True)
    wanted = []
    found = []
    for batch in samples:
        wanted.append(exact.run(list(batch.values())))
        found.append(judged.run(batch))
    names = [output.name for output in float_model.graph.output]
    count = sum(len(next(iter(outputs), ())) for outputs in wanted)
    return Closeness.between(wanted, found, names, count, joined_fields(float_model, names))


def _measured(
    network: Network,
    outputs: Iterable[Mapping[str, Array]],
    runs: Sequence[Evaluation],
    optimized: bool,
    threads: int,
) -> Measured:
    points = _points(network)
    differing = elements = integers = of = steps = 0
    largest = 0.0
    firsts: set[int] = set()
    for found, run in zip(outputs, runs):
        for name in network.outputs:
            theirs = found[name].astype(np.float64)
            far = np.abs(theirs - run.values[name])
            scale = np.abs(run.values[name]).max(initial=0)
            near = _SAME * scale if found[name].dtype.kind == "f" else 0
            differing = differing + int((far > near).sum())
            elements = elements + far.size
            largest = max(largest, float(far.max(initial=0)))
        for place, name in enumerate(points):
            far = np.abs(found[name].astype(np.int64) - run.values[name])
            integers = integers + int((far > 0).sum())
            of = of + far.size
            steps = max(steps, int(far.max(initial=0)))
            firsts.update([place] if far.any() else ())
    if firsts:
        first = _layer_of(network, points[min(firsts)])
    else:
        first = ""
    return Measured(optimized, threads, differing, elements, largest, integers, of, steps, first)


def _layer_of(network: Network, point: str) -> str:
    """The product or operator whose result a point quantizes."""
    product = next((p.name for p in network.products if p.result_name == point), None)
    node = network.writer[point]
    source = network.writer.get(node.input[0])
    return product or (node.name if source is None else source.name)


def _ties(network: Network, runs: Sequence[Evaluation]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for run in runs:
        for point, count in run.ties.items():
            found[_layer_of(network, point)] += count
    return dict(+found)


def summary_of(model: Any, dim: Mapping[str, int] | Sequence[str] = ()) -> tuple[str, ...]:
    """The three lines of a judgement; () for a file that cannot be judged, or is not quantized."""
    try:
        return tuple(judge(model, samples=2, dim=dim).summary())
    except CompilerError:
        return ()
