"""Tables and square roots."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.export.to_onnx.ordered import smaller
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import integer_range

WORK = "int64"


def _entries(place: str, table: Value, e: IntegerEmitter) -> str:
    """Table entries at int64 places >= 0; the last one serves all places behind it."""
    last = e.scalar(table.type.num_elements - 1, WORK)
    return e.node("Gather", [e.name(table), smaller(e, place, last, WORK)], axis=0)


@FToInteger.register("lookup")
def lookup(step: Step, e: IntegerEmitter) -> str:
    """Gather; entry 0 is for the smallest value of the dtype."""
    data, table = step.args
    lowest = e.scalar(integer_range(data.type.dtype)[0], WORK)
    return _entries(e.node("Sub", [e.widened(data, WORK), lowest]), table, e)


@FToInteger.register("isqrt")
def isqrt(step: Step, e: IntegerEmitter) -> str:
    """The double root, which is off by less than one, put right in integers."""
    name = e.name(step.args[0])
    double = e.node("Sqrt", [e.writer.cast(name, "float64")])
    root = e.writer.cast(double, WORK)
    one = e.writer.constant(np.asarray(1, WORK))
    too_large = e.node("Greater", [e.node("Mul", [root, root]), name])
    root = e.node("Sub", [root, e.writer.cast(too_large, WORK)])
    more = e.node("Add", [root, one])
    too_small = e.node("LessOrEqual", [e.node("Mul", [more, more]), name])
    return e.node("Add", [root, e.writer.cast(too_small, WORK)])
