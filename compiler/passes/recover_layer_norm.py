"""RecoverLayerNorm: the arithmetic of a layer normalisation becomes nn.layer_norm again.

    before                                              after
    %0 = mean(%x, axis=[2], keepdims=True);             nn.layer_norm(%x, gamma, beta)
    %1 = variance(%x, %0, axis=[2], keepdims=True);
    %2 = divide(subtract(%x, %0), sqrt(add(%1, eps)));
    add(multiply(%2, gamma), beta)

The variance may be written out as a mean of squares, or as the mean of squares less the square of
the mean, at least 0 (Flax); gamma may multiply the difference or the reciprocal of the root (Keras)
instead of the quotient; gamma, beta or both may be missing. One integer kernel can compute the
whole with exact sums, where its steps one by one cannot.
Fires for one axis and constants gamma and beta along it, and for several axes at the end, which
are reshaped to one (group and instance norms); operators behind such norms stay as they are.
Not handled: axes in the middle, computed gamma or beta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ops.op_call import op_call
from compiler.passes.recovered_calls import args_of, factors_of, quotient_of, with_recovered_calls


@register_pass("RecoverLayerNorm", opt_level=0, required=("InferType",))
class RecoverLayerNorm(FunctionPass):
    """Make one nn.layer_norm of its mean, variance, root and quotient."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with nn.layer_norm, itself when there is none."""
        return with_recovered_calls(fn, mod, _layer_norm, _call, needed=("mean",))


@dataclass(slots=True)
class _Norm:
    data: Expr
    axis: int
    size: int
    epsilon: float
    joined: bool = False
    gamma: NDArray[Any] | None = None
    beta: NDArray[Any] | None = None


def _call(norm: _Norm, new: Mapping[Expr, Expr], node: Expr) -> Expr:
    gamma = norm.gamma
    beta = norm.beta
    shape = norm.data.tensor_type.concrete_shape
    dtype = norm.data.tensor_type.dtype
    data = new[norm.data]
    if norm.joined:
        data = op_call("reshape", data, newshape=(*shape[: norm.axis], norm.size))
    made = op_call(
        "nn.layer_norm",
        data,
        Constant(np.ones(norm.size, dtype) if gamma is None else gamma),
        Constant(np.zeros(norm.size, dtype) if beta is None else beta),
        axis=norm.axis,
        epsilon=norm.epsilon,
        scale=gamma is not None,
        center=beta is not None,
        span=node.span,
    )
    if norm.joined:
        return op_call("reshape", made, newshape=shape)
    return made


def _layer_norm(node: Expr) -> _Norm | None:
    """Return the norm that ``node`` is the whole of, or the part without beta or gamma."""
    if not is_op_call(node, "add"):
        return _scaled(node)
    found = _with_vector(node, _scaled)
    if found is None:
        return None
    norm, beta = found
    norm.beta = beta
    return norm


def _scaled(node: Expr) -> _Norm | None:
    plain = _standardized(node)
    if plain is not None or not is_op_call(node, "multiply"):
        return plain
    found = _with_vector(node, _standardized)
    if found is None:
        return None
    norm, gamma = found
    norm.gamma = gamma if norm.gamma is None else norm.gamma * gamma
    return norm


def _with_vector(
    node: Expr, inner_norm: Callable[[Expr], _Norm | None]
) -> tuple[_Norm, NDArray[Any]] | None:
    """The norm and the constant along its axis that a call joins."""
    whole = _with_constant(node)
    norm = None if whole is None else inner_norm(whole[0])
    if whole is None or norm is None:
        return None
    vector = _along(whole[1], norm, whole[0])
    if vector is None:
        return None
    return (norm, vector)


