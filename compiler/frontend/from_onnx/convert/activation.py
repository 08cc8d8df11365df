"""Activations; composite ones become the primitive operators they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ir.ty import is_float
from compiler.ops.tensor.formula import reduce_words


@from_onnx("Clip", since=6)
def clip_attributes(node: OnnxNode) -> Expr:
    """Clip before opset 11: bounds are attributes."""
    low = node.attr("min", -math.inf)
    high = node.attr("max", math.inf)
    # Where bounds are crossed ONNX lets the upper win, Relay the lower.
    return node.call("clip", node.arg(0), a_min=float(min(low, high)), a_max=float(high))


@from_onnx("Clip", since=11)
def clip(node: OnnxNode) -> Expr:
    """Clip with constant bounds; bounds that are computed become maximum and minimum."""
    data = node.arg(0)
    bounds = [node.known(i) if node.has_input(i) else None for i in (1, 2)]
    computed = any(node.has_input(i) and bounds[i - 1] is None for i in (1, 2))
    if not computed and is_float(data.tensor_type.dtype):
        low = -math.inf if bounds[0] is None else float(bounds[0].reshape(()))
        high = math.inf if bounds[1] is None else float(bounds[1].reshape(()))
        return node.call("clip", data, a_min=min(low, high), a_max=high)
    if node.has_input(1):
        data = node.call("maximum", data, node.arg(1))
    if node.has_input(2):
        data = node.call("minimum", data, node.arg(2))
    return data


@from_onnx("LeakyRelu")
def leaky_relu(node: OnnxNode) -> Expr:
    """LeakyRelu; ONNX's default slope is 0.01."""
    return node.call("nn.leaky_relu", node.arg(0), alpha=node.attr("alpha", 0.01))


@from_onnx("PRelu")
def prelu_before_opset_7(node: OnnxNode) -> Expr:
    """One slope, or one per channel of axis 1."""
    data = node.arg(0)
    slope = node.arg(1)
    rank = node.rank(data)
    if node.rank(slope) == 1 and node.shape(slope) != (1,) and rank > 2:
        slope = node.call("expand_dims", slope, axis=1, num_newaxis=rank - 2)
    return _with_slope(node, data, slope)


@from_onnx("PRelu", since=7)
def prelu(node: OnnxNode) -> Expr:
    """PRelu: one slope per channel, or any slope that broadcasts."""
    data = node.arg(0)
    slope = node.arg(1)
    shape = node.shape(data)
    slopes = node.shape(slope)
    channels = shape[1] if len(shape) > 1 else 1
    rank = len(shape)
    along = (1,) * max(rank - len(slopes), 0) + slopes
    if rank > 1 and along in ((1,) * rank, (1, channels) + (1,) * (rank - 2)):
        alpha = node.weight(
            1, f"flat_{channels}", lambda a: np.broadcast_to(a.reshape(-1), (channels,))
        )
        if alpha is None:
            alpha = node.call("reshape", slope, newshape=(-1,))
            alpha = node.call("broadcast_to", alpha, shape=(channels,))
        return node.call("nn.prelu", data, alpha, axis=1)
    return _with_slope(node, data, slope)


def _with_slope(node: OnnxNode, data: Expr, slope: Expr) -> Expr:
    positive = node.call("greater", data, node.scalar_like(0, data))
    return node.call("where", positive, data, node.call("multiply", data, slope))


_UNARY: Final = {
    **{
        name: name.lower()
        for name in (
            "Abs",
            "Ceil",
            "Floor",
            "Sign",
            "IsNaN",
            "Sqrt",
            "Exp",
            "Log",
            "Erf",
            "Sigmoid",
            "Sin",
            "Cos",
            "Tan",
            "Asin",
            "Acos",
            "Atan",
            "Sinh",
            "Cosh",
            "Tanh",
            "Asinh",
            "Acosh",
            "Atanh",
        )
    },
    "Neg": "negative",
    "Not": "logical_not",
    "Relu": "nn.relu",
    "Round": "round_even",
}
"""ONNX operators that are one of our unary operators."""


