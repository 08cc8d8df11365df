"""How a per-channel scale passes relu, add, subtract and bias_add on its way to a weight.

Source: Relay v0.10 transforms/fold_scale_axis.cc.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.ir.expr import Args, Call, Expr
from compiler.ops.op_call import op_call
from compiler.ops.rules.scale_axis import (
    ArgChange,
    FScaleAxisBackwardPrep,
    FScaleAxisBackwardPush,
    FScaleAxisForwardPrep,
    FScaleAxisForwardRewrite,
    Message,
    Messages,
    MultiplyBy,
    PushDown,
    Scaled,
    is_per_axis,
    match_axis,
    may_be_divisor,
    scale_of,
)

ACTIVATIONS = ("nn.relu", "nn.leaky_relu")
SUMS = ("add", "subtract")


@FScaleAxisBackwardPrep.register(*ACTIVATIONS)
def activation_takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """What its argument takes, as long as it is >= 0."""
    return messages[0] and messages[0].through_activation()


@FScaleAxisBackwardPush.register(*ACTIVATIONS)
def activation_push(
    call: Call, messages: Messages, message: Message, scale: Expr
) -> Sequence[ArgChange]:
    """relu(x) * s == relu(x * s) for s >= 0."""
    return (PushDown(scale),)


@FScaleAxisForwardPrep.register(*ACTIVATIONS)
def activation_takes_scale_before(call: Call, message: Message | None) -> Messages:
    """What its consumers take, as long as it is >= 0."""
    return (message and message.through_activation(),)


@FScaleAxisForwardRewrite.register(*ACTIVATIONS)
def activation_forward(ref_call: Call, new_args: Args, ctx: Message | None) -> Expr | None:
    """The scale comes out behind the activation."""
    (data,) = new_args
    if not isinstance(data, Scaled):
        return None
    value = ref_call.with_fields(args=(data.value,))
    return Scaled(value, data.axis, data.scale, ref_call.with_fields(args=(data.plain,)))


def _scaled_sides(call: Call, messages: Messages) -> tuple[int, ...]:
    """Arguments of a sum that take over a scale of the result; the first one sets the axis."""
    lhs, rhs = messages
    types = [a.tensor_type for a in call.args]
    same_axis = lhs is not None and rhs is not None and lhs.axis == rhs.axis
    for side, mine in enumerate(messages):
        if mine is not None and is_per_axis(types[side], types[1 - side], mine.axis):
            both = same_axis and len(types[0].shape) == len(types[1].shape)
            return (side, 1 - side) if both else (side,)
    return (0, 1) if same_axis and types[0].shape == types[1].shape else ()


@FScaleAxisBackwardPrep.register(*SUMS)
def sum_takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """What one side takes if the other is per axis too, or what both sides take."""
    sides = _scaled_sides(call, messages)
    takers = [message for side in sides if (message := messages[side]) is not None]
    if not takers:
        return None
    # Both sides will get the scale, so the condition of either holds for the sum.
    return Message(takers[0].axis, any(m.require_positive for m in takers))


@FScaleAxisBackwardPush.register(*SUMS)
def sum_push(call: Call, messages: Messages, message: Message, scale: Expr) -> Sequence[ArgChange]:
    """(a + b) * s == a * s + b * s."""
    sides = _scaled_sides(call, messages)
    factor = match_axis(scale, call.tensor_type, message.axis, call.span)
    return [PushDown(scale) if side in sides else MultiplyBy(factor) for side in (0, 1)]


@FScaleAxisForwardPrep.register(*SUMS)
def sum_takes_scale_before(call: Call, message: Message | None) -> Messages:
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


@FScaleAxisForwardRewrite.register(*SUMS)
def sum_forward(ref_call: Call, new_args: Args, ctx: Message | None) -> Expr | None:
    """x * s + b == (x + b / s) * s; declined when s is no divisor (may_be_divisor)."""
    side = next((i for i, arg in enumerate(new_args) if isinstance(arg, Scaled)), None)
    if side is None or isinstance(new_args[1 - side], Scaled):
        return None
    data, other = new_args[side], new_args[1 - side]
    assert isinstance(data, Scaled)
    if not may_be_divisor(data.scale):
        return None
    divisor = match_axis(data.scale, ref_call.args[side].tensor_type, data.axis, ref_call.span)
    divided = op_call("divide", other, divisor, span=ref_call.span)
    args = (data.value, divided) if side == 0 else (divided, data.value)
    plain = (data.plain, other) if side == 0 else (other, data.plain)
    value = ref_call.with_fields(args=args)
    return Scaled(value, data.axis, data.scale, ref_call.with_fields(args=plain))


@FScaleAxisBackwardPrep.register("nn.bias_add")
def bias_add_takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """What the data takes on the very axis of the bias."""
    attrs: Any = call.attrs
    data = messages[0]
    return data if data is not None and data.axis == attrs.axis else None


@FScaleAxisBackwardPush.register("nn.bias_add")
def bias_add_push(
    call: Call, messages: Messages, message: Message, scale: Expr
) -> Sequence[ArgChange]:
    """The bias is scaled along with the data."""
    return PushDown(scale), MultiplyBy(scale)


@FScaleAxisForwardRewrite.register("multiply")
def multiply_forward(ref_call: Call, new_args: Args, ctx: Message | None) -> Expr | None:
    """Take the scale out, if the consumers said that they take it."""
    if ctx is None or any(isinstance(arg, Scaled) for arg in new_args):
        return None
    for data in (0, 1):
        scale = scale_of(ref_call, new_args, ctx, data)
        if scale is not None:
            plain = ref_call.with_fields(args=new_args)
            return Scaled(new_args[data], ctx.axis, scale, plain)
    return None
