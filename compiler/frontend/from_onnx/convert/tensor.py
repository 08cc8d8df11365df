"""Elementwise arithmetic, comparisons, logic, casts and constants."""

from __future__ import annotations

import math
from functools import partial, reduce

import numpy as np

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode, dtype_of
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.ty import bits, integer_range, is_dynamic, is_float, is_integer

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


def binary(node: OnnxNode) -> Expr:
    """The operator that is the same."""
    return node.call(_ALL_BINARY[node.op_type], node.arg(0), _aligned(node))


def _aligned(node: OnnxNode) -> Expr:
    """The second operand. Before opset 7 its axes lie along those of the first one from ``axis`` on
    where ``broadcast`` says so, and it gets trailing axes of size 1; without ``axis`` along the
    last ones."""
    data = node.arg(0)
    other = node.arg(1)
    axis = node.attr("axis", None)
    if node.opset >= 7 or not node.attr("broadcast", 0) or axis is None:
        return other
    rank = node.rank(data)
    other_rank = node.rank(other)
    missing = rank - other_rank - node.axis(axis, rank)
    if missing < 0:
        raise node.error(f"axis {axis} leaves no room for rank {other_rank} in rank {rank}")
    if missing == 0:
        return other
    return node.call("expand_dims", other, axis=other_rank, num_newaxis=missing)


for _op_type in _BINARY:
    from_onnx(_op_type)(binary)
for _op_type in _ALL_BINARY:
    if _op_type not in ("Mul", "Div", "Pow"):
        from_onnx(_op_type, since=7)(binary)


@from_onnx("Mul", since=7)
def multiply(node: OnnxNode) -> Expr:
    """Elementwise product; nothing is left of one with zeros, whose range would be no scale."""
    made = node.call("multiply", node.arg(0), node.arg(1))
    zeros = (node.known(place) for place in (0, 1))
    if not any(held is not None and held.dtype.kind == "f" and not held.any() for held in zeros):
        return made
    ty = made.tensor_type
    if is_dynamic(ty):
        return made
    return node.const(np.zeros(ty.concrete_shape), ty.dtype)


@from_onnx("BitwiseNot", since=18)
def bitwise_not(node: OnnxNode) -> Expr:
    """Bitwise complement."""
    return node.call("bitwise_not", node.arg(0))


@from_onnx("BitShift", since=11)
def bit_shift(node: OnnxNode) -> Expr:
    """Shift in the direction of the attribute; amounts outside the width push every bit out."""
    right = node.attr("direction") == "RIGHT"
    op = "right_shift" if right else "left_shift"
    data = node.arg(0)
    amount = node.arg(1)
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
def divide(node: OnnxNode) -> Expr:
    """Division; by a float constant it becomes a product with the reciprocal."""
    data = node.arg(0)
    if is_float(data.tensor_type.dtype):
        inverse = node.weight(1, "reciprocal", lambda d: d.dtype.type(1) / d)
        if inverse is not None and node.known(0) is None:
            return node.call("multiply", data, inverse)
    return node.call("divide", data, node.arg(1))


@from_onnx("Pow", since=7)
def power(node: OnnxNode) -> Expr:
    """Power; exponents 2 and 0.5 become a product and a square root."""
    data = node.arg(0)
    dtype = data.tensor_type.dtype
    exponent = node.known(1)
    if exponent is not None and exponent.size == 1 and is_float(dtype):
        value = float(exponent.reshape(()))
        if value == 2.0 and exponent.ndim <= node.rank(data):
            return node.call("multiply", data, data)
        if value == 0.5 and exponent.ndim <= node.rank(data):
            return node.call("sqrt", data)
        if value == 1.0 and exponent.ndim <= node.rank(data):
            return data
    return node.call("power", data, node.cast(node.arg(1), dtype))


@from_onnx("Mod", since=10)
def modulo(node: OnnxNode) -> Expr:
    """Sign of the divisor, or of the dividend with fmod=1."""
    op = "trunc_mod" if node.attr("fmod", 0) else "floor_mod"
    return node.call(op, node.arg(0), node.arg(1))


def _folded(node: OnnxNode, op: str) -> Expr:
    return reduce(partial(node.call, op), node.args())


_VARIADIC = {"Sum": "add", "Max": "maximum", "Min": "minimum"}


def variadic(node: OnnxNode) -> Expr:
    """Any number of tensors, folded from the left."""
    return _folded(node, _VARIADIC[node.op_type])


for _op_type in _VARIADIC:
    from_onnx(_op_type)(variadic)
    from_onnx(_op_type, since=8)(variadic)


@from_onnx("Mean", since=8)
def mean_of_inputs(node: OnnxNode) -> Expr:
    """Elementwise mean of the inputs."""
    return node.times(_folded(node, "add"), 1 / node.num_inputs)


