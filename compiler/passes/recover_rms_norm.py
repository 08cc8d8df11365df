"""RecoverRmsNorm: division by the root of a mean of squares becomes nn.rms_norm.

    before                                              after
    %0 = multiply(%x, %x);                              nn.rms_norm(%x, axis=2, epsilon=1e-5f)
    %1 = mean(%0, axis=[2], keepdims=True);
    divide(%x, sqrt(add(%1, 1e-5f)))

The quotient may be a product with rsqrt or with 1 / sqrt (as PyTorch exports rsqrt). The root may
also be that of a sum (an L2 norm), kept away from 0 by an add or a maximum in front of it or behind
it; the result is then divided by the root of the number of summands.
Fires for one axis. Not handled: several axes, a bound of more than 1e-3 under a maximum, which is
another function than an addend.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir.expr import Constant, Expr, Function, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ops.op_call import op_call
from compiler.passes.recovered_calls import args_of, factors_of, quotient_of, with_recovered_calls

_SMALL = float(np.float32(1e-3))  # as a file holds it, a little more than 0.001


@register_pass("RecoverRmsNorm", opt_level=0, required=("InferType",))
class RecoverRmsNorm(FunctionPass):
    """Make one nn.rms_norm of its square, mean, root and quotient."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with nn.rms_norm, itself when there is none."""
        return with_recovered_calls(fn, mod, _rms_norm, _call, needed=("mean", "sum"))


@dataclass(frozen=True, slots=True)
class _Norm:
    data: Expr
    axis: int
    epsilon: float
    summands: int


def _call(norm: _Norm, new: Mapping[Expr, Expr], node: Expr) -> Expr:
    made: Expr = op_call(
        "nn.rms_norm", new[norm.data], axis=norm.axis, epsilon=norm.epsilon, span=node.span
    )
    if norm.summands > 1:
        factor = np.asarray(norm.summands**-0.5, norm.data.tensor_type.dtype)
        made = op_call("multiply", made, Constant(factor), span=node.span)
    return made


def _rms_norm(node: Expr) -> _Norm | None:
    """Return the norm by which ``node`` divides, the root of its own squares."""
    quotient = quotient_of(node)
    if quotient is not None:
        return _by_root(*quotient)
    if is_op_call(node, "multiply"):
        for data, factor in (args_of(node), args_of(node)[::-1]):
            if is_op_call(factor, "rsqrt"):
                return _of_squares(data, args_of(factor)[0], 0.0)
    return None


def _by_root(data: Expr, divisor: Expr) -> _Norm | None:
    if is_op_call(divisor, "broadcast_to"):
        divisor = args_of(divisor)[0]
    least = 0.0
    bounded = _with_number(divisor)
    if bounded is not None and bounded[1] <= _SMALL:
        divisor, least = bounded
    if not is_op_call(divisor, "sqrt"):
        return None
    return _of_squares(data, args_of(divisor)[0], least * least)


def _of_squares(data: Expr, total: Expr, epsilon: float) -> _Norm | None:
    """``total`` is mean(data * data) or sum(data * data), kept away from 0."""
    bounded = _with_number(total)
    if bounded is not None:
        added = is_op_call(total, "add")
        if bounded[1] < 0 or (not added and bounded[1] > _SMALL):
            return None
        total = bounded[0]
        epsilon = epsilon + bounded[1]
    if not is_op_call(total, "mean", "sum") or not _is_square(args_of(total)[0], data):
        return None
    attrs: Any = total.attrs
    shape = data.tensor_type.concrete_shape
    if isinstance(attrs.axis, tuple):
        axes = attrs.axis
    else:
        axes = (attrs.axis,)
    axes = tuple(range(len(shape))) if axes == (None,) else axes
    axes = tuple(axis for axis in axes if shape[axis] > 1) or axes
    if not attrs.keepdims or attrs.exclude or len(axes) != 1:
        return None
    axis = int(axes[0]) % len(shape)
    summands = shape[axis] if is_op_call(total, "sum") else 1
    return _Norm(data, axis, epsilon / summands, summands)


def _with_number(node: Expr) -> tuple[Expr, float] | None:
    """(operand, number) of an add, a maximum or a lower clip."""
    if is_op_call(node, "clip"):
        attrs: Any = node.attrs
        if math.isinf(attrs.a_max):
            return (args_of(node)[0], float(attrs.a_min))
        return None
    if not is_op_call(node, "add", "maximum"):
        return None
    for operand, number in (args_of(node), args_of(node)[::-1]):
        if isinstance(number, Constant) and number.data.size == 1:
            return operand, float(number.data.reshape(()))
    return None


def _is_square(node: Expr, data: Expr) -> bool:
    factors = factors_of(node)
    return bool(factors) and all(factor is data for factor in factors)
