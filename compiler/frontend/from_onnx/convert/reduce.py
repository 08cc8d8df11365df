"""Reductions; axes are an attribute first and an input from opset 13 (sum) or 18 on."""

from __future__ import annotations

from collections.abc import Callable

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr

Reduce = Callable[[OnnxNode, Expr, tuple[int, ...], bool], Expr]


def _plain(op: str) -> Reduce:
    def reduce(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
        return node.call(op, data, axis=axes, keepdims=keepdims)

    return reduce


def _sum_square(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.call("sum", node.call("multiply", data, data), axis=axes, keepdims=keepdims)


def _l1(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.call("sum", node.call("abs", data), axis=axes, keepdims=keepdims)


def _l2(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.call("sqrt", _sum_square(node, data, axes, keepdims))


def _log_sum(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.call("log", node.call("sum", data, axis=axes, keepdims=keepdims))


def _log_sum_exp(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    """The largest element is taken out first, so that exp does not overflow."""
    top = node.call("max", data, axis=axes, keepdims=True)
    total = node.call(
        "sum", node.call("exp", node.call("subtract", data, top)), axis=axes, keepdims=True
    )
    result = node.call("add", node.call("log", total), top)
    return result if keepdims else node.call("squeeze", result, axis=axes)


_REDUCTIONS: dict[str, tuple[Reduce, int]] = {
    "ReduceSum": (_plain("sum"), 13),
    "ReduceMean": (_plain("mean"), 18),
    "ReduceMax": (_plain("max"), 18),
    "ReduceMin": (_plain("min"), 18),
    "ReduceProd": (_plain("prod"), 18),
    "ReduceSumSquare": (_sum_square, 18),
    "ReduceL1": (_l1, 18),
    "ReduceL2": (_l2, 18),
    "ReduceLogSum": (_log_sum, 18),
    "ReduceLogSumExp": (_log_sum_exp, 18),
}


def _register(op_type: str, reduce: Reduce, axes_input_since: int) -> None:
    def run(node: OnnxNode, axes: list[int] | None) -> Expr:
        data = node.arg(0)
        rank = node.rank(data)
        if not axes:
            if node.attr("noop_with_empty_axes", 0):
                return data
            axes = list(range(rank))
        chosen = tuple(sorted({node.axis(a, rank) for a in axes}))
        return reduce(node, data, chosen, bool(node.attr("keepdims", 1)))

    @from_onnx(op_type)
    def by_attribute(node: OnnxNode) -> Expr:
        return run(node, node.attr("axes", None))

    @from_onnx(op_type, since=axes_input_since)
    def by_input(node: OnnxNode) -> Expr:
        return run(node, node.ints(1, "the axes") if node.has_input(1) else None)


for _op_type, (_reduce, _since) in _REDUCTIONS.items():
    _register(_op_type, _reduce, _since)
