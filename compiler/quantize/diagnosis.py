"""diagnose: which operators of a float module become integer, which do not, why, and what helps.

Needs no data: every activation range is ``global_scale``, because ranges decide numbers and never
which operator has an integer form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from compiler.errors import QuantizeError
from compiler.ir.expr import Call, Constant, Expr, Var, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.ty import holds_float
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import is_given, quantize_kind
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.never_negative import never_negative
from compiler.ops.rules.simplify import FCanonicalize
from compiler.ops.rules.zero_point import may_have_zero_point
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import REST
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.qtypes.report import MARKER_OPS, OPERAND_FLOAT, UNBOUNDED, CallRecord, float_calls
from compiler.quantize.candidate import build_marked, mark, recommended_mark, without_data
from compiler.quantize.conversions.partition_conversions import (
    integer_dtypes,
    partition_conversions,
)
from compiler.quantize.first_calls import converted_inputs
from compiler.quantize.preparation.integer_inputs import overflowing
from compiler.span import onnx_nodes

CONVERSION = "conversion"
"""Reason of a call that turns an input into what quantize_inputs rounds: no part of the core."""
COPIED = "copied"
"""Reason of a copy that makes an output of an input: @main returns the input."""
OVERFLOWS = "overflows"
"""Reason of arithmetic on whole numbers that may leave its dtype."""
OUTSIDE = (CONVERSION, COPIED)
"""Reasons of calls that stand outside the integer core and keep nothing from it."""


_WHY: Final = {
    "no_rule": "no integer form",
    "rule_aborted": "no integer form of these operands",
    OPERAND_FLOAT: "reads float",
    UNBOUNDED: "makes whole numbers real that nothing bounds",
    "skipped_layer": "left out by the configuration",
    "skipped_dense": "left out by the configuration",
    "stopped": "left out by the configuration",
    "guard": "left out by the configuration",
    OVERFLOWS: "whole numbers that may overflow",
}


def why_float(reason: str) -> str:
    """A reason of the diagnosis in words; --json has its code."""
    return _WHY.get(reason.partition(":")[0], reason)


@dataclass(frozen=True, slots=True)
class OperatorDiagnosis:
    """Diagnosis of one operator.

    Attributes:
        op: Relay name.
        onnx_nodes: ONNX nodes it came from; empty when not known.
        conv_index: what skip_conv_layers calls this nn.conv2d, else None.
        layer: what QConfig.layers calls this convolution or matrix product, else "".
        status: "integer" or "float".
        reason: for float, as ``CallRecord.reason``, or "conversion": it converts an input in
            quantize_inputs; else "".
        because_of: for operand_float: place in ``Diagnosis.operators`` of the operator that made
            the operands float; None when a model input or weight did.
        advice: for float: what would make it integer; else "".
    """

    op: str
    onnx_nodes: tuple[str, ...]
    conv_index: int | None
    layer: str
    status: str
    reason: str
    because_of: int | None
    advice: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Result of ``diagnose``; operators in visiting order of the float graph.

    Attributes:
        fully_integral: this configuration gives a module that computes on integers only.
        operators: one entry per call of the float graph.
        obstacles: errors that stopped the build, or the verdict of the fully_integral check.
        notes: what is known of signs and ranges of activations before calibration.
    """

    fully_integral: bool
    operators: tuple[OperatorDiagnosis, ...]
    obstacles: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def integer_count(self) -> int:
        """Operators that become integer."""
        return sum(entry.status == "integer" for entry in self.operators)

    @property
    def float_count(self) -> int:
        """Operators that stay float."""
        return len(self.operators) - self.integer_count

    def causes(self) -> list[dict[str, Any]]:
        """Float operators that are no consequence of another, grouped by operator and advice.

        Each row: op, reason, advice, count, onnx_nodes, and how many more operators are float
        because of them; the widest effect comes first.
        """
        follow = Counter(e.because_of for e in self.operators if e.because_of is not None)
        rows: dict[tuple[str, str, str], dict[str, Any]] = {}
        for place, entry in enumerate(self.operators):
            if entry.status == "integer" or entry.reason in OUTSIDE:
                continue
            if entry.because_of is not None:
                continue
            row = rows.setdefault(
                (entry.op, entry.reason, entry.advice),
                {
                    "op": entry.op,
                    "reason": entry.reason,
                    "advice": entry.advice,
                    "count": 0,
                    "onnx_nodes": [],
                    "consequences": 0,
                },
            )
            row["count"] += 1
            row["onnx_nodes"] += [n for n in entry.onnx_nodes if n not in row["onnx_nodes"]]
            row["consequences"] += follow[place]
        return sorted(rows.values(), key=lambda r: (-r["count"] - r["consequences"], r["op"]))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "fully_integral": self.fully_integral,
            "integer": self.integer_count,
            "float": self.float_count,
            "causes": self.causes(),
            "obstacles": list(self.obstacles),
            "notes": list(self.notes),
            "operators": [{**asdict(e), "onnx_nodes": list(e.onnx_nodes)} for e in self.operators],
        }


