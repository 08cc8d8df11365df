"""The questions of FoldScaleAxis: may a per-channel scale pass an operator, and what happens then.

A *scale* is a tensor that varies along one axis of the value it multiplies; squeezed, it is a
vector. A *message* says on which axis an operator can take a scale. It passes relu, add, subtract
and bias_add on its way to the weight of a convolution or nn.dense.

After the operator the scale multiplies output channels, before it input channels of the weight;
a transposed convolution takes it behind. Grouped convolutions take part only when depthwise.
Source: Relay v0.10 transforms/fold_scale_axis.cc, which leaves transposed ones out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from compiler.ir.expr import Args, Call, Constant, Expr, TempExpr, is_op_call
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
"""Change of one argument when a scale passes its consumer; None: only rewritten."""

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


# ---- elementwise operators -----------------------------------------------------------------------


ACTIVATIONS = ("nn.relu", "nn.leaky_relu")
SUMS = ("add", "subtract")


@FScaleAxisBackwardPrep.register(*ACTIVATIONS)
def activation_takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """Return the scale that its argument takes, as long as it is >= 0."""
    return messages[0] and messages[0].through_activation()


@FScaleAxisBackwardPush.register(*ACTIVATIONS)
def activation_push(
    call: Call, messages: Messages, message: Message, scale: Expr
) -> Sequence[ArgChange]:
    """relu(x) * s == relu(x * s) for s >= 0."""
    return (PushDown(scale),)


@FScaleAxisForwardPrep.register(*ACTIVATIONS)
def activation_takes_scale_before(call: Call, message: Message | None) -> Messages:
    """Return the scale that its consumers take, as long as it is >= 0."""
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
            if both:
                return (side, 1 - side)
            return (side,)
    if same_axis and types[0].shape == types[1].shape:
        return (0, 1)
    return ()


@FScaleAxisBackwardPrep.register(*SUMS)
def sum_takes_scale_behind(call: Call, messages: Messages) -> Message | None:
    """Return the scale that one side takes if the other is per axis too, or that both sides
    take."""
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
    data = new_args[side]
    other = new_args[1 - side]
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
    """Return the scale that the data takes on the very axis of the bias."""
    attrs: Any = call.attrs
    data = messages[0]
    if data is not None and data.axis == attrs.axis:
        return data
    return None


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


# ---- products ------------------------------------------------------------------------------------


CONVOLUTIONS = ("nn.conv2d", "nn.conv2d_transpose")


class _Axes(NamedTuple):
    """Axes of channels.

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
    if axes is None:
        return None
    return Message(axes.result)


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