def unary(node: OnnxNode) -> Expr:
    """The operator that is the same."""
    return node.call(_UNARY[node.op_type], node.arg(0))


for _op_type in _UNARY:
    from_onnx(_op_type)(unary)


@from_onnx("IsInf")
def is_inf(node: OnnxNode) -> Expr:
    """IsInf of both signs, or of one."""
    data = node.arg(0)
    negative = node.attr("detect_negative", 1)
    positive = node.attr("detect_positive", 1)
    if negative and positive:
        return node.call("isinf", data)
    if not negative and not positive:
        return node.const(np.zeros(node.shape(data), bool))
    wanted = math.inf if positive else -math.inf
    return node.call("equal", data, node.scalar_like(wanted, data))


def _formula(node: OnnxNode, data: Expr, formula: str) -> Expr:
    """A function of each element in postfix notation, operator by operator."""
    made: Expr = reduce_words(formula, data, partial(node.scalar_like, expr=data), node.call)
    return made


@from_onnx("Reciprocal")
def reciprocal(node: OnnxNode) -> Expr:
    """1 / x."""
    return _formula(node, node.arg(0), "1 x divide")


@from_onnx("HardSigmoid")
def hard_sigmoid(node: OnnxNode) -> Expr:
    """clip(alpha x + beta, 0, 1)."""
    alpha = node.attr("alpha", 0.2)
    beta = node.attr("beta", 0.5)
    moved = _formula(node, node.arg(0), f"x {alpha} multiply {beta} add")
    return node.call("clip", moved, a_min=0.0, a_max=1.0)


@from_onnx("Swish", since=24)
@from_onnx("QuickGelu", since=1, domain="com.microsoft")
def swish(node: OnnxNode) -> Expr:
    """x sigmoid(alpha x)."""
    return swish_of(
        node, node.arg(0), node.attr("alpha", 1.0 if node.op_type == "Swish" else 1.702)
    )


def swish_of(node: OnnxNode, data: Expr, alpha: float) -> Expr:
    """Swish of a value."""
    return node.call("multiply", data, node.call("sigmoid", node.times(data, alpha)))


@from_onnx("SwiGLU", since=28)
def swiglu(node: OnnxNode) -> Expr:
    """Swish of the gate, times the other input."""
    gate = swish_of(node, node.arg(0), node.attr("alpha", 1.0))
    return node.call("multiply", gate, node.arg(1))


@from_onnx("Gelu", since=20)
@from_onnx("Gelu", since=1, domain="com.microsoft")
def gelu(node: OnnxNode) -> Expr:
    """x/2 (1 + erf(x/√2)), or its tanh approximation."""
    return gelu_of(node, node.arg(0), tanh=node.attr("approximate", "none") == "tanh")


def gelu_of(node: OnnxNode, data: Expr, *, tanh: bool) -> Expr:
    """Gelu of a value."""
    inner = f"x {math.sqrt(0.5)} multiply erf"
    if tanh:
        poly = "x x x multiply x multiply 0.044715 multiply add"
        inner = f"{poly} {math.sqrt(2 / math.pi)} multiply tanh"
    return _formula(node, data, f"x 0.5 multiply {inner} 1 add multiply")


def _softplus(node: OnnxNode, data: Expr) -> Expr:
    """max(x, 0) + log(1 + exp(-|x|)): no overflow for large x."""
    log = _formula(node, data, "x abs negative exp 1 add log")
    return node.call("add", node.call("nn.relu", data), log)


@from_onnx("Softplus")
def softplus(node: OnnxNode) -> Expr:
    """log(1 + exp(x))."""
    return _softplus(node, node.arg(0))


