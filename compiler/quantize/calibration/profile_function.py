"""The float network with every quantize point as an output: what calibration measures.

    annotated                                              profile function
    %1 = nn.conv2d(simulated_quantize(%x), simulated_quantize(W))   %1 = nn.conv2d(%x, W);
    simulated_quantize(nn.relu(%1))                        (%x, nn.relu(%1))

All annotations are identities on the float network, so upstream quantization error is not seen. A
second calibration sees it: there the points keep their scales, and what they read is measured.
Points that read the same value share one output. Values that only a softmax or a function of single
elements reads are measured where they make a difference: hard-swish maps all values below -3 to 0,
so a range that ends there has finer steps. Source: Relay v0.10 quantize/calibrate.cc.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from compiler.errors import InternalQuantizeError
from compiler.ir.analysis import free_vars
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    describe,
    is_op_call,
)
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import closed, ends_of
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import is_given
from compiler.ops.nn.softmax import SoftmaxAttrs
from compiler.ops.op_call import op_call, scalar
from compiler.ops.tensor.formula import varying_part
from compiler.ops.tensor.unary_formula import UnaryFormulaAttrs
from compiler.qtypes.qconfig import QAnnotateKind, kind2str
from compiler.quantize._masks import LIMIT
from compiler.quantize.calibration.point_bits import Readers, point_readers
from compiler.quantize.calibration.stats import PointMap

SIMULATED_QUANTIZE = "relay.op.annotation.simulated_quantize"

_IDENTITIES = (SIMULATED_QUANTIZE, "annotation.cast_hint", "annotation.stop_fusion")


_NEAR = 16.0
"""Softmax makes less than 2e-7 of what lies further below the largest: masked scores, mostly."""


Bounds = tuple[float, float]
"""A part of the axis of real numbers, ends included."""

_EVERYWHERE: Final[Bounds] = (-math.inf, math.inf)


@collector_rests
def profile_function(annotated: IRModule) -> tuple[IRModule, PointMap]:
    """Module whose main returns the distinct measured tensors, and the tensor of each point.

    Args:
        annotated: result of QuantizeAnnotate.
    Raises:
        InternalQuantizeError: there is nothing to measure, or a point lies on a constant.
    """
    main: Function = annotated["main"]
    _, tensors, ends, points = _measured(main)
    return _returning(main, tensors, ends), points


@collector_rests
def whole_profile(annotated: IRModule) -> tuple[IRModule, PointMap]:
    """``profile_function`` with the result of the network in front of the measured tensors."""
    main: Function = annotated["main"]
    result, tensors, ends, points = _measured(main)
    return _returning(main, (result, *tensors), ends), points


def _returning(main: Function, values: Sequence[Expr], ends: Sequence[Expr]) -> IRModule:
    body = Tuple((*values, *ends))
    used = set(free_vars(body))
    params = tuple(param for param in main.params if param in used)
    mod = infer_module(IRModule.from_expr(Function(params, body)))
    if not ends:
        return mod
    whole: Function = closed(mod)["main"]
    fields = whole.body.operands()[: len(values)]
    return infer_module(IRModule.from_expr(whole.with_fields(body=Tuple(fields))))


def _measured(
    main: Function,
) -> tuple[Expr, tuple[Expr, ...], tuple[Expr, ...], PointMap]:
    """The result without points, the distinct measured tensors, ends of loops, and the tensor of
    each point."""
    plain: dict[Expr, Expr] = {}
    tensors: dict[Expr, int] = {}
    labels: list[str] = []
    point_tensor: list[int] = []
    point_kind: list[int] = []
    readers: list[Readers] = []
    read_by = point_readers(main)
    nodes = nodes_of(main)
    compared, varied = _read_by_softmax(nodes, main.body), _read_by_formulas(nodes, main.body)
    for node in nodes:
        if not is_op_call(node, *_IDENTITIES) or is_given(node):
            plain[node] = with_operands(node, [plain[child] for child in node.operands()])
            continue
        assert isinstance(node, Call)
        data = plain[node] = plain[node.args[0]]
        kind = getattr(node.attrs, "kind", QAnnotateKind.IDENTITY)
        if kind not in (QAnnotateKind.INPUT, QAnnotateKind.ACTIVATION):
            continue
        if node in compared:
            data = _near_largest(data, compared[node])
        elif node in varied:
            data = _bounded(data, *varied[node])
        if isinstance(data, Constant):
            raise InternalQuantizeError(
                f"a quantize point of kind {kind2str(kind)} lies on a constant",
                where=describe(node),
                span=node.span,
            )
        if data not in tensors:
            tensors[data] = len(tensors)
            labels.append(f"{len(labels)}: {describe(data)}")
        point_tensor.append(tensors[data])
        point_kind.append(int(kind))
        readers.append(read_by.get(node, ()))
    if not tensors:
        raise InternalQuantizeError(
            "nothing to calibrate: no tensor of @main is quantized",
            fix="use calibrate_mode=global_scale, or a QConfig that quantizes some layer",
        )
    points = PointMap(
        tuple(labels),
        np.asarray(point_tensor, np.int64),
        np.asarray(point_kind, np.int64),
        tuple(readers),
    )
    ends = tuple(TupleGetItem(plain[end.tuple], 0) for end in ends_of(main))
    return plain[main.body], tuple(tensors), ends, points


def _read_by_softmax(nodes: Sequence[Expr], result: Expr) -> dict[Expr, int]:
    """Points of which all readers are softmax along one axis, with that axis."""
    axes: dict[Expr, set[int | None]] = {result: {None}}
    found: dict[Expr, int] = {}
    for node in reversed(nodes):
        read = axes.get(node, set())
        if is_op_call(node, SIMULATED_QUANTIZE) and len(read) == 1:
            (axis,) = read
            if axis is not None:
                found[node] = axis
        if isinstance(node, Call) and is_op_call(node, "nn.softmax"):
            read = {SoftmaxAttrs.of(node).axis}
        elif not is_op_call(node, "annotation.cast_hint", "annotation.stop_fusion"):
            read = {None}
        for operand in node.operands():
            axes.setdefault(operand, set()).update(read)
    return found


def _read_by_formulas(nodes: Sequence[Expr], result: Expr) -> dict[Expr, Bounds]:
    """Points of which all readers are formulas, with the part of the axis where one varies."""
    parts: dict[Expr, set[Bounds]] = {result: {_EVERYWHERE}}
    found: dict[Expr, Bounds] = {}
    for node in reversed(nodes):
        read = parts.get(node, {_EVERYWHERE})
        if is_op_call(node, SIMULATED_QUANTIZE):
            bounds = min(low for low, _ in read), max(high for _, high in read)
            if bounds != _EVERYWHERE:
                found[node] = bounds
        if isinstance(node, Call) and is_op_call(node, "unary_formula"):
            read = {varying_part(UnaryFormulaAttrs.of(node).formula)}
        elif not is_op_call(node, "annotation.cast_hint", "annotation.stop_fusion"):
            read = {_EVERYWHERE}
        for operand in node.operands():
            parts.setdefault(operand, set()).update(read)
    return found


def _bounded(data: Expr, low: float, high: float) -> Expr:
    """The data, those outside of [low, high] moved to its ends."""
    if low > -math.inf:
        data = op_call("maximum", data, scalar(low, "float32"))
    return data if high == math.inf else op_call("minimum", data, scalar(high, "float32"))


def _near_largest(scores: Expr, axis: int) -> Expr:
    """Scores, at least max - 16: softmax maps smaller scores to nearly 0. Rows that are masked as a
    whole are as if they were not, for softmax sees no difference."""
    largest = op_call("max", scores, axis=(axis,), keepdims=True)
    masked = op_call("less", largest, scalar(-LIMIT / 2, "float32"))
    raised = op_call("where", masked, scalar(LIMIT, "float32"), scalar(0, "float32"))
    scores, largest = (op_call("add", value, raised) for value in (scores, largest))
    return op_call("maximum", scores, op_call("subtract", largest, scalar(_NEAR, "float32")))