@from_onnx("Where", since=9)
def where(node: OnnxNode) -> Expr:
    """Choice by a bool tensor."""
    return node.call("where", node.arg(0), node.arg(1), node.arg(2))


@from_onnx("Identity")
def identity(node: OnnxNode) -> Expr:
    """The input itself."""
    return node.arg(0)


@from_onnx("Cast", since=6)
def cast(node: OnnxNode) -> Expr:
    """Cast; to its own dtype it is the input itself."""
    return _cast(node, dtype_of(node.attr("to"), node.label))


@from_onnx("CastLike", since=15)
def cast_like(node: OnnxNode) -> Expr:
    """Cast to the dtype of the second input."""
    return _cast(node, node.arg(1).tensor_type.dtype)


def _cast(node: OnnxNode, dtype: str) -> Expr:
    """Floats that become integers and floats again are floats without their fraction."""
    data = node.arg(0)
    held = data.tensor_type.dtype
    if held == dtype:
        return data
    real = data.args[0] if isinstance(data, Call) and is_op_call(data, "cast") else data
    if real.tensor_type.dtype == dtype and is_float(dtype) and is_integer(held):
        low, high = integer_range(held)
        return node.call("trunc", node.call("clip", real, a_min=float(low), a_max=float(high)))
    return node.call("cast", data, dtype=dtype)


@from_onnx("Constant")
def constant(node: OnnxNode) -> Expr:
    """A tensor literal in any of its spellings."""
    for name, dtype in {
        "value": None,
        "value_float": "float32",
        "value_floats": "float32",
        "value_int": "int64",
        "value_ints": "int64",
    }.items():
        value = node.attr(name, None)
        if value is not None:
            return node.const(value, dtype)
    raise node.error("only dense numeric values are supported")


@from_onnx("ConstantOfShape", since=9)
def constant_of_shape(node: OnnxNode) -> Expr:
    """A tensor full of one value; the shape must be constant."""
    shape = tuple(node.ints(0, "the shape"))
    value = np.asarray(node.attr("value", np.zeros(1, "float32"))).reshape(())
    if any(d < 0 for d in shape):
        raise node.error(f"negative dimension in shape {shape}")
    return node.call("full", node.const(value), shape=shape, dtype=str(value.dtype))


@from_onnx("EyeLike", since=9)
def eye_like(node: OnnxNode) -> Expr:
    """Ones on a diagonal, of a static shape."""
    shape = node.shape(node.arg(0))
    to = node.attr("dtype", None)
    dtype = node.arg(0).tensor_type.dtype if to is None else dtype_of(to, node.label)
    if len(shape) != 2 or shape[0] * shape[1] * bits(dtype) > 1 << 31:
        raise node.error(f"shape {shape} is not that of a matrix of up to 256 MB")
    offset = max(-shape[0], min(shape[1], node.attr("k", 0)))
    return node.const(np.eye(shape[0], shape[1], k=offset, dtype=np.dtype(dtype)))


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
def shape_of(node: OnnxNode) -> Expr:
    """A static shape is a constant; an unknown one is computed."""
    data = node.arg(0)
    rank = node.rank(data)
    start = node.attr("start", 0)
    end = node.attr("end", rank)
    try:
        return node.const(np.asarray(node.shape(data)[start:end], "int64"))
    except OnnxImportError:
        whole = node.call("shape_of", data, dtype="int64")
        if (start, end) == (0, rank):
            return whole
        first, last, _ = slice(start, end).indices(rank)
        return node.call("strided_slice", whole, begin=(first,), end=(last,), strides=(1,))


@from_onnx("Size")
def size(node: OnnxNode) -> Expr:
    """Number of elements."""
    return node.const(np.asarray(np.prod(node.shape(node.arg(0)), dtype="int64"), "int64"))


@from_onnx("Trilu", since=14)
def trilu(node: OnnxNode) -> Expr:
    """Upper or lower triangle, as a product with a constant mask chosen by where."""
    data = node.arg(0)
    shape = node.shape(data)[-2:]
    offset = int(node.require_known(1, "k").reshape(())) if node.has_input(1) else 0
    triangle = np.triu if node.attr("upper", 1) else np.tril
    mask = node.const(triangle(np.ones(shape, bool), offset))
    return node.call("where", mask, data, node.scalar_like(0, data))


@from_onnx("CumSum", since=11)
def cumsum(node: OnnxNode) -> Expr:
    """Running sum along a constant axis, from the front or the back."""
    data = node.arg(0)
    axis = node.axis(int(node.require_known(1, "the axis").reshape(())), node.rank(data))
    reverse = node.attr("reverse", 0)
    exclusive = bool(node.attr("exclusive", 0))
    if reverse:
        data = node.call("reverse", data, axis=axis)
    result = node.call("cumsum", data, axis=axis, exclusive=exclusive)
    if reverse:
        return node.call("reverse", result, axis=axis)
    return result
