"""lookup and nn.integer_softmax: entries gathered from a table, carried like any other integers.

ONNX counts negative indices from the end, so a table that starts at the smallest value of a signed
dtype is turned by half and indexed by the values themselves. GatherElements on one axis is six
times as fast as Gather in onnxruntime.
"""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.carried_emitter import (
    FLOAT_LIMIT,
    Carried,
    CarriedEmitter,
    FToCarried,
    narrowed,
)
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array


def constant_table(step: Step, graph: CarriedEmitter) -> Array:
    """The entries, int64.

    Raises:
        OnnxExportError: they are computed.
    """
    table = step.args[1].data
    if table is None:
        raise graph.refuse(step, "its table is not constant")
    return table.astype(np.int64)


def gathered(table: Array, index: str, step: Step, graph: CarriedEmitter) -> str:
    """table[index] for an index of whole numbers in the shape of the result."""
    flat = graph.writer.cast(graph.node("Reshape", [index, graph.ints([-1])]), "int32")
    entries = graph.node("GatherElements", [graph.writer.constant(table), flat], axis=0)
    shape = graph.ints(step.result.type.concrete_shape)
    return graph.node("Reshape", [entries, shape])


@FToCarried.register("lookup")
def lookup(step: Step, graph: CarriedEmitter) -> Carried:
    """Gather; the bounds are the bounds of the reachable entries."""
    source, table = graph.carried(step.args[0]), constant_table(step, graph)
    lowest, highest = integer_range(step.args[0].type.dtype)
    whole = table[np.minimum(np.arange(highest - lowest + 1), table.size - 1)]
    reached = whole[source.low - lowest : source.high - lowest + 1]
    low, high = int(reached.min()), int(reached.max())
    small = max(-low, high) < FLOAT_LIMIT
    turned = np.roll(whole, lowest).astype("float32" if small else "int64")
    name = gathered(turned, source.name, step, graph)
    return Carried(name, "float32" if small else "int64", low, high)


@FToCarried.register("nn.integer_softmax")
def integer_softmax(step: Step, graph: CarriedEmitter) -> Carried:
    """The quotient in double: dividend and divisor stay below 2^53, so its floor is exact."""
    source, table = graph.carried(step.args[0]), np.maximum(constant_table(step, graph), 0)
    axis = step.attrs.axis % len(step.result.type.shape)
    count = step.result.type.concrete_shape[axis]
    bits = step.attrs.out_bits
    if (int(table.max()) << (bits + 1)) + count * int(table.max()) >= 1 << 53:
        raise graph.refuse(step, "its dividend reaches 2^53")
    top = graph.node("ReduceMax", [source.name], axes=[axis], keepdims=1)
    difference = graph.node("Sub", [top, source.name])
    whole = table[np.minimum(np.arange(source.high - source.low + 1), table.size - 1)]
    e = gathered(whole.astype("float64"), difference, step, graph)
    total = graph.node("ReduceSum", [e, graph.ints([axis])], keepdims=1)
    if int(whole.min()) == 0:
        total = graph.node("Max", [total, graph.writer.constant(1.0)])
    scaled = graph.node("Mul", [e, graph.writer.constant(2.0 ** (bits + 1))])
    dividend = graph.node("Add", [scaled, total])
    divisor = graph.node("Mul", [total, graph.writer.constant(2.0)])
    quotient = graph.node("Floor", [graph.node("Div", [dividend, divisor])])
    return narrowed(quotient, "float64", 0, 1 << bits, graph)
