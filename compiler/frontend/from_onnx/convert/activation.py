"""Activations; composite ones become the primitive operators they are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.signature import Input
from compiler.ir.expr import Expr
from compiler.ir.ty import is_float
from compiler.ops.number_format import Array
from compiler.ops.tensor.formula import reduce_words


@from_onnx("Clip", since=6)
def clip_attributes(
    node: OnnxNode, data: Expr, *, min: float = -math.inf, max: float = math.inf
) -> Expr:
    """Clip before opset 11: bounds are attributes."""
    # Where bounds are crossed ONNX lets the upper win, Relay the lower.
    return node.call("clip", data, a_min=float(max if max < min else min), a_max=float(max))


@from_onnx("Clip", since=11)
def clip(node: OnnxNode, data: Expr, low: Input | None = None, high: Input | None = None) -> Expr:
    """Clip with constant bounds; bounds that are computed become maximum and minimum."""
    bounds = [-math.inf, math.inf]
    computed = not is_float(data.tensor_type.dtype)
    for place, bound in enumerate((low, high)):
        if bound is not None and bound.known is not None:
            bounds[place] = float(bound.known.reshape(()))
        elif bound is not None:
            computed = True
    if not computed:
        return node.call("clip", data, a_min=min(bounds), a_max=bounds[1])
    if low is not None:
        data = node.call("maximum", data, low.expr)
    if high is not None:
        data = node.call("minimum", data, high.expr)
    return data


@from_onnx("LeakyRelu")
def leaky_relu(node: OnnxNode, data: Expr, *, alpha: float = 0.01) -> Expr:
    """LeakyRelu."""
    return node.call("nn.leaky_relu", data, alpha=alpha)


@from_onnx("PRelu")
def prelu_before_opset_7(node: OnnxNode, data: Expr, slope: Expr) -> Expr:
    """One slope, or one per channel of axis 1."""
    rank = node.rank(data)
    if node.rank(slope) == 1 and node.shape(slope) != (1,) and rank > 2:
        slope = node.call("expand_dims", slope, axis=1, num_newaxis=rank - 2)
    return _with_slope(node, data, slope)


@from_onnx("PRelu", since=7)
def prelu(node: OnnxNode, data: Expr, slope: Input) -> Expr:
    """PRelu: one slope per channel, or any slope that broadcasts."""
    shape = node.shape(data)
    slopes = node.shape(slope.expr)
    channels = shape[1] if len(shape) > 1 else 1
    rank = len(shape)
    along = (1,) * max(rank - len(slopes), 0) + slopes
    if rank > 1 and along in ((1,) * rank, (1, channels) + (1,) * (rank - 2)):
        alpha = slope.weight(
            f"flat_{channels}", lambda a: np.broadcast_to(a.reshape(-1), (channels,))
        )
        if alpha is None:
            alpha = node.call("reshape", slope.expr, newshape=(-1,))
            alpha = node.call("broadcast_to", alpha, shape=(channels,))
        return node.call("nn.prelu", data, alpha, axis=1)
    return _with_slope(node, data, slope.expr)


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


def unary(node: OnnxNode, data: Expr) -> Expr:
    """The operator that is the same."""
    return node.call(_UNARY[node.op_type], data)


for _op_type in _UNARY:
    from_onnx(_op_type)(unary)


@from_onnx("IsInf")
def is_inf(
    node: OnnxNode, data: Expr, *, detect_negative: bool = True, detect_positive: bool = True
) -> Expr:
    """IsInf of both signs, or of one."""
    if detect_negative and detect_positive:
        return node.call("isinf", data)
    if not detect_negative and not detect_positive:
        return node.const(np.zeros(node.shape(data), bool))
    wanted = math.inf if detect_positive else -math.inf
    return node.call("equal", data, node.scalar_like(wanted, data))


def _formula(node: OnnxNode, data: Expr, formula: str) -> Expr:
    """A function of each element in postfix notation, operator by operator."""
    made: Expr = reduce_words(formula, data, partial(node.scalar_like, expr=data), node.call)
    return made


@from_onnx("Reciprocal")
def reciprocal(node: OnnxNode, data: Expr) -> Expr:
    """1 / x."""
    return _formula(node, data, "1 x divide")


@from_onnx("HardSigmoid")
def hard_sigmoid(node: OnnxNode, data: Expr, *, alpha: float = 0.2, beta: float = 0.5) -> Expr:
    """clip(alpha x + beta, 0, 1)."""
    moved = _formula(node, data, f"x {alpha} multiply {beta} add")
    return node.call("clip", moved, a_min=0.0, a_max=1.0)


@from_onnx("Swish", since=24)
def swish(node: OnnxNode, data: Expr, *, alpha: float = 1.0) -> Expr:
    """x sigmoid(alpha x)."""
    return swish_of(node, data, alpha)


@from_onnx("QuickGelu", since=1, domain="com.microsoft")
def quick_gelu(node: OnnxNode, data: Expr, *, alpha: float = 1.702) -> Expr:
    """x sigmoid(alpha x)."""
    return swish_of(node, data, alpha)


def swish_of(node: OnnxNode, data: Expr, alpha: float) -> Expr:
    """Swish of a value."""
    return node.call("multiply", data, node.call("sigmoid", node.times(data, alpha)))


@from_onnx("SwiGLU", since=28)
def swiglu(node: OnnxNode, gate: Expr, data: Expr, *, alpha: float = 1.0) -> Expr:
    """Swish of the gate, times the other input."""
    return node.call("multiply", swish_of(node, gate, alpha), data)


@from_onnx("Gelu", since=20)
@from_onnx("Gelu", since=1, domain="com.microsoft")
def gelu(node: OnnxNode, data: Expr, *, approximate: str = "none") -> Expr:
    """x/2 (1 + erf(x/√2)), or its tanh approximation."""
    return gelu_of(node, data, tanh=approximate == "tanh")


def gelu_of(node: OnnxNode, data: Expr, *, tanh: bool) -> Expr:
    """Gelu of a value."""
    inner = f"x {math.sqrt(0.5)} multiply erf"
    if tanh:
        poly = "x x x multiply x multiply 0.044715 multiply add"
        inner = f"{poly} {math.sqrt(2 / math.pi)} multiply tanh"
    return _formula(node, data, f"x 0.5 multiply {inner} 1 add multiply")


@from_onnx("Softplus")
def softplus(node: OnnxNode, data: Expr) -> Expr:
    """log(1 + exp(x)) as max(x, 0) + log(1 + exp(-|x|)): no overflow for large x."""
    log = _formula(node, data, "x abs negative exp 1 add log")
    return node.call("add", node.call("nn.relu", data), log)


@from_onnx("Softsign")
def softsign(node: OnnxNode, data: Expr) -> Expr:
    """x / (1 + |x|)."""
    return _formula(node, data, "x x abs 1 add divide")


@from_onnx("Elu")
def elu(node: OnnxNode, data: Expr, *, alpha: float = 1.0) -> Expr:
    """x for x > 0, else alpha (exp(x) - 1)."""
    # exp only sees x <= 0: the branch not taken must not overflow.
    negative = f"x 0 minimum exp 1 subtract {alpha} multiply"
    return _formula(node, data, f"x 0 greater x {negative} where")


@from_onnx("Selu")
def selu(
    node: OnnxNode,
    data: Expr,
    *,
    alpha: float = 1.6732632423543772,
    gamma: float = 1.0507009873554805,
) -> Expr:
    """gamma times elu."""
    return node.times(elu(node, data, alpha=alpha), gamma)


@from_onnx("Shrink", since=9)
def shrink(node: OnnxNode, data: Expr, *, bias: float = 0.0, lambd: float = 0.5) -> Expr:
    """x + bias below -lambd, x - bias above lambd, 0 between."""
    above = f"x {lambd} greater x {bias} subtract 0 where"
    return _formula(node, data, f"x {-lambd} less x {bias} add {above} where")


@from_onnx("ThresholdedRelu", since=10)
def thresholded_relu(node: OnnxNode, data: Expr, *, alpha: float = 1.0) -> Expr:
    """x above alpha, 0 elsewhere."""
    return _formula(node, data, f"x {alpha} greater x 0 where")


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


def along_axis(node: OnnxNode, data: Expr, *, axis: int = -1) -> Expr:
    """Over one axis."""
    return _ALONG[node.op_type](node, data, axis)


def along_axes(node: OnnxNode, data: Expr, *, axis: int = 1) -> Expr:
    """Before opset 13 axes from ``axis`` on are one."""
    along = _ALONG[node.op_type]
    rank = node.rank(data)
    axis = node.axis(axis, rank)
    if axis == rank - 1:
        return along(node, data, -1)
    shape = node.shape(data)
    flat = node.call("reshape", data, newshape=(math.prod(shape[:axis]), math.prod(shape[axis:])))
    return node.call("reshape", along(node, flat, -1), newshape=shape)


for _op_type in _ALONG:
    from_onnx(_op_type)(along_axes)
    from_onnx(_op_type, since=13)(along_axis)


@from_onnx("Dropout")
def dropout(
    node: OnnxNode,
    data: Expr,
    ratio: Input | None = None,
    training_mode: Array | None = None,
) -> list[Expr]:
    """Dropout at inference: the data, and a mask of ones."""
    if training_mode is not None and training_mode.any():
        if ratio is None:
            kept = np.ones(())
        else:
            kept = node.require_known(1, "the ratio")
        if kept.any():
            raise node.error("training_mode is not supported", "export the model in eval mode")
    mask = node.const(np.ones((), dtype="bool"))
    outputs = [data]
    if len(node.proto.output) > 1 and node.proto.output[1]:
        outputs.append(node.call("broadcast_to", mask, shape=node.shape(data)))
    return outputs
