"""Elementwise operators, comparisons, casts and constants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import is_float, is_integer
from compiler.ops.tensor.clip import integer_bound

# The largest float32 below one half: floor(|x| + this) is floor(|x| + 1/2) computed without
# rounding error for every float32, where adding 0.5 itself would carry 0.49999997 up to 1.
BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0.0))

# Below this a float32 truncates through int32 without saturating.
_INT32_SAFE = float(1 << 30)


_SAME = {
    "nn.relu": "Relu",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
    "erf": "Erf",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "floor": "Floor",
    "ceil": "Ceil",
    "round_even": "Round",
    "sign": "Sign",
    "sin": "Sin",
    "cos": "Cos",
    "abs": "Abs",
    "negative": "Neg",
    "logical_not": "Not",
    "isnan": "IsNaN",
    "isinf": "IsInf",
    "copy": "Identity",
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "power": "Pow",
    "maximum": "Max",
    "minimum": "Min",
    "equal": "Equal",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
}
_ORDERS = ("less", "less_equal", "greater", "greater_equal")


@FToOnnx.register(*_SAME)
def same(step: Step, e: Emitter) -> str:
    """The operator of ONNX that is the same; onnxruntime 1.18 orders no integers narrower than 32
    bits."""
    args = e.args(step)
    dtype = step.args[0].type.dtype
    if step.name in _ORDERS and dtype in ("int8", "uint8", "int16", "uint16"):
        args = [e.writer.cast(name, "int32") for name in args]
    return e.node(_SAME[step.name], args)


@FToOnnx.register("where")
def where(step: Step, e: Emitter) -> str:
    """Where; a number that is not 0 is true, and onnxruntime cannot choose between bools."""
    condition, a, b = e.args(step)
    if step.args[0].type.dtype != "bool":
        condition = e.writer.cast(condition, "bool")
    if step.result.type.dtype != "bool":
        return e.node("Where", [condition, a, b])
    chosen = e.node("And", [condition, a])
    return e.node("Or", [chosen, e.node("And", [e.node("Not", [condition]), b])])


@FToOnnx.register("not_equal")
def not_equal(step: Step, e: Emitter) -> str:
    """Not of Equal."""
    return e.node("Not", [e.node("Equal", e.args(step))])


@FToOnnx.register("isfinite")
def isfinite(step: Step, e: Emitter) -> str:
    """Neither NaN nor infinite."""
    args = e.args(step)
    return e.node("Not", [e.node("Or", [e.node("IsNaN", args), e.node("IsInf", args)])])


@FToOnnx.register("rsqrt")
def rsqrt(step: Step, e: Emitter) -> str:
    """1 / sqrt(x)."""
    return e.node("Reciprocal", [e.node("Sqrt", e.args(step))])


@FToOnnx.register("trunc")
def trunc(step: Step, e: Emitter) -> str:
    """sign(x) floor(|x|)."""
    return truncated(e.name(step.args[0]), e)


def truncated(name: str, e: Emitter) -> str:
    """Toward zero."""
    return e.node("Mul", [e.node("Sign", [name]), e.node("Floor", [e.node("Abs", [name])])])


@FToOnnx.register("round")
def round_half_away(step: Step, e: Emitter) -> str:
    """Half away from zero; ONNX's own Round takes halves to even."""
    name = e.name(step.args[0])
    dtype = step.args[0].type.dtype
    if dtype == "float32":
        return rounded_half_away(name, e)
    widened = e.writer.cast(name, "float64")
    return e.writer.cast(rounded_half_away(widened, e, np.nextafter(0.5, 0.0)), dtype)


def rounded_half_away(name: str, e: Emitter, half: np.floating[Any] = BELOW_HALF) -> str:
    """sign(x) floor(|x| + 1/2), exact with the largest number below a half of the dtype."""
    below = e.writer.constant(half)
    magnitude = e.node("Floor", [e.node("Add", [e.node("Abs", [name]), below])])
    return e.node("Mul", [e.node("Sign", [name]), magnitude])


def rounded_small(name: str, e: Emitter) -> str:
    """Half away from zero for |x| < 2^30, as trunc(x + clip(x, -h, h)), h just below one half.

    Where |x| >= 1/2 the clip is ±h; where it is smaller the sum is 2 x, which truncates to 0. Twice
    as fast as signs and magnitudes in onnxruntime, and zeros come out positive.
    """
    half = [e.writer.constant(np.float32(sign) * BELOW_HALF) for sign in (-1, 1)]
    moved = e.node("Add", [name, e.node("Clip", [name, *half])])
    return e.writer.cast(e.writer.cast(moved, "int32"), "float32")


def fits_int32(low: float, high: float) -> bool:
    """True when ``rounded_small`` may be used between these bounds."""
    return low > -_INT32_SAFE and high < _INT32_SAFE


@FToOnnx.register("clip")
def clip(step: Step, e: Emitter) -> str:
    """Clip; NaN, of which onnxruntime's Clip makes a bound, is kept where integers are made."""
    name = _limited(step, e)
    if not is_float(step.result.type.dtype) or not _becomes_integer(step.result):
        return name
    data = step.args[0]
    if data.producer is not None and data.producer.name == "round":
        # Rounding keeps NaN; ``_limited`` may have left the rounding itself out.
        data = data.producer.args[0]
    source = e.name(data)
    return e.node("Where", [e.node("IsNaN", [source]), source, name])