def diagnose(mod: IRModule, qconfig: QConfig) -> Diagnosis:
    """Say of every operator whether it will be integer, without data.

    Args:
        mod: result of ``prerequisite_optimize``.
        qconfig: fields that need data, partition_conversions and do_simulation are not looked at,
            since none of them decides which operator has an integer form.
    """
    plain = without_data(qconfig).uncut
    usual = plain == without_data(QConfig.recommended()).uncut
    annotated, run = mod.view(recommended_mark) if usual else mark(mod, plain)
    run = replace(run, report=deepcopy(run.report))  # the view keeps its own
    records, obstacles = _built(mod, annotated, run)
    overflows = overflowing(annotated)
    obstacles += tuple(
        f"whole numbers may leave their dtype: {told}" for told in overflows.values()
    )
    # Annotation keeps the order of the calls that the report is about.
    calls = list(float_calls(annotated["main"]))
    converted = converted_inputs(nodes_of(annotated["main"]))
    records = [
        replace(record, status="float", reason=OVERFLOWS)
        if call in overflows
        else _placed(call, record, converted)
        for call, record in zip(calls, records, strict=True)
    ]
    operators = _operators(calls, records, plain)
    return Diagnosis(not obstacles, operators, obstacles, notes_of(annotated, qconfig))


def _built(
    mod: IRModule, annotated: IRModule, run: QuantizeContext
) -> tuple[list[CallRecord], tuple[str, ...]]:
    """The report's calls, and what stands against a fully integral module."""
    marked = [*run.report.calls]
    try:
        candidate = build_marked(mod, annotated, run, None)
    except QuantizeError as error:
        return marked, (str(error),)
    assert candidate.integer is not None
    try:
        partition_conversions(candidate.integer, integer_dtypes(run.qconfig), True)
    except QuantizeError as error:
        return candidate.report.calls, (error.what,)
    return candidate.report.calls, ()


def _placed(call: Call, record: CallRecord, converted: Container[Expr]) -> CallRecord:
    """The record; told apart from float calls is what is float in quantize_inputs, as it has to be,
    what never was: comparisons of integers, and what moves truth values; and a copy of an input or
    constant, an output that @main returns itself."""
    if is_op_call(call, "copy") and isinstance(call.args[0], (Var, Constant)):
        record = replace(record, reason=COPIED)
    if record.status == "integer":
        return record
    if not any(holds_float(node.checked_type) for node in (call, *call.args)):
        return replace(record, status="integer", reason="")
    if call in converted:
        return replace(record, reason=CONVERSION)
    return record


def _operators(
    calls: Sequence[Call], records: Sequence[CallRecord], qconfig: QConfig
) -> tuple[OperatorDiagnosis, ...]:
    places: dict[Expr, int] = {call: place for place, call in enumerate(calls)}
    roots: list[int | None] = []
    found: list[OperatorDiagnosis] = []
    for place, (call, record) in enumerate(zip(calls, records, strict=True)):
        root = _root(call, record, places, roots)
        roots.append(root)
        because_of = None if root == place else root
        found.append(
            OperatorDiagnosis(
                op=record.op,
                onnx_nodes=onnx_nodes(call.span),
                conv_index=record.conv_index,
                layer=record.layer,
                status=record.status,
                reason=record.reason,
                because_of=because_of,
                advice=_advice(record, because_of, found, qconfig),
            )
        )
    return tuple(found)


def _root(
    call: Call, record: CallRecord, places: Mapping[Expr, int], roots: Sequence[int | None]
) -> int | None:
    """Place of the operator that causes this call to be float; None for integer calls."""
    if record.status == "integer":
        return None
    if record.reason == OPERAND_FLOAT:
        for operand in _producers(call):
            place = places.get(operand)
            if place is not None and roots[place] is not None:
                return roots[place]
    return places[call]


def _producers(call: Call) -> list[Expr]:
    """Operands, looking through quantization markers, tuples and their fields."""
    found: list[Expr] = []
    stack: list[Expr] = list(reversed(call.args))
    while stack:
        node = stack.pop()
        if not isinstance(node, Call):
            stack.extend(reversed(node.operands()))
        elif is_op_call(node, *MARKER_OPS):
            stack.append(node.args[0])
        else:
            found.append(node)
    return found


