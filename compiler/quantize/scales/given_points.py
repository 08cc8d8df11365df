"""Models with quantize points of their own (ONNX QuantizeLinear, DequantizeLinear).

Their points keep scale and zero point, and their weights the grid they lie on; what a QConfig says
of ranges and weight scales counts only for what such a model leaves in float.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.module import INTEGER_WEIGHTS, IRModule
from compiler.ir.ty import bits
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import SQ, is_given
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ops.rules.realize import WIDE_INPUT, integer_limits
from compiler.ops.tensor.clip import ClipAttrs
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.layers import named_layers
from compiler.quantize.scales.given_grid import given_grid
from compiler.quantize.scales.weight_grid import range_on_grid
from compiler.quantize.weighted_calls import weight_of, weighted_calls
from compiler.span import onnx_nodes

_NAMED: Final = 5
"""Layers that the note names."""
_ON_GRID: Final = 1e-3
"""Steps between a limit and the grid that are the rounding of a scale."""


@dataclass(frozen=True, slots=True)
class GivenPoints:
    """Quantization points of a pre-quantized model.

    Attributes:
        count: quantize points on activations.
        with_zero_point: points with integers that, counted from 0, need more than int8.
    """

    count: int
    with_zero_point: int


def given_note(mod: IRModule) -> str:
    """A sentence on how the points and weights of a module before annotation are used; "" where it
    has neither points nor weights that came as integers."""
    found = given_points(mod)
    if found.count == 0 and INTEGER_WEIGHTS not in mod.attrs:
        return ""
    if found.with_zero_point:
        zeros = f", {found.with_zero_point} of them with a zero point"
    else:
        zeros = ""
    rounded = [f"{name!r} ({nbit} bits)" for name, nbit in ungiven_weights(mod).items()]
    names = ", ".join(rounded[:_NAMED]) + ", …" * (len(rounded) > _NAMED)
    but = f", except the weights of {names}: the file has them in float, one scale a channel does "
    but += "not hold them, or the sums of their bits leave int32, so they are rounded here"
    but = but if rounded else ""
    limits = [repr(name) for name in _limits_between_steps(mod)]
    if limits:
        told = ", ".join(limits[:_NAMED]) + ", …" * (len(limits) > _NAMED)
        but += f"; limits of {told} are rounded to steps of the point in front"
    if found.count == 0:
        return f"the weights of the model are integers already: their scales are kept{but}"
    return (
        f"the model is quantized already: its {found.count} quantize points{zeros} and the "
        f"scales of its weights are kept{but}; calibrate_mode, weight_scale and "
        "bits count only for what it leaves in float"
    )


def _limits_between_steps(mod: IRModule) -> list[str]:
    """Clips directly behind a given point, of which a limit is not on the point's grid."""
    found = []
    for node in nodes_of(mod["main"]):
        if not (is_op_call(node, "clip") and is_given(node.args[0])):
            continue
        point = node.args[0]
        attrs = ClipAttrs.of(node)
        assert isinstance(point, Call)
        scale, low, high = (p.data for p in point.args[1:] if isinstance(p, Constant))
        steps = np.array([attrs.a_min, attrs.a_max]) / float(scale)
        inside = (steps > low) & (steps < high)
        if (np.abs(steps - np.rint(steps))[inside] > _ON_GRID).any():
            found.append(next(iter(onnx_nodes(node.span)), "clip"))
    return found


def given_points(mod: IRModule, dtype: str = "int8") -> GivenPoints:
    """The points that ``main`` came with; none for a float model.

    Args:
        mod: a module before annotation.
        dtype: the symmetric storage type that is compared with.
    """
    lowest, highest = integer_limits(dtype)
    limits = _limits(mod)
    return GivenPoints(len(limits), sum(low < lowest or high > highest for low, high in limits))


def _limits(mod: IRModule) -> list[tuple[float, float]]:
    """Lowest and highest integer of every given point."""
    calls = [point for point in points_of(mod["main"]) if isinstance(point, Call)]
    ends = [[b.data for b in call.args[2:] if isinstance(b, Constant)] for call in calls]
    return [(float(low), float(high)) for low, high in ends]


def points_of(main: Function) -> list[Expr]:
    """The quantize points that a function before annotation came with."""
    if mentions(main, (SQ,)):
        return [node for node in nodes_of(main) if is_given(node)]
    return []


def ungiven_weights(mod: IRModule) -> dict[str, int]:
    """Layers whose weights a module cannot hold on a grid of their own, and the bits that it has
    for them.

    Args:
        mod: before annotation, or result of ``mark``.
    """
    names = named_layers(mod["main"])
    found = {}
    qconfig = for_given_points(mod, QConfig.recommended())
    given = bool(given_points(mod).count)
    for call, _ in weighted_calls(mod["main"]):
        weight = weight_of(call)
        axis = FQProductShape.require(call.op)(call).weight_axis
        if weight is None or range_on_grid(weight.data, 8, axis) is not None:
            continue
        grid = given_grid(weight.data, axis, call, qconfig)
        if not grid.exact:
            found[names[call]] = grid.nbit if given else qconfig.nbit_weight
    return found


def for_given_points(mod: IRModule, qconfig: QConfig) -> QConfig:
    """``qconfig``, with zero points and 16 bits allowed where points of the model have some, and
    halves to the even neighbour, as QuantizeLinear rounds them."""
    limits = _limits(mod)
    if limits and qconfig.rounding == "UPWARD" and not qconfig.form.rounds_twice:
        qconfig = qconfig.with_overrides(rounding="TONEAREST_EVEN")
    steps = max((high - low for low, high in limits), default=0.0)
    if steps >= 1 << bits(qconfig.dtype_input):
        qconfig = qconfig.with_overrides(dtype_input=WIDE_INPUT, nbit_input=bits(WIDE_INPUT))
    if qconfig.activation_scheme == "asymmetric":
        return qconfig
    if given_points(mod, qconfig.dtype_input).with_zero_point == 0:
        return qconfig
    return qconfig.with_overrides(activation_scheme="asymmetric")
