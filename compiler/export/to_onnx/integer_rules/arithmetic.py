"""Sums, products, limits and comparisons: the plain ONNX operator in int32 or int64."""

from __future__ import annotations

from compiler.export.to_onnx.convert.reduce import extremum_in, position_in
from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.export.to_onnx.ordered import larger, smaller
from compiler.ir.dataflow import Step
from compiler.ir.ty import is_integer


@FToInteger.register("add", "subtract", "multiply", "where", "nn.pad", "equal", "less")
def plain(step: Step, e: IntegerEmitter) -> list[str]:
    """The operator's plain form on widened operands; bools stay bools."""
    work = e.working_dtype(step)
    inner = Emitter(e.writer)
    for value in step.args:
        whole = is_integer(value.type.dtype)
        inner.bind(value, e.widened(value, work) if whole else e.name(value))
    names = FToOnnx.require(step.op)(step, inner)
    names = [names] if isinstance(names, str) else names
    return [
        e.cast(name, work, value.type.dtype) if is_integer(value.type.dtype) else name
        for value, name in zip(step.results, names, strict=True)
    ]


@FToInteger.register("maximum", "minimum")
def extremum(step: Step, e: IntegerEmitter) -> str:
    """The larger or the smaller of two."""
    work = e.working_dtype(step)
    pick = larger if step.name == "maximum" else smaller
    lhs, rhs = (e.widened(value, work) for value in step.args)
    return e.cast(pick(e, lhs, rhs, work), work, step.result.type.dtype)


@FToInteger.register("max")
def extremum_along(step: Step, e: IntegerEmitter) -> str:
    """The largest along axes."""
    work, inner = e.working_dtype(step), Emitter(e.writer)
    inner.bind(step.args[0], e.widened(step.args[0], work))
    return e.cast(extremum_in(step, inner, work), work, step.result.type.dtype)


@FToInteger.register("argmax")
def position(step: Step, e: IntegerEmitter) -> str:
    """The number of the largest along axes."""
    data, inner, work = step.args[0], Emitter(e.writer), e.working_dtype(step)
    # A result of 64 bits does not make its operand wider, and 32 bits are compared in one node.
    work = work if data.type.dtype in ("uint32", "int64") else "int32"
    inner.bind(data, e.widened(data, work))
    return e.cast(position_in(step, inner, work), "int64", step.result.type.dtype)


@FToInteger.register("floor_divide")
def floor_divide(step: Step, e: IntegerEmitter) -> str:
    """Div truncates; one less where the remainder and the divisor have different signs."""
    e.working_dtype(step)
    above, below = (e.widened(value, "int64") for value in step.args)
    divisor, zero = step.args[1].data, e.scalar(0, "int64")
    none = None
    if divisor is None or not divisor.all():
        none = e.node("Equal", [below, zero])
        below = e.node("Where", [none, e.scalar(1, "int64"), below])
    quotient = e.node("Div", [above, below])
    rest = e.node("Sub", [above, e.node("Mul", [quotient, below])])
    less = e.node("Less", [rest, zero])
    if divisor is None or divisor.min() <= 0:
        apart = e.node("Xor", [less, e.node("Less", [below, zero])])
        less = e.node("And", [apart, e.node("Not", [e.node("Equal", [rest, zero])])])
    quotient = e.node("Sub", [quotient, e.writer.cast(less, "int64")])
    if none is not None:
        quotient = e.node("Where", [none, zero, quotient])
    return e.writer.cast(quotient, step.result.type.dtype)
