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
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from compiler.errors import InternalQuantizeError
from compiler.ir.expr import Constant, Expr, Function, Tuple, TupleGetItem, describe, is_op_call
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import closed, ends_of
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.walk import function_of, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import SQ, is_given
from compiler.ops.annotation.minus_infinity import LIMIT, is_mask_point, is_score_point
from compiler.ops.nn.softmax import SoftmaxAttrs
from compiler.ops.op_call import op_call, scalar
from compiler.ops.tensor.clip import ClipAttrs
from compiler.ops.tensor.formula import varying_part
from compiler.ops.tensor.unary_formula import UnaryFormulaAttrs
from compiler.qtypes.qconfig import QAnnotateKind, kind2str
from compiler.qtypes.report import BORDER_OPS, MARKER_OPS
from compiler.quantize.bits.point_bits import Readers, point_readers
from compiler.quantize.calibration.stats import PointMap

_NEAR = 16.0
"""Softmax makes less than 2e-7 of what lies further below the largest: masked scores, mostly."""


Bounds = tuple[float, float]
"""A part of the axis of real numbers, ends included."""

_EVERYWHERE: Final[Bounds] = (-math.inf, math.inf)

Use = tuple[int | None, Bounds]
"""Values that a reader tells apart: a softmax of the largest values along its axis, a formula of
the part where it varies."""

_WHOLE: Final[Use] = (None, _EVERYWHERE)


@collector_rests
def profile_function(annotated: IRModule, whole: bool = False) -> tuple[IRModule, PointMap]:
    """Module whose main returns the distinct measured tensors, and the tensor of each point.

    Args:
        annotated: result of QuantizeAnnotate.
        whole: the result of the network stands in front of the measured tensors.
    Raises:
        InternalQuantizeError: there is nothing to measure, or a point lies on a constant.
    """
    main: Function = annotated["main"]
    result, tensors, ends, points = _measured(main)
    values = (result, *tensors) if whole else tensors
    body = Tuple((*values, *ends))
    mod = infer_module(IRModule.from_expr(function_of(main.params, body)))
    if ends:
        loops: Function = closed(mod)["main"]
        fields = loops.body.operands()[: len(values)]
        mod = infer_module(IRModule.from_expr(loops.with_fields(body=Tuple(fields))))
    return mod, points


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
    uses = uses_of_points(nodes, main.body)
    for node in nodes:
        if not is_op_call(node, *MARKER_OPS) or is_given(node):
            plain[node] = with_operands(node, [plain[child] for child in node.operands()])
            continue
        data = plain[node] = plain[node.args[0]]
        kind = getattr(node.attrs, "kind", QAnnotateKind.IDENTITY)
        if kind not in (QAnnotateKind.INPUT, QAnnotateKind.ACTIVATION):
            continue
        data = _used_part(data, uses[node], is_score_point(node))
        if is_mask_point(node):
            data = op_call("maximum", data, scalar(-LIMIT, "float32"))
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


def uses_of_points(nodes: Sequence[Expr], result: Expr) -> dict[Expr, set[Use]]:
    """Collect the values that each reader of a point tells apart."""
    uses: dict[Expr, set[Use]] = {result: {_WHOLE}}
    found: dict[Expr, set[Use]] = {}
    for node in reversed(nodes):
        read = uses.get(node, {_WHOLE})
        if is_op_call(node, SQ):
            found[node] = read
        if is_op_call(node, "nn.softmax"):
            read = {(SoftmaxAttrs.of(node).axis, _EVERYWHERE)}
        elif is_op_call(node, "unary_formula"):
            read = {(None, varying_range(node))}
        elif not is_op_call(node, *BORDER_OPS):
            read = {_WHOLE}
        for operand in node.operands():
            uses.setdefault(operand, set()).update(read)
    return found


def varying_range(reader: Expr) -> Bounds:
    """Return the range of an element within which the result of a call varies."""
    if is_op_call(reader, "unary_formula"):
        return varying_part(UnaryFormulaAttrs.of(reader).formula)
    if is_op_call(reader, "clip"):
        attrs = ClipAttrs.of(reader)
        return min(attrs.a_min, 0.0), max(attrs.a_max, 0.0)
    return _EVERYWHERE


def _used_part(data: Expr, uses: set[Use], masked: bool) -> Expr:
    """The data, where softmax along one axis or formulas alone read them without the difference.

    Args:
        masked: scores below these are no part of the range.
    """
    axis, *others = {axis for axis, _ in uses}
    if axis is not None and not others:
        return _near_largest(data, axis, masked)
    return _bounded(data, *used_range(uses))


def used_range(uses: Collection[Use]) -> Bounds:
    """Return the range within which any reader of a value varies."""
    return min(low for _, (low, _) in uses), max(high for _, (_, high) in uses)


def _bounded(data: Expr, low: float, high: float) -> Expr:
    """The data, those outside of [low, high] moved to its ends."""
    if low > -math.inf:
        data = op_call("maximum", data, scalar(low, "float32"))
    if high == math.inf:
        return data
    return op_call("minimum", data, scalar(high, "float32"))


def _near_largest(scores: Expr, axis: int, masked: bool) -> Expr:
    """Scores, at least max - 16: softmax maps smaller scores to nearly 0; those of masked scores
    are left out, and so are rows that are masked as a whole."""
    largest = op_call("max", scores, axis=(axis,), keepdims=True)
    least = op_call("subtract", largest, scalar(_NEAR, "float32"))
    held = op_call("maximum", scores, least)
    if masked:
        held = op_call("where", op_call("less", scores, least), scalar(0, "float32"), scores)
    whole = op_call("less", largest, scalar(-LIMIT / 2, "float32"))
    return op_call("where", whole, scalar(0, "float32"), held)
