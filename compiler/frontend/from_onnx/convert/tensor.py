"""Elementwise arithmetic, comparisons, logic, casts and constants."""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode, dtype_of
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.signature import Input
from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.ty import bits, integer_range, is_dynamic, is_float, is_integer
from compiler.ops.number_format import Array

_BINARY = {
    "Add": "add",
    "Sub": "subtract",
    "Mul": "multiply",
    "Div": "divide",
    "Pow": "power",
    "Equal": "equal",
    "Less": "less",
    "Greater": "greater",
    "And": "logical_and",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
_ALL_BINARY = _BINARY | {
    "LessOrEqual": "less_equal",
    "GreaterOrEqual": "greater_equal",
    "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
}


def binary(node: OnnxNode, lhs: Expr, rhs: Expr) -> Expr:
    """The operator that is the same."""
    return node.call(_ALL_BINARY[node.op_type], lhs, rhs)


def binary_before_opset_7(
    node: OnnxNode, lhs: Expr, rhs: Expr, *, axis: int | None = None, broadcast: bool = False
) -> Expr:
    """The axes of the second operand lie along those of the first one from ``axis`` on where
    ``broadcast`` says so, and it gets trailing axes of size 1; without ``axis`` along the last
    ones."""
    if broadcast and axis is not None:
        rank = node.rank(lhs)
        own = node.rank(rhs)
        missing = rank - own - node.axis(axis, rank)
        if missing < 0:
            raise node.error(f"axis {axis} leaves no room for rank {own} in rank {rank}")
        if missing:
            rhs = node.call("expand_dims", rhs, axis=own, num_newaxis=missing)
    return binary(node, lhs, rhs)


for _op_type in _BINARY:
    from_onnx(_op_type)(binary_before_opset_7)
for _op_type in _ALL_BINARY:
    if _op_type not in ("Mul", "Div", "Pow"):
        from_onnx(_op_type, since=7)(binary)


@from_onnx("Mul", since=7)
def multiply(node: OnnxNode, lhs: Expr, rhs: Expr) -> Expr:
    """Elementwise product; nothing is left of one with zeros, whose range would be no scale."""
    made = node.call("multiply", lhs, rhs)
    zeros = (node.known(place) for place in (0, 1))
    if not any(held is not None and held.dtype.kind == "f" and not held.any() for held in zeros):
        return made
    ty = made.tensor_type
    if is_dynamic(ty):
        return made
    return node.const(np.zeros(ty.concrete_shape), ty.dtype)


@from_onnx("BitwiseNot", since=18)
def bitwise_not(node: OnnxNode, data: Expr) -> Expr:
    """Bitwise complement."""
    return node.call("bitwise_not", data)


@from_onnx("BitShift", since=11)
def bit_shift(node: OnnxNode, data: Expr, amount: Expr, *, direction: str) -> Expr:
    """Shift in the direction of the attribute; amounts outside the width push every bit out."""
    right = direction == "RIGHT"
    op = "right_shift" if right else "left_shift"
    width = bits(amount.tensor_type.dtype)
    known = node.known(1)
    if known is not None and known.size and known.min() >= 0 and known.max() < width:
        return node.call(op, data, amount)
    zero = node.scalar_like(0, data)
    inside = node.call("less", amount, node.scalar_like(width, amount))
    if amount.tensor_type.dtype.startswith("int"):
        inside = node.call(
            "logical_and", inside, node.call("greater_equal", amount, node.scalar_like(0, amount))
        )
    shifted = node.call(op, data, node.call("where", inside, amount, node.scalar_like(0, amount)))
    gone: Expr = zero
    if right and data.tensor_type.dtype.startswith("int"):
        sign = node.call("less", data, zero)
        gone = node.call("where", sign, node.scalar_like(-1, data), zero)
    return node.call("where", inside, shifted, gone)


@from_onnx("Div", since=7)
def divide(node: OnnxNode, lhs: Expr, rhs: Input) -> Expr:
    """Division; by a float constant it becomes a product with the reciprocal."""
    if is_float(lhs.tensor_type.dtype):
        inverse = rhs.weight("reciprocal", lambda d: d.dtype.type(1) / d)
        if inverse is not None and node.known(0) is None:
            return node.call("multiply", lhs, inverse)
    return node.call("divide", lhs, rhs.expr)


@from_onnx("Pow", since=7)
def power(node: OnnxNode, data: Expr, exponent: Input) -> Expr:
    """Power; exponents 2 and 0.5 become a product and a square root."""
    dtype = data.tensor_type.dtype
    known = exponent.known
    if known is not None and known.size == 1 and is_float(dtype):
        value = float(known.reshape(()))
        if value == 2.0 and known.ndim <= node.rank(data):
            return node.call("multiply", data, data)
        if value == 0.5 and known.ndim <= node.rank(data):
            return node.call("sqrt", data)
        if value == 1.0 and known.ndim <= node.rank(data):
            return data
    return node.call("power", data, node.cast(exponent.expr, dtype))


@from_onnx("Mod", since=10)
def modulo(node: OnnxNode, lhs: Expr, rhs: Expr, *, fmod: bool = False) -> Expr:
    """Sign of the divisor, or of the dividend with fmod=1."""
    return node.call("trunc_mod" if fmod else "floor_mod", lhs, rhs)


_VARIADIC = {"Sum": "add", "Max": "maximum", "Min": "minimum"}


def variadic(node: OnnxNode, *data: Expr) -> Expr:
    """Any number of tensors, folded from the left."""
    return reduce(partial(node.call, _VARIADIC[node.op_type]), data)


for _op_type in _VARIADIC:
    from_onnx(_op_type)(variadic)
    from_onnx(_op_type, since=8)(variadic)


@from_onnx("Mean", since=8)
def mean_of_inputs(node: OnnxNode, *data: Expr) -> Expr:
    """Elementwise mean of the inputs."""
    return node.times(reduce(partial(node.call, "add"), data), 1 / len(data))


@from_onnx("Where", since=9)
def where(node: OnnxNode, condition: Expr, yes: Expr, no: Expr) -> Expr:
    """Choice by a bool tensor."""
    return node.call("where", condition, yes, no)


@from_onnx("Identity")
def identity(data: Expr) -> Expr:
    """The input itself."""
    return data


@from_onnx("Cast", since=6)
def cast(node: OnnxNode, data: Expr, *, to: int) -> Expr:
    """Cast; to its own dtype it is the input itself."""
    return _cast(node, data, dtype_of(to, node.label))


@from_onnx("CastLike", since=15)
def cast_like(node: OnnxNode, data: Expr, like: Expr) -> Expr:
    """Cast to the dtype of the second input."""
    return _cast(node, data, like.tensor_type.dtype)


def _cast(node: OnnxNode, data: Expr, dtype: str) -> Expr:
    """Floats that become integers and floats again are floats without their fraction."""
    held = data.tensor_type.dtype
    if held == dtype:
        return data
    if isinstance(data, Call) and is_op_call(data, "cast"):
        real = data.args[0]
    else:
        real = data
    if real.tensor_type.dtype == dtype and is_float(dtype) and is_integer(held):
        low, high = integer_range(held)
        return node.call("trunc", node.call("clip", real, a_min=float(low), a_max=float(high)))
    return node.call("cast", data, dtype=dtype)


@from_onnx("Constant")
def constant(
    node: OnnxNode,
    *,
    value: Array | None = None,
    value_float: float | None = None,
    value_floats: list[float] | None = None,
    value_int: int | None = None,
    value_ints: list[int] | None = None,
) -> Expr:
    """A tensor literal in any of its spellings."""
    if value is not None:
        return node.const(value)
    for real in (value_float, value_floats):
        if real is not None:
            return node.const(real, "float32")
    for integer in (value_int, value_ints):
        if integer is not None:
            return node.const(integer, "int64")
    raise node.error("only dense numeric values are supported")


@from_onnx("ConstantOfShape", since=9)
def constant_of_shape(node: OnnxNode, shape: list[int], *, value: Array | None = None) -> Expr:
    """A tensor full of one value; the shape must be constant."""
    if value is None:
        fill = np.zeros((), "float32")
    else:
        fill = np.asarray(value).reshape(())
    if any(d < 0 for d in shape):
        raise node.error(f"negative dimension in shape {tuple(shape)}")
    return node.call("full", node.const(fill), shape=tuple(shape), dtype=str(fill.dtype))


@from_onnx("EyeLike", since=9)
def eye_like(node: OnnxNode, data: Expr, *, dtype: int | None = None, k: int = 0) -> Expr:
    """Ones on a diagonal, of a static shape."""
    shape = node.shape(data)
    if dtype is None:
        kind = data.tensor_type.dtype
    else:
        kind = dtype_of(dtype, node.label)
    if len(shape) != 2 or shape[0] * shape[1] * bits(kind) > 1 << 31:
        raise node.error(f"shape {shape} is not that of a matrix of up to 256 MB")
    offset = max(-shape[0], min(shape[1], k))
    return node.const(np.eye(shape[0], shape[1], k=offset, dtype=np.dtype(kind)))


@from_onnx("Range", since=11)
def arange(node: OnnxNode) -> Expr:
    """A sequence between constants."""
    parts = [node.require_known(i, "the range") for i in range(3)]
    if any(part.size != 1 for part in parts):
        raise node.error("start, limit and delta must be scalars")
    start, limit, delta = (part.reshape(()).item() for part in parts)
    count = (limit - start) / delta if delta else math.inf
    if not count <= MAX_CONSTANT:
        raise node.error(f"range from {start} to {limit} by {delta} is not possible")
    return node.const(np.arange(start, limit, delta, dtype=parts[0].dtype))


@from_onnx("Shape")
def shape_of(node: OnnxNode, data: Expr, *, start: int = 0, end: int | None = None) -> Expr:
    """A static shape is a constant; an unknown one is computed."""
    rank = node.rank(data)
    end = rank if end is None else end
    try:
        return node.const(np.asarray(node.shape(data)[start:end], "int64"))
    except OnnxImportError:
        whole = node.call("shape_of", data, dtype="int64")
        if (start, end) == (0, rank):
            return whole
        first, last, _ = slice(start, end).indices(rank)
        return node.call("strided_slice", whole, begin=(first,), end=(last,), strides=(1,))


@from_onnx("Size")
def size(node: OnnxNode, data: Expr) -> Expr:
    """Number of elements."""
    return node.const(np.asarray(np.prod(node.shape(data), dtype="int64"), "int64"))


@from_onnx("Trilu", since=14)
def trilu(node: OnnxNode, data: Expr, k: int | None = None, *, upper: bool = True) -> Expr:
    """Upper or lower triangle, as a product with a constant mask chosen by where."""
    shape = node.shape(data)[-2:]
    triangle = np.triu if upper else np.tril
    mask = node.const(triangle(np.ones(shape, bool), k or 0))
    return node.call("where", mask, data, node.scalar_like(0, data))


@from_onnx("CumSum", since=11)
def cumsum(
    node: OnnxNode, data: Expr, axis: int, *, exclusive: bool = False, reverse: bool = False
) -> Expr:
    """Running sum along a constant axis, from the front or the back."""
    axis = node.axis(axis, node.rank(data))
    if reverse:
        data = node.call("reverse", data, axis=axis)
    result = node.call("cumsum", data, axis=axis, exclusive=exclusive)
    if reverse:
        return node.call("reverse", result, axis=axis)
    return result
