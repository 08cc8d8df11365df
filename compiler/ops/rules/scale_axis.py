"""The questions of FoldScaleAxis: may a per-channel scale pass an operator, and what happens then.

A *scale* is a tensor that varies along one axis of the value it multiplies; squeezed, it is a
vector. A *message* says on which axis an operator can take a scale. Source: Relay v0.10
transforms/fold_scale_axis.cc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, TempExpr
from compiler.ir.op import OpPattern, OpRule
from compiler.ir.ty import TensorType
from compiler.ir.walk import behind
from compiler.ops.op_call import expand_to_axis, op_call
from compiler.span import AnySpan


@dataclass(frozen=True, slots=True)
class Message:
    """The axis a scale may vary along, and whether it must be >= 0 (a relu lies in between)."""

    axis: int
    require_positive: bool = False

    def through_activation(self) -> Message:
        """The message behind an operator that only commutes with scales >= 0."""
        return Message(self.axis, True)


Messages = Sequence[Message | None]

BackwardPrepRule = Callable[[Call, Messages], Message | None]
"""``rule(call, messages of its arguments)``: what scale the result of ``call`` can absorb."""

FScaleAxisBackwardPrep: OpRule[BackwardPrepRule] = OpRule(
    "FScaleAxisBackwardPrep", asked_by="BackwardFoldScaleAxis"
)


@dataclass(frozen=True, slots=True)
class PushDown:
    """The argument, which has a message, takes over the scale."""

    scale: Expr


@dataclass(frozen=True, slots=True)
class MultiplyBy:
    """The argument is multiplied by a factor of its own rank or less."""

    factor: Expr


ArgChange = PushDown | MultiplyBy | None
"""What becomes of one argument when a scale passes its consumer; None: only rewritten."""

BackwardPushRule = Callable[[Call, Messages, Message, Expr], Sequence[ArgChange]]
"""``rule(call, messages of its arguments, message of call, scale)``: one change per argument, such
that the changed call equals ``call * scale``."""

FScaleAxisBackwardPush: OpRule[BackwardPushRule] = OpRule(
    "FScaleAxisBackwardPush", asked_by="BackwardFoldScaleAxis"
)

ForwardPrepRule = Callable[[Call, Message | None], Messages]
"""``rule(call, message from above)``: the scale each argument may bring along."""

FScaleAxisForwardPrep: OpRule[ForwardPrepRule] = OpRule(
    "FScaleAxisForwardPrep", asked_by="ForwardFoldScaleAxis"
)

ForwardScaleRule = Callable[[Call, tuple[Expr, ...], Message | None], Expr | None]
"""A rule of the ForwardRewriter over ``Scaled`` arguments."""

FScaleAxisForwardRewrite: OpRule[ForwardScaleRule] = OpRule(
    "FScaleAxisForwardRewrite", asked_by="ForwardFoldScaleAxis"
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scaled(TempExpr):
    """``value * scale`` whose multiplication is still to be done, by the weight of a consumer.

    ``plain`` is the same value with the multiplication in its old place, for a consumer that turns
    out not to take the scale.
    """

    value: Expr
    axis: int
    scale: Expr
    plain: Expr

    def realize(self) -> Expr:
        """``plain``."""
        return self.plain


def is_per_axis(data: TensorType, factor: TensorType, axis: int) -> bool:
    """True when ``factor`` varies along ``axis`` of ``data`` and is 1 along every other axis."""
    place = axis - (len(data.shape) - len(factor.shape))
    if place < 0 or len(factor.shape) > len(data.shape):
        return False
    return all(
        size == (data.shape[axis] if k == place else 1) for k, size in enumerate(factor.shape)
    )


def squeeze_to_axis(
    factor: Expr, data: TensorType, ty: TensorType, axis: int, span: AnySpan | None
) -> Expr:
    """``factor`` of type ``ty`` without the 1-axes that ``is_per_axis`` allowed."""
    place = axis - (len(data.shape) - len(ty.shape))
    dropped = tuple(k for k in range(len(ty.shape)) if k != place)
    return op_call("squeeze", factor, axis=dropped, span=span) if dropped else factor


def match_axis(scale: Expr, ty: TensorType, axis: int, span: AnySpan | None) -> Expr:
    """A squeezed scale in a shape that broadcasts along ``axis`` of a value of type ``ty``."""
    return expand_to_axis(scale, axis, len(ty.shape), span)


_POSITIVE_DTYPES = ("float32", "float64", "int8", "int32", "uint8", "uint32")


def positive_constant(scale: Expr) -> bool:
    """True for a constant with every element >= 0, also behind operators that only reshape."""
    constant = _constant_behind_reshapes(scale)
    if constant is None or str(constant.data.dtype) not in _POSITIVE_DTYPES:
        return False
    return bool((constant.data >= 0).all())


def may_be_divisor(scale: Expr) -> bool:
    """False for a constant that holds a zero, or a number 2^24 times smaller than the largest one:
    the quotient would be infinite, or so large that it takes all the precision of a tensor."""
    constant = _constant_behind_reshapes(scale)
    if constant is None or not constant.data.size:
        return True
    magnitudes = np.abs(constant.data)
    smallest = max(float(magnitudes.max()) * 2.0**-24, 2.0**-100)
    return bool((magnitudes >= smallest).all())


def _constant_behind_reshapes(expr: Expr) -> Constant | None:
    _, source = behind(expr, ("expand_dims", "reshape", "transpose", "squeeze"))
    return source if isinstance(source, Constant) else None


_HEAVY = (OpPattern.OUT_ELEMWISE_FUSABLE, OpPattern.COMM_REDUCE, OpPattern.OPAQUE)
_LOOKED_AT = 64


def _is_gate(scale: Expr) -> bool:
    """True when the scale is itself made by a convolution, product, pool or loop: it is no part of
    the weights, and one sample's gate says nothing about another's.

    A deep graph of other operators counts as a gate as well; what folds has a few.
    """
    seen: set[Expr] = {scale}
    stack = [scale]
    while stack:
        node = stack.pop()
        if isinstance(node, Call) and getattr(node.op, "pattern", None) in _HEAVY:
            return True
        for child in node.operands():
            if child not in seen:
                seen.add(child)
                stack.append(child)
        if len(seen) > _LOOKED_AT:
            return True
    return False


def scale_of(call: Call, args: Sequence[Expr], message: Message | None, data: int) -> Expr | None:
    """The squeezed scale if argument ``1 - data`` of a multiply is one that ``message`` lets pass.

    Args:
        call: a typed ``multiply``.
        args: the arguments to take the scale from (the original or the rewritten ones).
        message: what argument ``data`` can absorb.
        data: index of the argument that is scaled.
    """
    if message is None:
        return None
    data_ty, factor_ty = call.args[data].tensor_type, call.args[1 - data].tensor_type
    if not is_per_axis(data_ty, factor_ty, message.axis) or _is_gate(call.args[1 - data]):
        return None
    known = _constant_behind_reshapes(args[1 - data])
    if known is not None and not known.data.any():
        return None  # a first state of zeros: the weight stays one for all steps
    if message.require_positive and not positive_constant(args[1 - data]):
        return None
    return squeeze_to_axis(args[1 - data], data_ty, factor_ty, message.axis, call.span)
