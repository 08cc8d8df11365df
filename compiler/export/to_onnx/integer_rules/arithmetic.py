"""Sums, products, limits and comparisons: the plain ONNX operator in int32 or int64."""

from __future__ import annotations

from compiler.export.to_onnx.convert.reduce import extremum_in, position_in
from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.integer_emitter import FToInteger, IntegerEmitter
from compiler.export.to_onnx.ordered import larger, limited, smaller
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range, is_integer
from compiler.ops.tensor.clip import integer_bound


@FToInteger.register(
    "add",
    "subtract",
    "multiply",
    "squared_difference",
    "nn.bias_add",
    "where",
    "nn.pad",
    "equal",
    "not_equal",
    "less",
    "less_equal",
    "greater",
    "greater_equal",
)
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


@FToInteger.register("max", "min")
def extremum_along(step: Step, e: IntegerEmitter) -> str:
    """The largest or the smallest along axes."""
    work, inner = e.working_dtype(step), Emitter(e.writer)
    inner.bind(step.args[0], e.widened(step.args[0], work))
    return e.cast(extremum_in(step, inner, work), work, step.result.type.dtype)


@FToInteger.register("argmax", "argmin")
def position(step: Step, e: IntegerEmitter) -> str:
    """The number of the largest or the smallest along axes."""
    data, inner, work = step.args[0], Emitter(e.writer), e.working_dtype(step)
    # A result of 64 bits does not make its operand wider, and 32 bits are compared in one node.
    work = work if data.type.dtype in ("uint32", "int64") else "int32"
    inner.bind(data, e.widened(data, work))
    return e.cast(position_in(step, inner, work), "int64", step.result.type.dtype)


@FToInteger.register("clip")
def clip(step: Step, e: IntegerEmitter) -> str:
    """Bounds are truncated toward zero, then limited to the dtype."""
    dtype, work = step.result.type.dtype, e.working_dtype(step)
    low, high = (integer_bound(bound, dtype) for bound in (step.attrs.a_min, step.attrs.a_max))
    return e.cast(limited(e, e.widened(step.args[0], work), low, high, work), work, dtype)


@FToInteger.register("nn.relu")
def relu(step: Step, e: IntegerEmitter) -> str:
    """max(x, 0)."""
    work = e.working_dtype(step)
    kept = larger(e, e.widened(step.args[0], work), e.scalar(0, work), work)
    return e.cast(kept, work, step.result.type.dtype)


@FToInteger.register("negative", "abs")
def negative(step: Step, e: IntegerEmitter) -> str:
    """The smallest value has no counterpart and goes to the largest."""
    dtype, work = step.result.type.dtype, e.working_dtype(step)
    low, high = integer_range(dtype)
    name = e.widened(step.args[0], work)
    if low < 0:
        name = limited(e, name, -high, high, work)
    op_type = "Neg" if step.name == "negative" else "Abs"
    return e.cast(e.node(op_type, [name]), work, dtype)
