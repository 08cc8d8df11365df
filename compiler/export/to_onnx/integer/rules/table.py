"""Tables and square roots."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.integer.emitter import DOUBLE, FToInteger, Held, IntegerEmitter
from compiler.export.to_onnx.ordered import extreme
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array

WORK = "int64"
_LEAST_BITS = 8
"""Levels of 8 bits may reach beyond the integers of a module, in a QDQ graph."""


def gathered(table: Array, index: str, step: Step, e: IntegerEmitter) -> str:
    """table[index] for whole numbers of 32 bits in the shape of the result. GatherElements on one
    axis is six times as fast as Gather in onnxruntime."""
    flat = e.writer.cast(e.node("Reshape", [index, e.ints([-1])]), "int32")
    entries = e.node("GatherElements", [e.writer.constant(table), flat], axis=0)
    return e.node("Reshape", [entries, e.ints(step.result.type.concrete_shape)])


@FToInteger.register("lookup")
def lookup(step: Step, e: IntegerEmitter) -> Held | str:
    """An entry for every integer of the bits that the data have. Negative places count from the
    end, so the table is turned to begin at 0."""
    data, table = step.args
    lowest, highest = integer_range(data.type.dtype)
    if table.data is None:
        place = e.node("Sub", [e.widened(data, WORK), e.constant(lowest, WORK)])
        last = e.constant(table.type.num_elements - 1, WORK)
        return e.node("Gather", [e.name(table), extreme(e, False, place, last, WORK)], axis=0)
    low, high = e.ends(data)
    reach = 1 << max(high.bit_length(), (~low).bit_length(), _LEAST_BITS)
    reached = np.arange(max(lowest, -reach), min(highest, reach - 1) + 1)
    places = np.minimum(reached - lowest, table.data.size - 1)
    held = e.exact_dtype(e.reach([table])) or table.type.dtype
    entries = np.roll(table.data[places], reached[0]).astype(held)
    return Held(gathered(entries, e.held(data).name, step, e), held)


@FToInteger.register("isqrt")
def isqrt(step: Step, e: IntegerEmitter) -> Held | str:
    """The double root. Below 2^52 its floor is right: the root of m^2 - 1 lies more than half a
    last digit below m. Above it is off by less than one, and put right in integers."""
    double = e.node("Sqrt", [e.widened(step.args[0], "float64")])
    if e.reach(step.args) < DOUBLE:
        return Held(e.node("Floor", [double]), "float64")
    name = e.name(step.args[0])
    root = e.writer.cast(double, WORK)
    one = e.writer.constant(np.asarray(1, WORK))
    too_large = e.node("Greater", [e.node("Mul", [root, root]), name])
    root = e.node("Sub", [root, e.writer.cast(too_large, WORK)])
    more = e.node("Add", [root, one])
    too_small = e.node("LessOrEqual", [e.node("Mul", [more, more]), name])
    return e.node("Add", [root, e.writer.cast(too_small, WORK)])