@from_onnx("Softsign")
def softsign(node: OnnxNode) -> Expr:
    """x / (1 + |x|)."""
    return _formula(node, node.arg(0), "x x abs 1 add divide")


def _exponential(node: OnnxNode, alpha: float) -> Expr:
    # exp only sees x <= 0: the branch not taken must not overflow.
    negative = f"x 0 minimum exp 1 subtract {alpha} multiply"
    return _formula(node, node.arg(0), f"x 0 greater x {negative} where")


@from_onnx("Elu")
def elu(node: OnnxNode) -> Expr:
    """x for x > 0, else alpha (exp(x) - 1)."""
    return _exponential(node, node.attr("alpha", 1.0))


@from_onnx("Selu")
def selu(node: OnnxNode) -> Expr:
    """gamma times elu."""
    result = _exponential(node, node.attr("alpha", 1.6732632423543772))
    return node.times(result, node.attr("gamma", 1.0507009873554805))


@from_onnx("Shrink", since=9)
def shrink(node: OnnxNode) -> Expr:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    limit = node.attr("lambd", 0.5)
    bias = node.attr("bias", 0.0)
    above = f"x {limit} greater x {bias} subtract 0 where"
    return _formula(node, node.arg(0), f"x {-limit} less x {bias} add {above} where")


@from_onnx("ThresholdedRelu", since=10)
def thresholded_relu(node: OnnxNode) -> Expr:
    """x above alpha, 0 elsewhere."""
    return _formula(node, node.arg(0), f"x {node.attr('alpha', 1.0)} greater x 0 where")


_Along = Callable[[OnnxNode, Expr, int], Expr]


def _softmax(op: str) -> _Along:
    return lambda node, data, axis: node.call(op, data, axis=axis)


def _hardmax(node: OnnxNode, data: Expr, axis: int) -> Expr:
    """1 at the first largest element along ``axis``, 0 elsewhere."""
    axis = node.axis(axis, node.rank(data))
    top = node.call("argmax", data, axis=(axis,), keepdims=False, dtype="int64")
    return node.call(
        "one_hot",
        top,
        node.scalar_like(1, data),
        node.scalar_like(0, data),
        depth=node.shape(data)[axis],
        axis=axis,
        dtype=data.tensor_type.dtype,
    )


_ALONG: dict[str, _Along] = {
    "Softmax": _softmax("nn.softmax"),
    "LogSoftmax": _softmax("nn.log_softmax"),
    "Hardmax": _hardmax,
}


def along_axis(node: OnnxNode) -> Expr:
    """Over one axis; before opset 13 axes from ``axis`` on are one."""
    along = _ALONG[node.op_type]
    data = node.arg(0)
    if node.opset >= 13:
        return along(node, data, node.attr("axis", -1))
    rank = node.rank(data)
    axis = node.axis(node.attr("axis", 1), rank)
    if axis == rank - 1:
        return along(node, data, -1)
    shape = node.shape(data)
    flat = node.call("reshape", data, newshape=(math.prod(shape[:axis]), math.prod(shape[axis:])))
    return node.call("reshape", along(node, flat, -1), newshape=shape)


for _op_type in _ALONG:
    from_onnx(_op_type)(along_axis)
    from_onnx(_op_type, since=13)(along_axis)


@from_onnx("Dropout")
def dropout(node: OnnxNode) -> list[Expr]:
    """Dropout at inference: the data, and a mask of ones."""
    if node.has_input(2) and node.require_known(2, "training_mode").any():
        ratio = node.require_known(1, "the ratio") if node.has_input(1) else np.ones(())
        if ratio.any():
            raise node.error("training_mode is not supported", "export the model in eval mode")
    data = node.arg(0)
    mask = node.const(np.ones((), dtype="bool"))
    outputs = [data]
    if len(node.proto.output) > 1 and node.proto.output[1]:
        outputs.append(node.call("broadcast_to", mask, shape=node.shape(data)))
    return outputs
