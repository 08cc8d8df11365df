"""The questions of FoldScaleAxis: may a per-channel scale pass an operator, and what happens then.

A *scale* is a tensor that varies along one axis of the value it multiplies; squeezed, it is a
vector. A *message* says on which axis an operator can take a scale. It passes what FAxes calls an
activation or a join on its way to the weight of a product.

After the operator the scale multiplies output channels, before it input channels of the weight;
a transposed convolution takes it behind. Grouped convolutions take part only when depthwise.
Source: Relay v0.10 transforms/fold_scale_axis.cc, which leaves transposed ones out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr, TempExpr, is_op_call
from compiler.ir.op import OpPattern
from compiler.ir.ty import TensorType
from compiler.ir.walk import behind
from compiler.ops.op_call import expand_to_axis, op_call
from compiler.ops.rules.axes import RESULT, Axes, AxisPairs, FAxes
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


@dataclass(frozen=True, slots=True)
class PushDown:
    """The argument, which has a message, takes over the scale."""

    scale: Expr


@dataclass(frozen=True, slots=True)
class MultiplyBy:
    """The argument is multiplied by a factor of its own rank or less."""

    factor: Expr


ArgChange = PushDown | MultiplyBy | None
"""Change of one argument when a scale passes its consumer; None: only rewritten."""


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
    if dropped:
        return op_call("squeeze", factor, axis=dropped, span=span)
    return factor


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
    if isinstance(source, Constant):
        return source
    return None


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
    data_ty = call.args[data].tensor_type
    factor_ty = call.args[1 - data].tensor_type
    if not is_per_axis(data_ty, factor_ty, message.axis) or _is_gate(call.args[1 - data]):
        return None
    known = _constant_behind_reshapes(args[1 - data])
    if known is not None and not known.data.any():
        return None  # a first state of zeros: the weight stays one for all steps
    if message.require_positive and not positive_constant(args[1 - data]):
        return None
    return squeeze_to_axis(args[1 - data], data_ty, factor_ty, message.axis, call.span)


# ---- the four questions --------------------------------------------------------------------------


def axes_of(call: Call) -> Axes:
    """Axes along which scales pass a typed call; without a rule, none."""
    rule = FAxes.get(call.op)
    return (rule and rule(call)) or Axes()


def _is_product(call: Call, axes: Axes) -> bool:
    heavy = getattr(call.op, "pattern", None) == OpPattern.OUT_ELEMWISE_FUSABLE
    return heavy and RESULT in axes.own and 0 in axes.own


def _is_activation(call: Call, axes: Axes) -> bool:
    """Tell whether f(x * s) == f(x) * s for s >= 0 along any axis."""
    pairs = axes.tied.get(0)
    if pairs is None or len(call.args) != 1 or axes.joins:
        return False
    return len(pairs) == len(call.tensor_type.shape) and all(a == b for a, b in pairs.items())


def takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """Return the scale that the result of ``call`` can absorb.

    Args:
        messages: those of its arguments.
    """
    axes = axes_of(call)
    if _is_product(call, axes):
        return Message(axes.own[RESULT])
    if axes.joins:
        sides = _scaled_sides(call, messages, axes)
        takers = [message for side in sides if (message := messages[side]) is not None]
        if not takers:
            return None
        # Both sides will get the scale, so the condition of either holds for the sum.
        return Message(takers[0].axis, any(m.require_positive for m in takers))
    if _is_activation(call, axes):
        return messages[0] and messages[0].through_activation()
    return None


def pushed_down(call: Call, messages: Messages, message: Message, scale: Expr) -> list[ArgChange]:
    """Return a change for each argument such that the changed call equals ``call * scale``.

    Args:
        messages: those of the arguments.
        message: of the call.
    """
    axes = axes_of(call)
    if axes.joins:
        # (a + b) * s == a * s + b * s
        sides = _scaled_sides(call, messages, axes)
        return [
            PushDown(scale)
            if side in sides
            else MultiplyBy(_along(scale, call, side, pairs, message.axis))
            for side, pairs in enumerate(axes.joins)
        ]
    if _is_product(call, axes):
        return [None, MultiplyBy(_weight_factor(call, axes, RESULT, scale))]
    return [PushDown(scale)]


def takes_scale_before(call: Call, message: Message | None) -> Messages | None:
    """Return the scale that each argument may bring along; None where none passes.

    Behind a norm of rows it stays, where smoothing changes it.

    Args:
        message: what the consumers of the call take.
    """
    axes = axes_of(call)
    if _is_product(call, axes):
        rows = is_op_call(call, "nn.dense") and len(call.args[0].tensor_type.shape) > 2
        return (None if rows else Message(axes.own[0])), None
    if axes.joins:
        return _side_before(call, message)
    if _is_activation(call, axes):
        return (message and message.through_activation(),)
    return None


def forward(ref_call: Call, new_args: Args, ctx: Message | None) -> Expr | None:
    """Take over the scale of an argument: the rule of the ForwardRewriter over ``Scaled`` values.

    Args:
        ctx: what the consumers of the call take.
    """
    if is_op_call(ref_call, "multiply"):
        return _taken_out(ref_call, new_args, ctx)
    if not any(isinstance(arg, Scaled) for arg in new_args):
        return None
    axes = axes_of(ref_call)
    if axes.joins:
        return _sum_forward(ref_call, new_args)
    (data, *others) = new_args
    if not isinstance(data, Scaled) or any(isinstance(arg, Scaled) for arg in others):
        return None
    if _is_activation(ref_call, axes):
        value = ref_call.with_fields(args=(data.value,))
        return Scaled(value, data.axis, data.scale, ref_call.with_fields(args=(data.plain,)))
    if not _is_product(ref_call, axes) or data.axis != axes.own[0]:
        return None
    factor = _weight_factor(ref_call, axes, 0, data.scale)
    weight = op_call("multiply", others[0], factor, span=ref_call.span)
    return ref_call.with_fields(args=(data.value, weight))


def _weight_factor(call: Call, axes: Axes, place: int, scale: Expr) -> Expr:
    """The scale of a place along the axis of the weight that makes up for it."""
    weight = call.args[1].tensor_type
    return match_axis(scale, weight, axes.weight_axis(call, place), call.span)


# ---- sums ----------------------------------------------------------------------------------------


def _along(scale: Expr, call: Call, side: int, pairs: AxisPairs, axis: int) -> Expr:
    """The scale in a shape that broadcasts along an axis of the result within one side."""
    own = next(mine for mine, result in pairs.items() if result == axis)
    return match_axis(scale, call.args[side].tensor_type, own, call.span)


def _runs_along(call: Call, axes: Axes, side: int, axis: int) -> bool:
    """True when a side varies along one axis of the result alone, and the other has all axes."""
    shape = call.tensor_type.shape
    mine = call.args[side].tensor_type.shape
    pairs = axes.joins[side]
    other = call.args[1 - side].tensor_type.shape
    return (
        len(other) == len(shape)
        and axis in pairs.values()
        and all(size == (other[axis] if pairs[k] == axis else 1) for k, size in enumerate(mine))
    )


def _scaled_sides(call: Call, messages: Messages, axes: Axes) -> tuple[int, ...]:
    """Arguments of a sum that take over a scale of the result; the first one sets the axis."""
    lhs, rhs = messages
    types = [a.tensor_type for a in call.args]
    same_axis = lhs is not None and rhs is not None and lhs.axis == rhs.axis
    for side, mine in enumerate(messages):
        if mine is not None and _runs_along(call, axes, 1 - side, mine.axis):
            both = same_axis and len(types[0].shape) == len(types[1].shape)
            if both:
                return (side, 1 - side)
            return (side,)
    if same_axis and types[0].shape == types[1].shape:
        return (0, 1)
    return ()


def _side_before(call: Call, message: Message | None) -> Messages:
    """The message goes to the side that has all axes of the result.

    Two computed values of one shape are a residual: dividing one would cost what the scale costs.
    """
    lhs, rhs = (a.tensor_type for a in call.args)
    residual = lhs.shape == rhs.shape and all(isinstance(a, Call) for a in call.args)
    if message is None or residual:
        return None, None
    if is_per_axis(lhs, rhs, message.axis):
        return message, None
    if is_per_axis(rhs, lhs, message.axis):
        return None, message
    return None, None


def _sum_forward(ref_call: Call, new_args: Args) -> Expr | None:
    """x * s + b == (x + b / s) * s; declined when s is no divisor (may_be_divisor)."""
    side = next(i for i, arg in enumerate(new_args) if isinstance(arg, Scaled))
    data = new_args[side]
    other = new_args[1 - side]
    assert isinstance(data, Scaled)
    if isinstance(other, Scaled) or not may_be_divisor(data.scale):
        return None
    divisor = match_axis(data.scale, ref_call.args[side].tensor_type, data.axis, ref_call.span)
    divided = op_call("divide", other, divisor, span=ref_call.span)
    args = (data.value, divided) if side == 0 else (divided, data.value)
    if side == 0:
        plain = (data.plain, other)
    else:
        plain = (other, data.plain)
    value = ref_call.with_fields(args=args)
    return Scaled(value, data.axis, data.scale, ref_call.with_fields(args=plain))


def _taken_out(ref_call: Call, new_args: Args, ctx: Message | None) -> Expr | None:
    """Take the scale out of a multiply, if the consumers said that they take it."""
    if ctx is None or any(isinstance(arg, Scaled) for arg in new_args):
        return None
    for data in (0, 1):
        scale = scale_of(ref_call, new_args, ctx, data)
        if scale is not None:
            plain = ref_call.with_fields(args=new_args)
            return Scaled(new_args[data], ctx.axis, scale, plain)
    return None
