"""Tables, and what is computed with them and with square roots: lookup, softmax, standardize."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.export.to_onnx.ordered import larger, smaller
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import integer_range

WORK = "int64"


def _entries(place: str, table: Value, e: IntegerEmitter) -> str:
    """Table entries at int64 places >= 0; the last one serves all places behind it."""
    last = e.scalar(table.type.num_elements - 1, WORK)
    return e.node("Gather", [e.name(table), smaller(e, place, last, WORK)], axis=0)


def _power(bits: int, e: IntegerEmitter) -> str:
    return e.scalar(1 << bits, WORK)


def _summed(name: str, axis: int, e: IntegerEmitter) -> str:
    return e.node("ReduceSum", [name, e.ints([axis])], keepdims=1)


@FToInteger.register("lookup")
def lookup(step: Step, e: IntegerEmitter) -> str:
    """Gather; entry 0 is for the smallest value of the dtype."""
    data, table = step.args
    lowest = e.scalar(integer_range(data.type.dtype)[0], WORK)
    return _entries(e.node("Sub", [e.widened(data, WORK), lowest]), table, e)


@FToInteger.register("nn.integer_softmax")
def integer_softmax(step: Step, e: IntegerEmitter) -> str:
    """Gather of exponentials, their sum, and a division of numbers that are not negative."""
    data, table = step.args
    axis = step.attrs.axis % len(data.type.shape)
    # int32 holds both, and ReduceMax of onnxruntime is not right in int64 (ordered.py).
    held = e.widened(data, "int32")
    difference = e.node("Sub", [e.node("ReduceMax", [held], axes=[axis], keepdims=1), held])
    place = e.writer.cast(difference, WORK)
    entry = e.cast(_entries(place, table, e), table.type.dtype, WORK)
    entry = larger(e, entry, e.scalar(0, WORK), WORK)
    total = larger(e, _summed(entry, axis, e), e.scalar(1, WORK), WORK)
    scaled = e.node("Mul", [entry, _power(step.attrs.out_bits + 1, e)])
    twice = e.node("Mul", [total, e.scalar(2, WORK)])
    quotient = e.node("Div", [e.node("Add", [scaled, total]), twice])
    return e.writer.cast(quotient, step.result.type.dtype)


@FToInteger.register("nn.integer_standardize")
def integer_standardize(step: Step, e: IntegerEmitter) -> str:
    """Exact sums, a square root and a floored division."""
    data, attrs = step.args[0], step.attrs
    axis = attrs.axis % len(data.type.shape)
    count = e.scalar(data.type.concrete_shape[axis], WORK)
    wide = e.widened(data, WORK)
    centred = e.node("Mul", [count, wide])
    deviation = e.node("Mul", [count, _summed(e.node("Mul", [wide, wide]), axis, e)])
    if attrs.centred:
        total = _summed(wide, axis, e)
        centred = e.node("Sub", [centred, total])
        deviation = e.node("Sub", [deviation, e.node("Mul", [total, total])])
    spread = e.node("Add", [deviation, e.scalar(attrs.epsilon, WORK)])
    spread = larger(e, spread, e.scalar(0, WORK), WORK)
    root = _root(e.node("Mul", [spread, _power(2 * attrs.root_bits, e)]), e)
    root = larger(e, root, e.scalar(1, WORK), WORK)
    scaled = e.node("Mul", [centred, _power(attrs.out_bits + attrs.root_bits + 1, e)])
    above = e.node("Add", [scaled, root])
    twice = e.node("Mul", [root, e.scalar(2, WORK)])
    # Div truncates; without the remainder, which has the sign of the divisor, it is a floor.
    rest = e.node("Mod", [above, twice], fmod=0)
    quotient = e.node("Div", [e.node("Sub", [above, rest]), twice])
    return e.writer.cast(quotient, step.result.type.dtype)


def _root(name: str, e: IntegerEmitter) -> str:
    """floor(sqrt(v)) for 0 <= v < 2^62: the double root, which is off by less than one, put right
    in integers."""
    double = e.node("Sqrt", [e.writer.cast(name, "float64")])
    root = e.writer.cast(double, WORK)
    one = e.writer.constant(np.asarray(1, WORK))
    too_large = e.node("Greater", [e.node("Mul", [root, root]), name])
    root = e.node("Sub", [root, e.writer.cast(too_large, WORK)])
    more = e.node("Add", [root, one])
    too_small = e.node("LessOrEqual", [e.node("Mul", [more, more]), name])
    return e.node("Add", [root, e.writer.cast(too_small, WORK)])
