"""FQChannelFactors: how factors > 0, one per channel, pass an operator.

Smoothing multiplies the channels of a value by factors and takes them out again
further on. An operator either ties factors together (relu: what comes in goes out), or has a
constant that makes up for the difference between what comes in and what goes out (a convolution).
An operator without a rule lets no factor in or out. Factors are > 0, so f(x * s) == f(x) * s holds
for every operator here that ties them; for a clip as long as factors lift nothing above its limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from compiler.ir.expr import Call, Constant
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType
from compiler.ops.rules.scale_axis import is_depthwise
from compiler.ops.transform.transpose import permutation

RESULT: Final = -1
"""Stands for the result where operands are given by their index."""

AxisPairs = Mapping[int, int]
"""Axis of an operand → the axis of the result that runs over the same channels."""


@dataclass(frozen=True, slots=True)
class Absorber:
    """A constant operand that is multiplied by the factors of one place, or divided by them.

    Attributes:
        operand: index of the constant.
        place: index of the operand whose factors count, or RESULT.
        trailing: axes of the constant behind the one over the channels; None: as many as ``place``
            has behind its channel axis.
        divides: the constant is divided.
    """

    operand: int
    place: int
    trailing: int | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class ChannelFactors:
    """Effect of a call on factors.

    Attributes:
        own: places with factors of their own (operand index or RESULT) → their channel axis.
        tied: operands that have the factors of the result.
        absorbers: what changes so that the call computes the same function.
    """

    own: Mapping[int, int] = field(default_factory=dict)
    tied: Mapping[int, AxisPairs] = field(default_factory=dict)
    absorbers: tuple[Absorber, ...] = ()


FQChannelFactors: OpRule[Callable[[Call], ChannelFactors | None]] = OpRule(
    "FQChannelFactors", asked_by="smoothing (compiler/quantize)"
)
"""``rule(call)`` for a typed call of a float module; None where no factor may pass."""


ELEMENTWISE = ("nn.relu", "nn.leaky_relu")
POOLS = ("nn.max_pool2d", "nn.avg_pool2d", "nn.global_avg_pool2d", "nn.global_max_pool2d")
SUMS = ("add", "subtract")
SHAPES = ("reshape", "nn.batch_flatten", "squeeze", "expand_dims")


def _all_axes(ty: TensorType) -> AxisPairs:
    return {axis: axis for axis in range(len(ty.shape))}


@FQChannelFactors.register(*ELEMENTWISE)
def elementwise_factors(call: Call) -> ChannelFactors:
    """Every factor passes, along any axis."""
    return ChannelFactors(tied={0: _all_axes(call.tensor_type)})


@FQChannelFactors.register(*POOLS)
def pool_factors(call: Call) -> ChannelFactors:
    """Factors of channels pass; padding counts as 0 or not at all."""
    attrs: Any = call.attrs
    out_layout = getattr(attrs, "out_layout", "") or attrs.layout
    return ChannelFactors(tied={0: {attrs.layout.index("C"): out_layout.index("C")}})


@FQChannelFactors.register("clip")
def clip_factors(call: Call) -> ChannelFactors | None:
    """Every factor passes a relu; another limit would cut off something else."""
    attrs: Any = call.attrs
    if attrs.a_min not in (0.0, -math.inf) or attrs.a_max != math.inf:
        return None
    return ChannelFactors(tied={0: _all_axes(call.tensor_type)})


@FQChannelFactors.register(*SUMS)
def sum_factors(call: Call) -> ChannelFactors | None:
    """Both sides and the sum have the same factors; a constant side is multiplied by them."""
    shape = call.tensor_type.shape
    tied: dict[int, AxisPairs] = {}
    absorbers: list[Absorber] = []
    for side, arg in enumerate(call.args):
        if isinstance(arg, Constant):
            absorbers.append(Absorber(side, RESULT))
        elif arg.tensor_type.shape == shape:
            tied[side] = _all_axes(call.tensor_type)
        else:
            return None
    if tied:
        return ChannelFactors(tied=tied, absorbers=tuple(absorbers))
    return None


@FQChannelFactors.register("multiply")
def multiply_factors(call: Call) -> ChannelFactors | None:
    """A constant over one axis takes up the difference there; else what comes in goes out, of the
    two operands the one beside a gate: what lets no factor through."""
    constant = next((k for k, arg in enumerate(call.args) if isinstance(arg, Constant)), None)
    if constant is None:
        for side, gate in ((0, call.args[1]), (1, call.args[0])):
            same = call.args[side].tensor_type.shape == call.tensor_type.shape
            if same and isinstance(gate, Call) and FQChannelFactors.get(gate.op) is None:
                return ChannelFactors(tied={side: _all_axes(call.tensor_type)})
        return None
    data = call.args[1 - constant].tensor_type
    result = call.tensor_type
    if data.shape != result.shape:
        return None
    shape = call.args[constant].tensor_type.concrete_shape
    long = [axis for axis, size in enumerate(shape) if size != 1]
    if len(long) != 1:
        return ChannelFactors(tied={1 - constant: _all_axes(result)})
    axis = len(result.shape) - len(shape) + long[0]
    absorbers = (Absorber(constant, RESULT), Absorber(constant, 1 - constant, divides=True))
    return ChannelFactors({RESULT: axis, 1 - constant: axis}, absorbers=absorbers)


@FQChannelFactors.register("transpose")
def transpose_factors(call: Call) -> ChannelFactors:
    """Every factor passes, along the axis where its channels then are."""
    attrs: Any = call.attrs
    axes = permutation(attrs.axes, len(call.tensor_type.shape))
    return ChannelFactors(tied={0: {source: axis for axis, source in enumerate(axes)}})


@FQChannelFactors.register(*SHAPES)
def shape_factors(call: Call) -> ChannelFactors:
    """Axes that have the same size and as many elements before and behind them as ever."""
    old = call.args[0].tensor_type.concrete_shape
    new = call.tensor_type.concrete_shape
    places = {_place(new, axis): axis for axis in range(len(new)) if new[axis] != 1}
    found = {axis: places.get(_place(old, axis)) for axis in range(len(old))}
    return ChannelFactors(tied={0: {a: b for a, b in found.items() if b is not None}})


def _place(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@FQChannelFactors.register("nn.conv2d")
def conv2d_factors(call: Call) -> ChannelFactors | None:
    """The weight: output channels times the result's factors, input channels by the data's.

    A grouped convolution that is not depthwise lets no factor in.
    """
    attrs: Any = call.attrs
    if not isinstance(call.args[1], Constant):
        return None
    behind = {c: 3 - attrs.kernel_layout.index(c) for c in "OI"}
    own = {RESULT: (attrs.out_layout or attrs.data_layout).index("C")}
    absorbers = [Absorber(1, RESULT, behind["O"])]
    reads = "I" if attrs.groups == 1 else "O" if is_depthwise(call) else None
    if reads is not None:
        own[0] = attrs.data_layout.index("C")
        absorbers.append(Absorber(1, 0, behind[reads], divides=True))
    return ChannelFactors(own, absorbers=tuple(absorbers))


@FQChannelFactors.register("nn.dense")
def dense_factors(call: Call) -> ChannelFactors | None:
    """The weight: rows times the result's factors, columns by the data's."""
    if not isinstance(call.args[1], Constant):
        return None
    last = len(call.args[0].tensor_type.shape) - 1
    rows = Absorber(1, RESULT, 1)
    columns = Absorber(1, 0, 0, divides=True)
    return ChannelFactors({RESULT: last, 0: last}, absorbers=(rows, columns))
