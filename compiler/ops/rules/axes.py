"""FAxes: where the axes of a call go, and how it scales along them.

FoldScaleAxis and smoothing multiply the channels of a value by factors and take them out again
further on. An operator either ties factors together (relu: what comes in goes out), or has an
operand that makes up for the difference between what comes in and what goes out (a convolution).
An operator without a rule lets no factor in or out. Where factors are > 0, f(x * s) == f(x) * s
holds for every operator here that ties them; where they are not, for those that join.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from compiler.ir.expr import Call, Constant, is_op_call
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType, is_dynamic

RESULT: Final = -1
"""Stands for the result where operands are given by their index."""

AxisPairs = Mapping[int, int]
"""Axis of an operand → the axis of the result that runs over the same channels."""


@dataclass(frozen=True, slots=True)
class Absorber:
    """An operand that is multiplied by the factors of one place, or divided by them.

    Attributes:
        operand: its index.
        place: index of the operand whose factors count, or RESULT.
        trailing: axes of the operand behind the one over the channels; None: as many as ``place``
            has behind its channel axis.
        divides: the operand is divided.
    """

    operand: int
    place: int
    trailing: int | None = None
    divides: bool = False


@dataclass(frozen=True, slots=True)
class Axes:
    """Axes of a call along which factors pass.

    Attributes:
        own: places with factors of their own (operand index or RESULT) → their channel axis.
        tied: operands that have the factors of the result.
        absorbers: what changes so that the call computes the same function.
        joins: f(a * s, b * s) == f(a, b) * s for any s: each operand's axes → those of the result.
    """

    own: Mapping[int, int] = field(default_factory=dict)
    tied: Mapping[int, AxisPairs] = field(default_factory=dict)
    absorbers: tuple[Absorber, ...] = ()
    joins: tuple[AxisPairs, ...] = ()

    def weight_axis(self, call: Call, place: int) -> int:
        """The axis of the weight of a product that runs over the channels of a place."""
        (absorber,) = (one for one in self.absorbers if one.place == place)
        assert absorber.trailing is not None
        return len(call.args[absorber.operand].tensor_type.shape) - 1 - absorber.trailing


FAxes: OpRule[Callable[[Call], Axes | None]] = OpRule(
    "FAxes", asked_by="FoldScaleAxis, smoothing and FQProductShape"
)
"""``rule(call)`` for a typed call; None where no factor may pass."""


ELEMENTWISE = ("nn.relu", "nn.leaky_relu")
POOLS = ("nn.max_pool2d", "nn.avg_pool2d", "nn.global_avg_pool2d", "nn.global_max_pool2d")
SUMS = ("add", "subtract")
SHAPES = ("reshape", "nn.batch_flatten", "squeeze", "expand_dims")


def _all_axes(ty: TensorType) -> AxisPairs:
    return {axis: axis for axis in range(len(ty.shape))}


@FAxes.register(*ELEMENTWISE)
def elementwise_axes(call: Call) -> Axes:
    """Every factor passes, along any axis."""
    return Axes(tied={0: _all_axes(call.tensor_type)})


@FAxes.register(*POOLS)
def pool_axes(call: Call) -> Axes:
    """Factors of channels pass; padding counts as 0 or not at all."""
    attrs: Any = call.attrs
    out_layout = getattr(attrs, "out_layout", "") or attrs.layout
    return Axes(tied={0: {attrs.layout.index("C"): out_layout.index("C")}})


@FAxes.register("clip")
def clip_axes(call: Call) -> Axes | None:
    """Every factor passes a relu; another limit would cut off something else."""
    attrs: Any = call.attrs
    if attrs.a_min not in (0.0, -math.inf) or attrs.a_max != math.inf:
        return None
    return Axes(tied={0: _all_axes(call.tensor_type)})


@FAxes.register(*SUMS)
def sum_axes(call: Call) -> Axes:
    """Both sides and the sum have the same factors; a constant side is multiplied by them."""
    shape = call.tensor_type.shape
    ranks = (len(arg.tensor_type.shape) for arg in call.args)
    joins = tuple({axis: axis + len(shape) - rank for axis in range(rank)} for rank in ranks)
    constant = [side for side, arg in enumerate(call.args) if isinstance(arg, Constant)]
    computed = [side for side in range(len(call.args)) if side not in constant]
    if any(call.args[side].tensor_type.shape != shape for side in computed):
        return Axes(joins=joins)
    tied = {side: _all_axes(call.tensor_type) for side in computed}
    return Axes({}, tied, tuple(Absorber(side, RESULT) for side in constant), joins)


@FAxes.register("nn.bias_add")
def bias_add_axes(call: Call) -> Axes:
    """The bias lies along one axis of the data."""
    attrs: Any = call.attrs
    data = _all_axes(call.tensor_type)
    return Axes({}, {0: data}, (Absorber(1, RESULT, 0),), (data, {0: attrs.axis}))


@FAxes.register("multiply")
def multiply_axes(call: Call) -> Axes | None:
    """A constant over one axis takes up the difference there; else what comes in goes out, of the
    two operands the one beside a gate: what lets no factor through."""
    constant = next((k for k, arg in enumerate(call.args) if isinstance(arg, Constant)), None)
    if constant is None:
        for side, gate in ((0, call.args[1]), (1, call.args[0])):
            same = call.args[side].tensor_type.shape == call.tensor_type.shape
            if same and isinstance(gate, Call) and FAxes.get(gate.op) is None:
                return Axes(tied={side: _all_axes(call.tensor_type)})
        return None
    data = call.args[1 - constant].tensor_type
    result = call.tensor_type
    if data.shape != result.shape:
        return None
    shape = call.args[constant].tensor_type.concrete_shape
    long = [axis for axis, size in enumerate(shape) if size != 1]
    if len(long) != 1:
        return Axes(tied={1 - constant: _all_axes(result)})
    axis = len(result.shape) - len(shape) + long[0]
    absorbers = (Absorber(constant, RESULT), Absorber(constant, 1 - constant, divides=True))
    return Axes({RESULT: axis, 1 - constant: axis}, absorbers=absorbers)


@FAxes.register(*SHAPES)
def shape_axes(call: Call) -> Axes | None:
    """Axes that have the same size and as many elements before and behind them as ever."""
    if is_dynamic(call.args[0].checked_type) or is_dynamic(call.checked_type):
        return None
    old = call.args[0].tensor_type.concrete_shape
    new = call.tensor_type.concrete_shape
    places = {_place(new, axis): axis for axis in range(len(new)) if new[axis] != 1}
    found = {axis: places.get(_place(old, axis)) for axis in range(len(old))}
    return Axes(tied={0: {a: b for a, b in found.items() if b is not None}})


def _place(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])


@FAxes.register("nn.conv2d", "nn.conv2d_transpose")
def convolution_axes(call: Call) -> Axes:
    """The weight: output channels times the result's factors, input channels by the data's.

    A grouped convolution that is not depthwise lets no factor in; of a depthwise one a single axis
    of the weight runs over all channels.
    """
    attrs: Any = call.attrs
    whole = "O" if is_op_call(call, "nn.conv2d") else "I"
    behind = {letter: 3 - attrs.kernel_layout.index(letter) for letter in "OI"}
    own = {RESULT: (attrs.out_layout or attrs.data_layout).index("C")}
    rows = Absorber(1, RESULT, behind["O" if attrs.groups == 1 else whole])
    if attrs.groups != 1 and not is_depthwise(call):
        if whole == "O":
            return Axes(own, absorbers=(rows,))
        return Axes()
    own[0] = attrs.data_layout.index("C")
    columns = Absorber(1, 0, behind["I" if attrs.groups == 1 else whole], divides=True)
    return Axes(own, absorbers=(rows, columns))


def is_depthwise(call: Call) -> bool:
    """True when every output channel reads one input channel: one of O and I is 1, the other
    groups (which of them, where the weight is of a transposed convolution)."""
    attrs: Any = call.attrs
    shape = call.args[1].tensor_type.shape
    return {shape[attrs.kernel_layout.index(c)] for c in "OI"} == {1, attrs.groups}


@FAxes.register("nn.dense")
def dense_axes(call: Call) -> Axes:
    """The weight: rows times the result's factors, columns by the data's."""
    last = len(call.args[0].tensor_type.shape) - 1
    rows = Absorber(1, RESULT, 1)
    columns = Absorber(1, 0, 0, divides=True)
    return Axes({RESULT: last, 0: last}, absorbers=(rows, columns))