def _becomes_integer(value: Value) -> bool:
    """True where a cast to an integer reads the value, elementwise steps between them."""
    seen = {value}
    stack = [value]
    while stack:
        for step in stack.pop().users:
            if step.name == "cast" and is_integer(step.result.type.dtype):
                return True
            if step.name in _TOWARDS_INTEGERS and step.result not in seen:
                seen.add(step.result)
                stack.append(step.result)
    return False


_TOWARDS_INTEGERS = frozenset(
    (
        "add",
        "subtract",
        "multiply",
        "clip",
        "cast",
        "copy",
        "expand_dims",
        "reshape",
        "squeeze",
        "transpose",
        "round",
        "round_even",
        "floor",
        "ceil",
        "trunc",
        "annotation.cast_hint",
        "annotation.stop_fusion",
    )
)


def _limited(step: Step, e: Emitter) -> str:
    """Clip; an infinite bound is left out."""
    data = step.args[0]
    low = float(step.attrs.a_min)
    high = float(step.attrs.a_max)
    if math.isnan(low) or math.isnan(high):
        raise e.refuse(step, f"bounds {low} and {high}")
    if not is_float(data.type.dtype):
        low, high = (integer_bound(end, data.type.dtype) for end in (low, high))
    # Where bounds are crossed Relay lets the lower win, ONNX the upper.
    high = max(low, high)
    rounding = data.producer
    if rounding is not None and rounding.name == "round" and data.type.dtype == "float32":
        whole = low.is_integer() and high.is_integer()
        if whole and fits_int32(low, high):
            # Whole bounds limit before rounding as well as behind it.
            source = e.name(rounding.args[0])
            bounds = [e.like(low, data), e.like(high, data)]
            return rounded_small(e.node("Clip", [source, *bounds]), e)
    inputs = [e.name(data), "", ""]
    if low > -math.inf:
        inputs[1] = e.like(low, data)
    if high < math.inf:
        inputs[2] = e.like(high, data)
    return e.node("Clip", inputs)


@FToOnnx.register("cast")
def cast(step: Step, e: Emitter) -> str:
    """Cast."""
    return e.writer.cast(e.name(step.args[0]), step.result.type.dtype)


@FToOnnx.register("mod", "trunc_mod")
def trunc_mod(step: Step, e: Emitter) -> str:
    """Remainder with the sign of the dividend."""
    return e.node("Mod", e.args(step), fmod=1)


@FToOnnx.register("floor_mod")
def floor_mod(step: Step, e: Emitter) -> str:
    """Remainder with the sign of the divisor."""
    if not is_float(step.result.type.dtype):
        return e.node("Mod", e.args(step), fmod=0)
    lhs, rhs = e.args(step)
    quotient = e.node("Floor", [e.node("Div", [lhs, rhs])])
    return e.node("Sub", [lhs, e.node("Mul", [quotient, rhs])])


@FToOnnx.register("floor_divide")
def floor_divide(step: Step, e: Emitter) -> str:
    """floor(a / b)."""
    lhs, rhs = e.args(step)
    if is_float(step.result.type.dtype):
        return e.node("Floor", [e.node("Div", [lhs, rhs])])
    remainder = e.node("Mod", [lhs, rhs], fmod=0)
    return e.node("Div", [e.node("Sub", [lhs, remainder]), rhs])


@FToOnnx.register("zeros", "ones", "full")
def full(step: Step, e: Emitter) -> str:
    """A constant where the value is known, else an Expand of it."""
    ty = step.result.type
    if step.name != "full":
        value = np.full(ty.concrete_shape, float(step.name == "ones"), ty.dtype)
        return e.writer.constant(value)
    if step.args[0].data is not None:
        value = step.args[0].data.astype(ty.dtype)
        return e.writer.constant(np.full(ty.concrete_shape, value, ty.dtype))
    fill = e.writer.cast(e.name(step.args[0]), ty.dtype)
    return e.node("Expand", [fill, e.ints(ty.concrete_shape)])


@FToOnnx.register("shape_of", "ndarray_size")
def shape_of(step: Step, e: Emitter) -> str:
    """Static shapes are constants; a rank-0 argument counts 0, as in Relay."""
    shape = step.args[0].type.concrete_shape
    count = math.prod(shape) if shape else 0
    value = np.asarray(count if step.name == "ndarray_size" else shape)
    return e.writer.constant(
        value.astype(step.result.type.dtype).reshape(step.result.type.concrete_shape)
    )


@FToOnnx.register("cumsum")
def cumsum(step: Step, e: Emitter) -> str:
    """CumSum; without an axis, of the flat tensor."""
    name = e.name(step.args[0])
    axis = step.attrs.axis
    if axis is None:
        name = e.node("Reshape", [name, e.ints([-1])])
        axis = 0
    if step.result.type.dtype == "bool":
        raise e.refuse(step, "sums of bools")
    if step.result.type.dtype != step.args[0].type.dtype:
        name = e.writer.cast(name, step.result.type.dtype)
    index = e.writer.constant(np.asarray(axis, "int64"))
    return e.node("CumSum", [name, index], exclusive=int(step.attrs.exclusive or 0))
