"""How convolutions and nn.dense take a per-channel scale into their weight.

After the operator the scale multiplies output channels, before it input channels of the weight;
a transposed convolution takes it behind. Grouped convolutions take part only when depthwise.
Source: Relay v0.10 fold_scale_axis.cc, which leaves transposed ones out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.ir.expr import Call, Expr
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
    Scaled,
    match_axis,
)


def conv_axis(call: Call, data_layout: str) -> int | None:
    """Channel axis of a value in ``data_layout``; None when the convolution cannot fold."""
    attrs: Any = call.attrs
    return data_layout.index("C") if attrs.groups == 1 or is_depthwise(call) else None


def is_depthwise(call: Call) -> bool:
    """True when every output channel reads one input channel: one of O and I is 1, the other
    groups (which of them, where the weight is of a transposed convolution)."""
    attrs: Any = call.attrs
    shape = call.args[1].tensor_type.concrete_shape
    return sorted(shape[attrs.kernel_layout.index(c)] for c in "OI") == [1, attrs.groups]


def _weight_factor(call: Call, scale: Expr, letter: str) -> Expr:
    """``scale`` aligned with the axis ``letter`` of the weight."""
    attrs: Any = call.attrs
    axis = attrs.kernel_layout.index(letter)
    return match_axis(scale, call.args[1].tensor_type, axis, call.span)


@FScaleAxisBackwardPrep.register("nn.conv2d", "nn.conv2d_transpose")
def conv_takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """A scale on the output channels."""
    attrs: Any = call.attrs
    axis = conv_axis(call, attrs.out_layout or attrs.data_layout)
    return None if axis is None else Message(axis)


@FScaleAxisBackwardPush.register("nn.conv2d")
def conv_push(call: Call, messages: Messages, message: Message, scale: Expr) -> Sequence[ArgChange]:
    """The weight's output channels are multiplied."""
    return None, MultiplyBy(_weight_factor(call, scale, "O"))


@FScaleAxisBackwardPush.register("nn.conv2d_transpose")
def transposed_push(
    call: Call, messages: Messages, message: Message, scale: Expr
) -> Sequence[ArgChange]:
    """The weight's output channels are multiplied; of a depthwise one they are its input's."""
    attrs: Any = call.attrs
    return None, MultiplyBy(_weight_factor(call, scale, "O" if attrs.groups == 1 else "I"))


@FScaleAxisForwardPrep.register("nn.conv2d")
def conv_takes_scale_before(call: Call, message: Message | None) -> Messages:
    """A scale on the input channels."""
    attrs: Any = call.attrs
    axis = conv_axis(call, attrs.data_layout)
    return (None if axis is None else Message(axis)), None


@FScaleAxisForwardRewrite.register("nn.conv2d")
def conv_forward(ref_call: Call, new_args: tuple[Expr, ...], ctx: Message | None) -> Expr | None:
    """The weight's input channels (of a depthwise one: its only channels) are multiplied."""
    data, weight = new_args
    attrs: Any = ref_call.attrs
    if not isinstance(data, Scaled) or isinstance(weight, Scaled):
        return None
    if data.axis != conv_axis(ref_call, attrs.data_layout):
        return None
    letter = "O" if is_depthwise(ref_call) else "I"
    factor = _weight_factor(ref_call, data.scale, letter)
    weight = op_call("multiply", weight, factor, span=ref_call.span)
    return ref_call.with_fields(args=(data.value, weight))


def _is_matrix(call: Call) -> bool:
    # Axis 1 holds the features only when the data is a matrix.
    return len(call.args[0].tensor_type.shape) == 2


@FScaleAxisBackwardPrep.register("nn.dense")
def dense_takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """A scale on the units."""
    return Message(1) if _is_matrix(call) else None


@FScaleAxisBackwardPush.register("nn.dense")
def dense_push(
    call: Call, messages: Messages, message: Message, scale: Expr
) -> Sequence[ArgChange]:
    """The rows of the weight are multiplied."""
    factor = op_call("expand_dims", scale, axis=1, num_newaxis=1, span=call.span)
    return None, MultiplyBy(factor)


@FScaleAxisForwardPrep.register("nn.dense")
def dense_takes_scale_before(call: Call, message: Message | None) -> Messages:
    """A scale on the features."""
    return (Message(1) if _is_matrix(call) else None), None


@FScaleAxisForwardRewrite.register("nn.dense")
def dense_forward(ref_call: Call, new_args: tuple[Expr, ...], ctx: Message | None) -> Expr | None:
    """The columns of the weight are multiplied."""
    data, weight = new_args
    if not isinstance(data, Scaled) or isinstance(weight, Scaled) or data.axis != 1:
        return None
    weight = op_call("multiply", weight, data.scale, span=ref_call.span)
    return ref_call.with_fields(args=(data.value, weight))
