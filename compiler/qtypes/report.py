"""QuantizeReport: which calls of the float graph became integer, which did not and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Function, Op, is_op_call
from compiler.qtypes.qconfig import kind2str

BORDER_OPS = ("annotation.cast_hint", "annotation.stop_fusion")
"""Operators that hand a value on where a region of integers ends."""
MARKER_OPS = (*BORDER_OPS, "relay.op.annotation.simulated_quantize")
"""Operators that the quantization passes add; every other call belongs to the float graph."""
OPERAND_FLOAT = "operand_float"
UNBOUNDED = "unbounded"
"""Reason of a call that makes whole numbers real, which nothing bounds."""
"""Reason of a call that has a rule, and no quantized operand to apply it to."""


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Record of one call of the float graph.

    Attributes:
        op: name of the operator.
        where: the ONNX node or text line it came from, "" when not known.
        conv_index: what skip_conv_layers calls this nn.conv2d, else None.
        layer: what QConfig.layers calls this convolution or matrix product, else "".
        status: "integer" or "float".
        reason: for float: skipped_layer (also by QConfig.layers), skipped_dense, stopped,
            no_rule:<pass>, rule_aborted, guard, operand_float or unbounded; else "".
    """

    op: str
    where: str = ""
    conv_index: int | None = None
    status: str = "float"
    reason: str = "no_rule:QuantizeAnnotate"
    layer: str = ""


@dataclass(frozen=True, slots=True)
class PointRecord:
    """One quantize point: its kind, its real-valued range S and the scale S / 2^(bits - 1)."""

    kind: str
    range_s: float | tuple[float, ...]
    dom_scale: float | tuple[float, ...]


@dataclass(slots=True)
class QuantizeReport:
    """Calls in visiting order of the float graph, points in binding order, and remarks.

    The quantization passes keep the order of the float graph's calls, so a call is known by its
    place in that order.
    """

    calls: list[CallRecord] = field(default_factory=list)
    points: list[PointRecord] = field(default_factory=list)
    diagnostics: list[str] = field(default_factory=list)

    def begin(self, main: Function, layers: Mapping[Call, str]) -> None:
        """Start over for this float graph, whose layers have these names."""
        self.points = []
        self.calls = []
        conv_index = 0
        for call in float_calls(main):
            assert isinstance(call.op, Op)
            where = "" if call.span is None else str(call.span)
            is_conv = call.op.name == "nn.conv2d"
            index = conv_index if is_conv else None
            conv_index += is_conv
            record = CallRecord(call.op.name, where, index, layer=layers.get(call, ""))
            self.calls.append(record)

    def set_call(self, place: int, status: str, reason: str = "") -> None:
        """State what became of the call at this place."""
        if place >= len(self.calls):
            return
        known = self.calls[place]
        if (known.status, known.reason) != (status, reason):
            self.calls[place] = replace(known, status=status, reason=reason)

    def add_point(self, kind: int, range_s: NDArray[Any], dom_scale: NDArray[Any]) -> None:
        """State the range and the scale of the next quantize point."""
        self.points.append(PointRecord(kind2str(kind), _plain(range_s), _plain(dom_scale)))

    @property
    def float_ops(self) -> list[CallRecord]:
        """The calls that stay float."""
        return [record for record in self.calls if record.status == "float"]


def float_calls(main: Function) -> Iterator[Call]:
    """Operator calls in visiting order, without the calls that quantization adds."""
    for node in post_order(main):
        if is_op_call(node) and not is_op_call(node, *MARKER_OPS):
            yield node


def call_places(main: Function) -> Mapping[Expr, int]:
    """Place of every call of the float graph in this stage of it."""
    return {call: place for place, call in enumerate(float_calls(main))}


def _plain(values: NDArray[Any]) -> float | tuple[float, ...]:
    array = np.asarray(values)
    if array.ndim == 0:
        return float(array)
    return tuple(array.astype(np.float64).tolist())
