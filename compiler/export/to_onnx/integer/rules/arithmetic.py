"""Sums, products, limits and comparisons: the plain ONNX operator in an exact dtype."""

from __future__ import annotations

from compiler.export.to_onnx.float.rules.reduce import extremum_in, position_in
from compiler.export.to_onnx.integer.emitter import FToInteger, Held, IntegerEmitter
from compiler.export.to_onnx.ordered import extreme
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import is_integer


@FToInteger.register("multiply")
def product_of_two(step: Step, e: IntegerEmitter) -> Held:
    """Mul in an exact dtype."""
    work = e.dtype_for(step)
    return e.result(step, e.node("Mul", [e.apart(value, work) for value in step.args]), work)


@FToInteger.register("add", "subtract", "where", "nn.pad", "equal")
def plain(step: Step, e: IntegerEmitter) -> Held:
    """The operator's plain form; bools stay bools."""
    work = e.dtype_for(step)
    name = e.plain(step, work)
    if is_integer(step.result.type.dtype):
        return e.result(step, name, work)
    return Held(name, step.result.type.dtype)


@FToInteger.register("less")
def less(step: Step, e: IntegerEmitter) -> Held:
    """Less in an exact dtype."""
    work = e.dtype_for(step)
    return Held(e.node("Less", [e.widened(value, work) for value in step.args]), "bool")


@FToInteger.register("maximum", "minimum")
def extremum(step: Step, e: IntegerEmitter) -> Held:
    """The larger or the smaller of two; a limit that binds nothing writes nothing."""
    work = e.dtype_for(step)
    top = step.name == "maximum"
    for value, limit in (step.args, step.args[::-1]):
        (low, high), (least, most) = e.ends(value), e.ends(limit)
        if (most <= low if top else high <= least) and value.type == step.result.type:
            return e.held(value)
    clipped = _clipped(step, e, work) if top else None
    if clipped is not None:
        return clipped
    lhs, rhs = (e.widened(value, work) for value in step.args)
    return e.result(step, extreme(e, top, lhs, rhs, work), work)


def _clipped(step: Step, e: IntegerEmitter, work: str) -> Held | None:
    """One Clip for a maximum of a minimum with numbers; crossed limits stay two nodes."""
    low = step.args[1]
    inner = step.args[0].producer
    if inner is None or inner.name != "minimum" or work == "int64":
        return None
    source, high = inner.args
    if _number(low) is None or _number(high) is None or max(*e.ends(low)) > min(*e.ends(high)):
        return None
    if e.exact_dtype(e.reach(inner.args)) != work:
        return None
    least = e.ends(low)[0]
    most = e.ends(high)[0]
    limits = [e.constant(end, work) for end in (least, most)]
    return Held(e.node("Clip", [e.widened(source, work), *limits]), work)


def _number(value: Value) -> int | None:
    """A constant of one element and no axes."""
    if value.data is not None and not value.data.ndim:
        return int(value.data)
    return None


@FToInteger.register("max")
def extremum_along(step: Step, e: IntegerEmitter) -> Held:
    """The largest along axes."""
    work = e.dtype_for(step)
    return e.result(step, extremum_in(step, e.inner(step, work), work), work)


@FToInteger.register("argmax")
def position(step: Step, e: IntegerEmitter) -> str:
    """The number of the largest along axes."""
    data = step.args[0]
    # A result of 64 bits does not make its operand wider, and 32 bits are compared in one node.
    if data.type.dtype in ("uint32", "int64"):
        wide = e.working_dtype(step)
    else:
        wide = "int32"
    work = e.exact_dtype(e.reach([data])) or wide
    found = position_in(step, e.inner(step, work), work)
    return e.cast(found, "int64", step.result.type.dtype)


@FToInteger.register("floor_divide")
def floor_divide(step: Step, e: IntegerEmitter) -> Held:
    """Floor of the float quotient, which is below the next whole number by more than rounding adds.
    In integers Div truncates; one less where the remainder and the divisor have different signs."""
    low, high = e.ends(step.args[1])
    work = e.exact_dtype(e.reach((*step.args, *step.results)))
    if work is not None and not low <= 0 <= high:
        quotient = e.node("Div", [e.apart(value, work) for value in step.args])
        return Held(e.node("Floor", [quotient]), work)
    e.working_dtype(step)
    above, below = (e.widened(value, "int64") for value in step.args)
    divisor = step.args[1].data
    zero = e.constant(0, "int64")
    none = None
    if divisor is None or not divisor.all():
        none = e.node("Equal", [below, zero])
        below = e.node("Where", [none, e.constant(1, "int64"), below])
    quotient = e.node("Div", [above, below])
    rest = e.node("Sub", [above, e.node("Mul", [quotient, below])])
    less = e.node("Less", [rest, zero])
    if divisor is None or divisor.min() <= 0:
        apart = e.node("Xor", [less, e.node("Less", [below, zero])])
        less = e.node("And", [apart, e.node("Not", [e.node("Equal", [rest, zero])])])
    quotient = e.node("Sub", [quotient, e.writer.cast(less, "int64")])
    if none is not None:
        quotient = e.node("Where", [none, zero, quotient])
    return e.result(step, quotient, "int64")
