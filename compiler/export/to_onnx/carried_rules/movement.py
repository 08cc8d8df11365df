"""Operators that move integers, and operators that select integers."""

from __future__ import annotations

import math

from compiler.export.to_onnx.carried_emitter import FLOAT_LIMIT, Carried, CarriedEmitter, FToCarried
from compiler.export.to_onnx.convert.reduce import extremum_in, position_in
from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.movement_operators import IDENTITIES, MOVES
from compiler.ir.dataflow import Step
from compiler.ir.ty import is_integer
from compiler.ops.reduce.axes import axes_of


@FToCarried.register(*IDENTITIES)
def pass_through(step: Step, graph: CarriedEmitter) -> Carried:
    """The value itself; roundings are identities on integers."""
    return graph.carried(step.args[0])


def move(step: Step, graph: CarriedEmitter) -> list[Carried]:
    """Write the operator's plain ONNX form on the carriers."""
    whole = [a for a in step.args if is_integer(a.type.dtype)]
    # Indices are integers too, but they choose elements instead of being moved.
    moved = whole if step.name in _ALL_MOVED else whole[:1]
    held = [graph.carried(v) for v in moved]
    floats = all(c.magnitude < FLOAT_LIMIT for c in held)
    inner = Emitter(graph.writer)
    for value, carried in zip(moved, held):
        inner.bind(value, graph.as_float(carried) if floats else graph.as_int64(carried))
    for value in step.args:
        if value not in moved:
            inner.bind(
                value, graph.native(value) if is_integer(value.type.dtype) else graph.name(value)
            )
    rule = FToOnnx.require(step.op)
    names = rule(step, inner)
    names = [names] if isinstance(names, str) else names
    carrier = "float32" if floats else "int64"
    low, high = min(c.low for c in held), max(c.high for c in held)
    return [Carried(name, carrier, low, high) for name in names]


_ALL_MOVED = ("concatenate", "stack", "nn.pad", "scatter_elements")

FToCarried.register(*MOVES, "nn.pad", "image.resize2d", "nn.upsampling")(move)


@FToCarried.register("max", "min")
def extremum(step: Step, graph: CarriedEmitter) -> Carried:
    """One of the elements along the axes."""
    source, inner = graph.carried(step.args[0]), Emitter(graph.writer)
    inner.bind(step.args[0], source.name)
    name = extremum_in(step, inner, source.carrier)
    return Carried(name, source.carrier, source.low, source.high)


@FToCarried.register("argmax", "argmin")
def position(step: Step, graph: CarriedEmitter) -> Carried:
    """The index of the largest or smallest element along the axes."""
    source, inner = graph.carried(step.args[0]), Emitter(graph.writer)
    inner.bind(step.args[0], source.name)
    name = position_in(step, inner, source.carrier)
    shape = step.args[0].type.concrete_shape
    last = math.prod(shape[axis] for axis in list(axes_of(step))) - 1
    return Carried(name, "int64", 0, last)