def _standardized(node: Expr) -> _Norm | None:
    """(x - mean) / sqrt(variance + epsilon), or times rsqrt; gamma may multiply either part."""
    if not is_op_call(node, "divide", "multiply"):
        return None
    quotient = quotient_of(node)
    root = "sqrt" if quotient else "rsqrt"
    parts = list(quotient or args_of(node))
    gammas = []
    for at in range(1 if quotient else 2):
        inner = _with_constant(parts[at], "multiply")
        if inner is not None:
            parts[at], gamma = inner
            gammas.append(gamma)
    centred, deviation = reversed(parts) if is_op_call(parts[0], "rsqrt") else parts
    if not is_op_call(deviation, root) or not is_op_call(centred, "subtract"):
        return None
    data, mean = args_of(centred)
    moved = _with_constant(args_of(deviation)[0], "add")
    axes = _reduced_axes(mean, data)
    if moved is None or axes is None or moved[1].data.size != 1:
        return None
    if not _is_variance(moved[0], data, axes):
        return None
    shape = data.tensor_type.concrete_shape
    size = math.prod(shape[axis] for axis in axes)
    joined = len(axes) > 1
    if joined and axes != tuple(range(len(shape) - len(axes), len(shape))):
        return None
    norm = _Norm(data, axes[0], size, float(moved[1].data.reshape(())), joined)
    for gamma in gammas:
        vector = _along(gamma, norm, data)
        if vector is None:
            return None
        if norm.gamma is None:
            norm.gamma = vector
        else:
            norm.gamma = norm.gamma * vector
    return norm


def _reduced_axes(mean: Expr, data: Expr) -> tuple[int, ...] | None:
    """The axes of mean(data, keepdims=True)."""
    if is_op_call(mean, "mean") and mean.args[0] is data:
        return _axes(mean, data)
    return None


def _axes(reduction: Call, data: Expr) -> tuple[int, ...] | None:
    attrs: Any = reduction.attrs
    rank = len(data.tensor_type.shape)
    if isinstance(attrs.axis, tuple):
        axes = attrs.axis
    else:
        axes = (attrs.axis,)
    if not attrs.keepdims or attrs.exclude or not axes or None in axes:
        return None
    return tuple(sorted(int(axis) % rank for axis in axes))


def _is_variance(node: Expr, data: Expr, axes: tuple[int, ...]) -> bool:
    """True if a node is the mean square of the distance of data to its mean, which may be computed
    anew at every place."""
    if is_op_call(node, "variance"):
        attrs: Any = node.attrs
        mean_of_data = node.args[0] is data and _reduced_axes(node.args[1], data) == axes
        return mean_of_data and _axes(node, data) == axes and not attrs.unbiased
    limited = _with_constant(node, "maximum")
    if limited is not None and not limited[1].data.any():
        node = limited[0]
    elif is_op_call(node, "nn.relu"):
        node = args_of(node)[0]
    if is_op_call(node, "subtract"):
        squares, square = args_of(node)
        means = factors_of(square)
        if not means or any(_reduced_axes(mean, data) != axes for mean in means):
            return False
        if not is_op_call(squares, "mean"):
            return False
        return _axes(squares, data) == axes and factors_of(args_of(squares)[0]) == (data, data)
    if not is_op_call(node, "mean") or _axes(node, data) != axes:
        return False
    factors = factors_of(args_of(node)[0])
    return bool(factors) and all(_is_centred(factor, data, axes) for factor in factors)


def _is_centred(node: Expr, data: Expr, axes: tuple[int, ...]) -> bool:
    if not is_op_call(node, "subtract"):
        return False
    whole, mean = args_of(node)
    return whole is data and _reduced_axes(mean, data) == axes


def _with_constant(node: Expr, op: str | None = None) -> tuple[Expr, Constant] | None:
    """(the other operand, the constant one) of a call with two operands."""
    if not isinstance(node, Call) or (op is not None and not is_op_call(node, op)):
        return None
    if len(node.args) == 2:
        for this, other in (node.args, node.args[::-1]):
            if isinstance(other, Constant) and not isinstance(this, Constant):
                return this, other
    return None


def _along(constant: Constant, norm: _Norm, inner: Expr) -> NDArray[Any] | None:
    """The constant as a vector along the normalised axis; None when it varies elsewhere."""
    if norm.joined:
        return None
    shape = inner.tensor_type.concrete_shape
    if constant.data.ndim > len(shape):
        return None
    padded = (1,) * (len(shape) - constant.data.ndim) + constant.data.shape
    if any(d != 1 for axis, d in enumerate(padded) if axis != norm.axis):
        return None
    if padded[norm.axis] not in (1, norm.size):
        return None
    return np.ascontiguousarray(np.broadcast_to(constant.data.reshape(-1), (norm.size,)))
