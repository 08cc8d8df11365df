"""How convolutions and nn.dense take a per-channel scale into their weight.

After the operator the scale multiplies output channels, before it input channels of the weight;
a transposed convolution takes it behind. Grouped convolutions take part only when depthwise.
Source: Relay v0.10 fold_scale_axis.cc, which leaves transposed ones out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from compiler.ir.expr import Call, Expr, is_op_call
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

CONVOLUTIONS = ("nn.conv2d", "nn.conv2d_transpose")


class _Axes(NamedTuple):
    """Where channels lie.

    Attributes:
        data, result: their channel axes.
        inputs, outputs: axes of the weight.
    """

    data: int
    result: int
    inputs: int
    outputs: int


def _axes_of(call: Call) -> _Axes | None:
    """None when the operator cannot fold."""
    attrs: Any = call.attrs
    if not is_op_call(call, *CONVOLUTIONS):
        last = len(call.args[0].tensor_type.shape) - 1
        return _Axes(last, last, 1, 0)
    depthwise = is_depthwise(call)
    if attrs.groups != 1 and not depthwise:
        return None
    # Of a depthwise one a single axis of the weight runs over all channels.
    single = attrs.kernel_layout.index("O" if is_op_call(call, "nn.conv2d") else "I")
    outputs = single if attrs.groups > 1 else attrs.kernel_layout.index("O")
    inputs = single if depthwise else attrs.kernel_layout.index("I")
    result = (attrs.out_layout or attrs.data_layout).index("C")
    return _Axes(attrs.data_layout.index("C"), result, inputs, outputs)


def is_depthwise(call: Call) -> bool:
    """True when every output channel reads one input channel: one of O and I is 1, the other
    groups (which of them, where the weight is of a transposed convolution)."""
    attrs: Any = call.attrs
    shape = call.args[1].tensor_type.shape
    return {shape[attrs.kernel_layout.index(c)] for c in "OI"} == {1, attrs.groups}


@FScaleAxisBackwardPrep.register(*CONVOLUTIONS, "nn.dense")
def takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """A scale on the output channels."""
    axes = _axes_of(call)
    return None if axes is None else Message(axes.result)


@FScaleAxisBackwardPush.register(*CONVOLUTIONS, "nn.dense")
def push(call: Call, messages: Messages, message: Message, scale: Expr) -> Sequence[ArgChange]:
    """The weight's output channels are multiplied."""
    axes = _axes_of(call)
    assert axes is not None
    return None, MultiplyBy(match_axis(scale, call.args[1].tensor_type, axes.outputs, call.span))


@FScaleAxisForwardPrep.register("nn.conv2d", "nn.dense")
def takes_scale_before(call: Call, message: Message | None) -> Messages:
    """A scale on the input channels; behind a norm of rows it stays, where smoothing changes it."""
    axes = _axes_of(call)
    rows = is_op_call(call, "nn.dense") and len(call.args[0].tensor_type.shape) > 2
    return (None if axes is None or rows else Message(axes.data)), None


@FScaleAxisForwardRewrite.register("nn.conv2d", "nn.dense")
def forward(ref_call: Call, new_args: tuple[Expr, ...], ctx: Message | None) -> Expr | None:
    """The weight's input channels are multiplied."""
    data, weight = new_args
    axes = _axes_of(ref_call)
    if axes is None or not isinstance(data, Scaled) or isinstance(weight, Scaled):
        return None
    if data.axis != axes.data:
        return None
    span = ref_call.span
    factor = match_axis(data.scale, ref_call.args[1].tensor_type, axes.inputs, span)
    weight = op_call("multiply", weight, factor, span=span)
    return ref_call.with_fields(args=(data.value, weight))
