"""How factors per channel pass activations, sums, products, pooling and changes of shape.

Factors are > 0, so f(x * s) == f(x) * s holds for every operator here that ties them; for a clip as
long as factors lift nothing above its limit.
"""

from __future__ import annotations

import math
from typing import Any

from compiler.ir.expr import Call, Constant
from compiler.ir.ty import TensorType
from compiler.ops.rules.channel_factors import (
    RESULT,
    Absorber,
    AxisPairs,
    ChannelFactors,
    FQChannelFactors,
)
from compiler.ops.transform.transpose import permutation

ELEMENTWISE = ("nn.relu", "nn.leaky_relu")
POOLS = ("nn.max_pool2d", "nn.avg_pool2d", "nn.global_avg_pool2d", "nn.global_max_pool2d")
SUMS = ("add", "subtract")
SHAPES = ("reshape", "nn.batch_flatten", "squeeze", "expand_dims")


def _all_axes(ty: TensorType) -> AxisPairs:
    return {axis: axis for axis in range(len(ty.shape))}


@FQChannelFactors.register(*ELEMENTWISE)
def elementwise_factors(call: Call) -> ChannelFactors:
    """What comes in goes out, along any axis."""
    return ChannelFactors(tied={0: _all_axes(call.tensor_type)})


@FQChannelFactors.register(*POOLS)
def pool_factors(call: Call) -> ChannelFactors:
    """What comes in goes out, along the channels; padding counts as 0 or not at all."""
    attrs: Any = call.attrs
    out_layout = getattr(attrs, "out_layout", "") or attrs.layout
    return ChannelFactors(tied={0: {attrs.layout.index("C"): out_layout.index("C")}})


@FQChannelFactors.register("clip")
def clip_factors(call: Call) -> ChannelFactors | None:
    """What comes in goes out of a relu; another limit would cut off something else."""
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
    return ChannelFactors(tied=tied, absorbers=tuple(absorbers)) if tied else None


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
    data, result = call.args[1 - constant].tensor_type, call.tensor_type
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
    """What comes in goes out, along the axis where the channels then are."""
    attrs: Any = call.attrs
    axes = permutation(attrs.axes, len(call.tensor_type.shape))
    return ChannelFactors(tied={0: {source: axis for axis, source in enumerate(axes)}})


@FQChannelFactors.register(*SHAPES)
def shape_factors(call: Call) -> ChannelFactors:
    """Axes that have the same size and as many elements before and behind them as ever."""
    old, new = call.args[0].tensor_type.concrete_shape, call.tensor_type.concrete_shape
    places = {_place(new, axis): axis for axis in range(len(new)) if new[axis] != 1}
    found = {axis: places.get(_place(old, axis)) for axis in range(len(old))}
    return ChannelFactors(tied={0: {a: b for a, b in found.items() if b is not None}})


def _place(shape: tuple[int, ...], axis: int) -> tuple[int, int, int]:
    return math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
