"""Reductions; axes are an attribute first and an input from opset 13 (sum) or 18 on."""

from __future__ import annotations

import math
from collections.abc import Callable

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ir.ty import integer_range, is_float

Reduce = Callable[[OnnxNode, Expr, tuple[int, ...], bool], Expr]


def _composed(op: str, before: str = "", after: str = "") -> Reduce:
    """A reduction of what ``before`` makes of the data, and what ``after`` makes of it."""

    def reduce(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
        if before:
            data = node.call(before, *[data] * (2 if before == "multiply" else 1))
        found = node.call(op, data, axis=axes, keepdims=keepdims)
        if after:
            return node.call(after, found)
        return found

    return reduce


def _extremum(op: str, on_bools: str) -> Reduce:
    """max or min; over no element it is the value that every other one would replace."""

    def reduce(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
        if data.tensor_type.dtype == "bool":
            return node.call(on_bools, data, axis=axes, keepdims=keepdims)
        if not _is_over_nothing(data, axes):
            return node.call(op, data, axis=axes, keepdims=keepdims)
        dtype = data.tensor_type.dtype
        low, high = (-math.inf, math.inf) if is_float(dtype) else integer_range(dtype)
        return _filled(node, data, axes, keepdims, low if op == "max" else high)

    return reduce


def _is_over_nothing(data: Expr, axes: tuple[int, ...]) -> bool:
    shape = data.tensor_type.shape
    return any(shape[axis] == 0 for axis in axes)


def _filled(
    node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool, value: float
) -> Expr:
    shape = [1 if axis in axes else d for axis, d in enumerate(node.shape(data))]
    if not keepdims:
        shape = [d for axis, d in enumerate(shape) if axis not in axes]
    fill = node.scalar_like(value, data)
    return node.call("full", fill, shape=tuple(shape), dtype=data.tensor_type.dtype)


def _log_sum_exp(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    """The largest element is taken out first, so that exp does not overflow."""
    if _is_over_nothing(data, axes):
        return _filled(node, data, axes, keepdims, -math.inf)
    top = node.call("max", data, axis=axes, keepdims=True)
    total = node.call(
        "sum", node.call("exp", node.call("subtract", data, top)), axis=axes, keepdims=True
    )
    result = node.call("add", node.call("log", total), top)
    if keepdims:
        return result
    return node.call("squeeze", result, axis=axes)


_MOST_FACTORS = 16
"""Factors that are multiplied one by one at most: integers round every product."""


def _product(node: OnnxNode, data: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    """Few real numbers pair by pair, which integers do as well."""
    sizes = [size for axis in axes if isinstance(size := data.tensor_type.shape[axis], int)]
    known = len(sizes) == len(axes) and is_float(data.tensor_type.dtype)
    if not (known and 0 < math.prod(sizes) <= _MOST_FACTORS):
        return _composed("prod")(node, data, axes, keepdims)
    for axis, size in zip(axes, sizes):
        factors = [
            node.call("strided_slice", data, begin=(k,), end=(k + 1,), strides=(1,), axes=(axis,))
            for k in range(size)
        ]
        while len(factors) > 1:
            pairs = zip(factors[::2], factors[1::2])
            rest = factors[len(factors) // 2 * 2 :]
            factors = [node.call("multiply", *pair) for pair in pairs] + rest
        (data,) = factors
    if keepdims:
        return data
    return node.call("squeeze", data, axis=axes)


_REDUCTIONS: dict[str, tuple[Reduce, int]] = {
    "ReduceSum": (_composed("sum"), 13),
    "ReduceMean": (_composed("mean"), 18),
    "ReduceMax": (_extremum("max", "any"), 18),
    "ReduceMin": (_extremum("min", "all"), 18),
    "ReduceProd": (_product, 18),
    "ReduceSumSquare": (_composed("sum", before="multiply"), 18),
    "ReduceL1": (_composed("sum", before="abs"), 18),
    "ReduceL2": (_composed("sum", before="multiply", after="sqrt"), 18),
    "ReduceLogSum": (_composed("sum", after="log"), 18),
    "ReduceLogSumExp": (_log_sum_exp, 18),
}


_COMPOSED = ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare")


def reduction(node: OnnxNode) -> Expr:
    """Along some axes, or all."""
    reduce, axes_input_since = _REDUCTIONS[node.op_type]
    data = node.arg(0)
    rank = node.rank(data)
    axes = node.ints_since(axes_input_since, 1, "axes", "the axes")
    if not axes:
        if node.attr("noop_with_empty_axes", 0):
            # Nothing is reduced, but squares are squares.
            one = node.call("expand_dims", data, axis=0)
            if node.op_type in _COMPOSED:
                return reduce(node, one, (0,), False)
            return data
        axes = list(range(rank))
    chosen = tuple(sorted({node.axis(a, rank) for a in axes}))
    return reduce(node, data, chosen, bool(node.attr("keepdims", 1)))


for _op_type, (_, _since) in _REDUCTIONS.items():
    from_onnx(_op_type)(reduction)
    from_onnx(_op_type, since=_since)(reduction)


@from_onnx("GlobalLpPool", since=2)
def global_lp_pool(node: OnnxNode) -> Expr:
    """The length, or the sum of absolute values, of each channel."""
    power = node.attr("p", 2)
    if power not in (1, 2):
        raise node.error(f"p = {power} is not supported; 1 and 2 are")
    axes = tuple(range(2, node.rank(node.arg(0))))
    return _REDUCTIONS[f"ReduceL{power}"][0](node, node.arg(0), axes, True)
