"""Models with quantize points of their own (ONNX QuantizeLinear, DequantizeLinear).

Their points keep scale and zero point, and their weights the grid they lie on; what a QConfig says
of ranges and weight scales counts only for what such a model leaves in float.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.expr import Call, Constant, Expr, Function
from compiler.ir.module import IRModule
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import SQ, is_given, quantize_kind
from compiler.ops.rules.realize import integer_limits
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.calibration.weight_grid import range_on_grid
from compiler.quantize.calibration.weighted_calls import weighted_calls


@dataclass(frozen=True, slots=True)
class GivenPoints:
    """What a model brings along.

    Attributes:
        count: quantize points on activations.
        with_zero_point: points with integers that, counted from 0, need more than int8.
    """

    count: int
    with_zero_point: int

    @property
    def note(self) -> str:
        """A sentence on how they are used; "" where there are none."""
        if self.count == 0:
            return ""
        zeros = (
            f", {self.with_zero_point} of them with a zero point" if self.with_zero_point else ""
        )
        return (
            f"the model is quantized already: its {self.count} quantize points{zeros} and the "
            "scales of its weights are kept; calibrate_mode, weight_scale and bits count only for "
            "what it leaves in float"
        )


def given_points(mod: IRModule, dtype: str = "int8") -> GivenPoints:
    """The points that ``main`` came with; none for a float model.

    Args:
        mod: a module before annotation.
        dtype: the symmetric storage type that is compared with.
    """
    lowest, highest = integer_limits(dtype)
    points = points_of(mod["main"])
    beyond = 0
    for point in points:
        assert isinstance(point, Call)
        low, high = (bound.data for bound in point.args[2:] if isinstance(bound, Constant))
        beyond += bool(float(low) < lowest or float(high) > highest)
    return GivenPoints(len(points), beyond)


def points_of(main: Function) -> list[Expr]:
    """The quantize points that a function before annotation came with."""
    return [node for node in nodes_of(main) if is_given(node)] if mentions(main, (SQ,)) else []


def ungiven_weights(annotated: IRModule, nbit: int = 8) -> int:
    """Weights of convolutions and matrix products that lie on no grid of ``nbit`` bits.

    Args:
        annotated: result of ``mark``.
    """
    found = 0
    for call, _ in weighted_calls(annotated["main"]):
        point = call.args[1]
        if quantize_kind(point) != QAnnotateKind.WEIGHT:
            continue
        assert isinstance(point, Call)
        held = point.args[0]
        if isinstance(held, Constant):
            axes = (None, *range(held.data.ndim))
            found += all(range_on_grid(held.data, nbit, axis) is None for axis in axes)
    return found


def for_given_points(mod: IRModule, qconfig: QConfig) -> QConfig:
    """``qconfig``, with zero points allowed where the model has some."""
    if qconfig.activation_scheme == "asymmetric":
        return qconfig
    if given_points(mod, qconfig.dtype_input).with_zero_point == 0:
        return qconfig
    return qconfig.with_overrides(activation_scheme="asymmetric")