def _advice(
    record: CallRecord,
    because_of: int | None,
    before: Sequence[OperatorDiagnosis],
    qconfig: QConfig,
) -> str:
    if record.status == "integer" or record.reason in OUTSIDE:
        return ""
    if because_of is not None:
        cause = before[because_of]
        node = f" ({cause.onnx_nodes[0]})" if cause.onnx_nodes else ""
        return f"follows once {cause.op}{node} is integer"
    kind, _, pass_name = record.reason.partition(":")
    advice = _ADVICE.get(kind)
    if advice is None:
        return f"leave it float with partition_conversions=enabled ({record.reason})"
    return advice(record, pass_name, qconfig)


def _skipped_layer(record: CallRecord, _pass: str, qconfig: QConfig) -> str:
    for name in (record.layer, REST):
        if name in qconfig.layers.float_layers:
            return f"take float of {name!r} out of layers"
    kept = [i for i in qconfig.skip_conv_layers or () if i != record.conv_index]
    return f"set skip_conv_layers={kept}"


def _no_rule(record: CallRecord, pass_name: str, qconfig: QConfig) -> str:
    if record.op in FCanonicalize and record.op not in FQAnnotateRewrite:
        return f"CanonicalizeOps writes {record.op} otherwise: set prerequisite_level=3"
    if qconfig.integer_tables:
        tables = ""
    else:
        tables = "set integer_tables=True; if that is not enough, "
    return (
        f"{tables}{record.op} has no rule in {pass_name}: replace it in the model, register a rule "
        "(compiler/quantize/README.md), end the module in front of it (--until NODE), or leave it "
        "float with partition_conversions=enabled (launch: --allow-float)"
    )


_ADVICE: dict[str, Callable[[CallRecord, str, QConfig], str]] = {
    "skipped_layer": _skipped_layer,
    "skipped_dense": lambda *_: "set skip_dense_layer=False",
    "stopped": lambda *_: "set stop_after_global_pool=False",
    "guard": lambda record, *_: (
        f"add {record.op} to debug_enabled_ops, or set debug_enabled_ops=None"
    ),
    "no_rule": _no_rule,
    "rule_aborted": lambda record, *_: (
        f"the rule of {record.op} declines these operands (weights that are no constants, a form "
        "it does not handle, or float beside integers): change them in the model, or leave it "
        "float with partition_conversions=enabled"
    ),
    OVERFLOWS: lambda *_: (
        "numbers that wrap are in no proof: end the module in front of them, or begin it behind "
        "them (--until, --from)"
    ),
    UNBOUNDED: lambda *_: (
        "give these whole numbers as a float input, or clip them to the range that they have"
    ),
    OPERAND_FLOAT: lambda record, *_: (
        f"no operand of {record.op} is quantized: it lies outside the integer part of the model; "
        "move it into the pre- or postprocessing, or leave it float with "
        "partition_conversions=enabled"
    ),
}


_FULL_BITS = 8


def notes_of(annotated: IRModule, qconfig: QConfig) -> tuple[str, ...]:
    """Sentences for users, the signs first; points that the model brought along are decided.

    Args:
        annotated: result of ``mark``.
    """
    nodes = nodes_of(annotated["main"])
    notes = [_signs(nodes, qconfig.activation_scheme)]
    if qconfig.calibrate_mode == "kl_divergence":
        softmax = sum(is_op_call(node, "nn.softmax", "nn.log_softmax") for node in nodes)
        if softmax:
            notes.append(
                f"calibrate_mode=kl_divergence tends to cut off the large probabilities of "
                f"{softmax} softmax; calibrate_mode=mse keeps them"
            )
        if qconfig.nbit_input < _FULL_BITS:
            notes.append(
                f"calibrate_mode=kl_divergence with nbit_input={qconfig.nbit_input} may keep "
                "hardly anything of data of few distinct values, such as pixels; "
                "calibrate_mode=mse does not"
            )
    return tuple(note for note in notes if note)


def _signs(nodes: Sequence[Expr], scheme: str) -> str:
    points = [
        node
        for node in nodes
        if isinstance(node, Call)
        and quantize_kind(node) == QAnnotateKind.INPUT
        and not is_given(node)
    ]
    if not points:
        return ""
    known = never_negative(nodes)
    positive = sum(point.args[0] in known for point in points)
    told = (
        f"activation_scheme={scheme}: {positive} of {len(points)} quantized activations are "
        "never negative, as their operators tell"
    )
    if scheme == "symmetric":
        return f"{told}; they lose half of their levels, which activation_scheme=unsigned uses"
    told += ", and stored unsigned; so are those in which calibration sees nothing below 0"
    if scheme == "unsigned":
        return f"{told}, the others symmetric"
    allowed = may_have_zero_point(nodes)
    shifted = sum(point in allowed and point.args[0] not in known for point in points)
    return f"{told}; {shifted} others may get a zero point where their range is uneven"
