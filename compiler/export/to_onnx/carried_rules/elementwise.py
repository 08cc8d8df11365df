"""Sums, products, limits and comparisons of integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler.export.to_onnx.carried_emitter import (
    FLOAT_LIMIT,
    Bound,
    Carried,
    CarriedEmitter,
    FToCarried,
    clamped,
)
from compiler.export.to_onnx.ordered import larger, smaller
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range, is_integer
from compiler.ops.tensor.clip import integer_bound


def combined(
    op_type: str, a: Carried, b: Carried, low: int, high: int, graph: CarriedEmitter
) -> Carried:
    """A node of two integers: in float32 where operands and result fit, else in int64."""
    fits = max(a.magnitude, b.magnitude, abs(low), abs(high)) < FLOAT_LIMIT
    # onnxruntime adds into the sum of a convolution, so its partial sums count as well.
    if fits and op_type in ("Add", "Sub"):
        fits = a.reach + b.reach < FLOAT_LIMIT
    if fits:
        name = graph.node(op_type, [graph.as_float(a), graph.as_float(b)])
        return Carried(name, "float32", low, high)
    wide = graph.as_int64(a), graph.as_int64(b)
    if op_type in ("Max", "Min"):
        name = (larger if op_type == "Max" else smaller)(graph, *wide, "int64")
    else:
        name = graph.node(op_type, wide)
    return Carried(name, "int64", low, high)


@FToCarried.register("add", "nn.bias_add")
def add(step: Step, graph: CarriedEmitter) -> Carried:
    """Add; a constant goes into the bias of the product that it is added to."""
    lhs, rhs = step.args
    a, b = graph.carried(lhs), graph.carried(rhs)
    addend = rhs.data
    if step.name == "nn.bias_add":
        rank = len(lhs.type.shape)
        axis = step.attrs.axis % rank
        shape = (-1, *([1] * (rank - 1 - axis)))
        if addend is None:
            raise graph.refuse(step, "its integer bias is not constant")
        addend = addend.reshape(shape)
        b = Carried(graph.writer.constant(addend.astype(b.carrier)), b.carrier, b.low, b.high)
    elif addend is None and lhs.data is not None:
        a, b, addend = b, a, lhs.data
    low, high = a.low + b.low, a.high + b.high
    if addend is None:
        return combined("Add", a, b, low, high, graph)
    if a.product is not None:
        product = a.product.with_addend(addend)
        if product is not None:
            name = product.emit(product.weight, product.bias)
            if a.channels is None:
                return Carried(name, "float32", low, high, product)
            # with_addend has seen that axes in front of the channels have one element.
            rows = addend.astype(np.int64).reshape(addend.shape[-len(product.channel_shape) :])
            lows, highs = a.channels[0] + rows, a.channels[1] + rows
            bounds = int(lows.min()), int(highs.max())
            return Carried(name, "float32", *bounds, product, channels=(lows, highs))
    result = combined("Add", a, b, low, high, graph)
    offset = (a, addend.astype(np.int64))
    return Carried(result.name, result.carrier, low, high, offset=offset)


@FToCarried.register("subtract")
def subtract(step: Step, graph: CarriedEmitter) -> Carried:
    """Sub."""
    a, b = (graph.carried(v) for v in step.args)
    return combined("Sub", a, b, a.low - b.high, a.high - b.low, graph)


@FToCarried.register("multiply")
def multiply(step: Step, graph: CarriedEmitter) -> Carried:
    """Mul; a constant scalar factor is remembered for the pools."""
    a, b = (graph.carried(v) for v in step.args)
    corners = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    result = combined("Mul", a, b, min(corners), max(corners), graph)
    for source, other in ((a, step.args[1]), (b, step.args[0])):
        if other.data is not None and other.data.size == 1 and int(other.data.reshape(())) > 0:
            factor = int(other.data.reshape(()))
            return Carried(
                result.name, result.carrier, result.low, result.high, multiple=(source, factor)
            )
    return result


def _limits(step: Step, graph: CarriedEmitter) -> Carried:
    """maximum or minimum; with a constant it is a clamp."""
    lhs, rhs = step.args
    a, b = graph.carried(lhs), graph.carried(rhs)
    if lhs.data is not None:
        lhs, rhs, a, b = rhs, lhs, b, a
    top = step.name == "maximum"
    # A constant that broadcasts against leading axes changes the shape, which a clamp cannot.
    same_shape = step.result.type.shape == lhs.type.shape
    small = a.magnitude < FLOAT_LIMIT and b.magnitude < FLOAT_LIMIT
    if rhs.data is not None and same_shape and small:
        bound = rhs.data.astype(np.int64)
        low = bound if top else np.asarray(a.low)
        high = np.asarray(a.high) if top else bound
        # maximum(x, c) reaches c even where x never does.
        high = np.maximum(high, low) if top else high
        low = low if top else np.minimum(low, high)
        return clamped(a, low, high, graph)
    pick = max if top else min
    return combined("Max" if top else "Min", a, b, pick(a.low, b.low), pick(a.high, b.high), graph)


FToCarried.register("maximum", "minimum")(_limits)


@FToCarried.register("clip")
def clip(step: Step, graph: CarriedEmitter) -> Carried:
    """Clip with the bounds truncated as the integer kernels do."""
    dtype = step.args[0].type.dtype
    low, high = (integer_bound(b, dtype) for b in (step.attrs.a_min, step.attrs.a_max))
    # Where the limits are crossed, the lower one wins.
    high = max(low, high)
    return clamped(graph.carried(step.args[0]), np.asarray(low), np.asarray(high), graph)


@FToCarried.register("nn.relu")
def relu(step: Step, graph: CarriedEmitter) -> Carried:
    """max(x, 0)."""
    source = graph.carried(step.args[0])
    high: Bound = np.asarray(max(source.high, 0))
    return clamped(source, np.asarray(0), high, graph)


@FToCarried.register("negative", "abs")
def negative(step: Step, graph: CarriedEmitter) -> Carried:
    """Neg or Abs; the most negative value of the dtype saturates, as in the reference."""
    source = graph.carried(step.args[0])
    bottom, top = integer_range(step.result.type.dtype)
    if source.low == bottom:
        source = clamped(source, np.asarray(-top), np.asarray(top), graph)
    if step.name == "negative":
        name = graph.node("Neg", [source.name])
        return Carried(name, source.carrier, -source.high, -source.low)
    name = graph.node("Abs", [source.name])
    low = 0 if source.low <= 0 <= source.high else min(abs(source.low), abs(source.high))
    return Carried(name, source.carrier, low, source.magnitude)


@FToCarried.register("where")
def where(step: Step, graph: CarriedEmitter) -> Carried:
    """Where, both branches carried alike."""
    a, b = graph.carried(step.args[1]), graph.carried(step.args[2])
    low, high = min(a.low, b.low), max(a.high, b.high)
    given = step.args[0]
    whole = is_integer(given.type.dtype)
    condition = graph.native(given) if whole else graph.name(given)
    if given.type.dtype != "bool":
        condition = graph.writer.cast(condition, "bool")
    floats = max(a.magnitude, b.magnitude) < FLOAT_LIMIT
    pick: Callable[[Carried], str] = graph.as_float if floats else graph.as_int64
    name = graph.node("Where", [condition, pick(a), pick(b)])
    return Carried(name, "float32" if floats else "int64", low, high)


_COMPARISONS = {
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}


def compare(step: Step, graph: CarriedEmitter) -> str:
    """A comparison of integers; the result is a plain bool tensor."""
    a, b = (graph.carried(v) for v in step.args)
    floats = max(a.magnitude, b.magnitude) < FLOAT_LIMIT
    pick: Callable[[Carried], str] = graph.as_float if floats else graph.as_int64
    if step.name == "not_equal":
        return graph.node("Not", [graph.node("Equal", [pick(a), pick(b)])])
    return graph.node(_COMPARISONS[step.name], [pick(a), pick(b)])


COMPARISONS = frozenset((*_COMPARISONS, "not_equal"))
