"""Bind the quantize points: scales and clip bounds become constants.

    before                                                    after
    simulated_quantize(%x, %s, %low, %high, …)                simulated_quantize(%x, 0.0625f, …)

A weight of a convolution or dense layer gets one scale per output channel when asked; a constant
bias gets, with bias_mode "accumulator", the scale of the sum it is added to.
Source: Relay v0.10 quantize/_calibrate.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Call, Constant, Expr, Function, Tuple, Var, describe, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import INTEGER_WEIGHTS, IRModule
from compiler.ir.rebuild import rebuilt_function
from compiler.ir.ty import bits
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import (
    PARAMETERS,
    SQ,
    is_given,
    point_attrs,
    quantize_kind,
)
from compiler.ops.annotation.minus_infinity import (
    LIMIT,
    SCORE_STEP,
    is_mask_point,
    is_score_point,
)
from compiler.ops.annotation.narrow_move import MOVES
from compiler.ops.annotation.wide_point import wide_headroom
from compiler.ops.rules.dom_scale import (
    SMALLEST_RANGE,
    DomScale,
    FQDomScale,
    as_scale,
    beside_constant,
    chosen_scale,
    keeps_scale,
)
from compiler.ops.rules.pass_through import picks_along
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.errors import WeightNotConstantError
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.qtypes.report import BORDER_OPS
from compiler.quantize.bits.point_bits import (
    TABULATED,
    chosen_bits,
    own_bits,
    own_range,
    point_readers,
)
from compiler.quantize.scales.bias_room import add_operands, range_for_bias, weights_with_bias
from compiler.quantize.scales.given_grid import given_grid, room_of
from compiler.quantize.scales.uneven_grid import Sidedness
from compiler.quantize.scales.weight_grid import range_on_few_levels, range_on_grid
from compiler.quantize.scales.weight_scale import weight_range


def quantize_points(annotated: IRModule) -> list[Call]:
    """The simulated_quantize calls of ``main`` in binding order, points of kind WEIGHT included."""
    return [
        node
        for node in nodes_of(annotated["main"])
        if isinstance(node, Call)
        and quantize_kind(node) not in (None, QAnnotateKind.IDENTITY)
        and not is_given(node)
    ]


def measured_points(annotated: IRModule) -> list[Call]:
    """The points whose range calibration measures: kinds INPUT and ACTIVATION, in binding order."""
    return [p for p in quantize_points(annotated) if quantize_kind(p) in _MEASURED]


_MEASURED = (QAnnotateKind.INPUT, QAnnotateKind.ACTIVATION)


def bound_grid(point: Call) -> tuple[float, float, float] | None:
    """Scale and limits of a quantize point that has one bound scale; None for others."""
    held = [arg.data for arg in point.args[1:] if isinstance(arg, Constant)]
    if point_attrs(point) is None or len(held) != len(PARAMETERS) or held[0].size != 1:
        return None
    scale, low, high = map(float, held)
    return scale, low, high


def bind_scales(
    annotated: IRModule,
    context: QuantizeContext,
    activation_ranges: Sequence[float] | NDArray[np.float32] | None,
) -> IRModule:
    """The simulated module: the annotated one with every scale and bound a constant.

    Args:
        annotated: result of QuantizeAnnotate, typed.
        context: of the run; its report hears range and scale of every point.
        activation_ranges: S of each measured point in binding order, in the units of its tensor,
            alone or with lower and upper ends as ``activation_scales`` gives them. None stands for
            ``global_scale`` everywhere.

    Raises:
        CalibrationError: the number of ranges does not fit, or one is not finite.
        WeightNotConstantError: a weight is computed or an input of the model.
    """
    main: Function = annotated["main"]
    read_by = point_readers(main) if context.qconfig.layers else {}
    bits_of = chosen_bits(main, context.qconfig, read_by)
    tabulated = {point for point, readers in read_by.items() if readers in TABULATED}
    points = quantize_points(annotated)
    binder = _Binder(
        context.qconfig,
        nodes_of(main),
        points,
        activation_ranges,
        bits_of,
        tabulated,
        INTEGER_WEIGHTS in annotated.attrs,
    )
    replaced = binder.replacements()
    context.report.points.clear()
    for point in points:
        bound = binder.bound[point]
        attrs = point_attrs(point)
        assert attrs is not None
        context.report.add_point(attrs.kind, bound.range_s, bound.scale.values)
    params = tuple(param for param in main.params if param not in replaced)
    simulated = rebuilt_function(main, lambda node, _: replaced.get(node), params)
    return infer_module(annotated.with_function("main", simulated))


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    range_s: NDArray[np.float32]
    scale: DomScale
    data: Constant | None = None
    steps: tuple[int, int] | None = None


_FINER: Final = 9
"""Bits by which a bias that a quantized model holds in float is finer than the sum that it is added
to: a runtime adds it in float, and with no more 2 % of the results go to another integer."""

_BEYOND: Final = 1.25
"""Factor by which results of 8 bits reach beyond the calibrated range: few values are seen of them,
and at a limit the largest answers are equal. Of 96 small networks with 64 samples four gain 4 to 10
dB and most lose 0.3 to 2 of some 45; five trained ones lose 0 to 0.4."""
_SUMS: Final = ("add", "subtract", "nn.dense", "nn.conv2d", "nn.matmul", "nn.batch_matmul")


def results_of(body: Expr, qconfig: QConfig) -> set[Expr]:
    """Points of 8 bits that a module gives to its user, of sums that nothing else limits."""
    found: set[Expr] = set()
    waiting = [body] if qconfig.form.stores_values else []
    while waiting:
        top = waiting.pop()
        if isinstance(top, Tuple):
            waiting += top.fields
        elif is_op_call(top, SQ) and is_op_call(top.args[0], *_SUMS):
            found.add(top)
        elif is_op_call(top, *BORDER_OPS, *MOVES):
            waiting.append(top.args[0])
    return found


@dataclass(slots=True)
class _Binder:
    """Chooses the scale of every point of one function."""

    qconfig: QConfig
    nodes: Sequence[Expr]
    points: Sequence[Call]
    ranges: Sequence[float] | NDArray[np.float32] | None
    bits_of: Mapping[Expr, int]
    tabulated: Collection[Expr]
    stored: bool
    bound: dict[Expr, _Bound] = field(default_factory=dict)
    keeps_grids: bool = False

    def __post_init__(self) -> None:
        # A model that brings quantize points along brings quantized weights as well.
        self.keeps_grids = any(is_given(node) for node in self.nodes)
        self._bind_measured()
        uses = Counter(arg for node in self.nodes for arg in node.operands())
        consumer = {arg: n for n in self.nodes if isinstance(n, Call) for arg in n.args}
        if self.qconfig.bias_mode == "accumulator":
            waiting = self._biases(uses)
        else:
            waiting = set()
        axes = self._weight_axes()
        biased = weights_with_bias(self.nodes, waiting)
        scales: dict[Expr, DomScale | None] = {}
        for node in self.nodes:
            if node in waiting or not isinstance(node, Call):
                continue
            if node in self.bound:
                scales[node] = self.bound[node].scale
            elif quantize_kind(node) == QAnnotateKind.WEIGHT:
                axis = axes.get(node)
                floor = self._floor(node, axis, biased.get(node, ()), scales)
                scales[node] = self._bind_weight(node, axis, consumer.get(node), floor)
            else:
                for bias, other in add_operands(node):
                    if bias in waiting:
                        beside = scales.get(other), other
                        scales[bias] = self._bind_bias(bias, *beside, consumer.get(bias))
                rule = FQDomScale.get(node.op)
                if rule is not None:
                    operands = tuple(scales.get(arg) for arg in node.args)
                    scales[node] = rule(node, operands, self.qconfig)

    def _floor(
        self,
        weight: Call,
        axis: int | None,
        biased: Sequence[tuple[Call, Constant]],
        scales: Mapping[Expr, DomScale | None],
    ) -> NDArray[np.float32] | None:
        """The smallest range that leaves room for the biases of all products of a weight."""
        floor: NDArray[np.float32] | None = None
        for product, bias_data in biased:
            data = scales.get(product.args[0]) or self._scale_behind(product.args[0])
            nbits = self._nbit(weight), self._nbit(product)
            needed = range_for_bias(product, bias_data, data, axis is not None, nbits, self.qconfig)
            floor = needed if floor is None else np.maximum(floor, needed)
        return floor

    def _scale_behind(self, data: Expr) -> DomScale | None:
        """Return the scale of a value that a later product of a shared weight reads: that of the
        point behind moves."""
        while isinstance(data, Call) and data not in self.bound:
            if not keeps_scale(data.op):
                return None
            data = data.args[0]
        if data in self.bound:
            return self.bound[data].scale
        return None

    def _bind_measured(self) -> None:
        measured = [p for p in self.points if quantize_kind(p) in _MEASURED]
        sided = Sidedness(self.nodes, self.qconfig)
        ends = results_of(self.nodes[-1], self.qconfig)
        for point, (value, low, high) in zip(measured, self._given(len(measured))):
            for number in (value, -low, high):
                if not np.isfinite(number) or number < 0:
                    raise CalibrationError(
                        f"the range of a quantize point is {number}",
                        where=describe(point.args[0]),
                        fix="calibrate with finite data",
                    )
            exact = own_range(point, self.qconfig) is not None
            if point in ends and not exact:
                value, low, high = (_BEYOND * end for end in (value, low, high))
            if max(value, -low, high) < SMALLEST_RANGE:
                value = 1.0
                low = -1.0 if low < 0 else 0.0
                high = 1.0
            range_s = as_scale(value if value != 0 else 1.0)
            nbit = self._nbit(point)
            uneven = sided.grid(point, float(range_s), low, high, nbit)
            if uneven is not None:
                reach = as_scale(max(-low, high))
                self.bound[point] = _Bound(reach, DomScale(uneven.step), steps=uneven.ends)
                continue
            if is_mask_point(point):  # whatever calibration saw
                range_s = as_scale(LIMIT)
            elif is_score_point(point):  # its range is no limit, or masks would be scores
                step = chosen_scale(min(float(range_s) / 128, SCORE_STEP), self.qconfig)
                end = int(min(LIMIT / 2 / float(step), 2 ** (WIDE_BITS - 1) - 1))
                self.bound[point] = _Bound(as_scale(end * step), DomScale(step), steps=(-end, end))
                continue
            room = 1.0 if exact else self._headroom(point, nbit)
            largest = min(float(range_s) * room, float(np.finfo(np.float32).max))
            reach, scale = _scale_of(as_scale(largest), nbit, self.qconfig)
            steps = None
            if point in self.tabulated and nbit > bits(self.qconfig.dtype_input):
                # exp of values up to 0 has no entries for 14, which would be most of its scale.
                least, most = (end * room / float(scale.values) for end in (low, high))
                limit = 2 ** (nbit - 1) - 1
                steps = max(math.floor(least), -limit), min(math.ceil(most), limit)
            self.bound[point] = _Bound(reach, scale, steps=steps)

    def _headroom(self, point: Call, nbit: int) -> float:
        """Return the factor by which outliers beyond calibration may exceed the range."""
        attrs = point_attrs(point)
        assert attrs is not None
        if attrs.bits is not None:
            return wide_headroom(attrs.bits)
        if attrs.kind != QAnnotateKind.INPUT:
            return 1.0
        return wide_headroom(nbit, bits(self.qconfig.dtype_input), point in self.tabulated)

    def _given(self, count: int) -> list[tuple[float, float, float]]:
        """Range S, lower and upper end of every measured point."""
        if self.ranges is None:
            scale = self.qconfig.global_scale
            return [(scale, -scale, scale)] * count
        values = [float(value) for value in self.ranges]
        if len(values) == count:
            values = [*values, *(-value for value in values), *values]
        if len(values) != 3 * count:
            raise CalibrationError(
                f"{len(self.ranges)} ranges were given for {count} quantize points",
                fix="use statistics of this very module and these calibration fields",
            )
        return list(zip(values[:count], values[count : 2 * count], values[2 * count :]))

    def _nbit(self, point: Expr) -> int:
        """Bits of a quantize point, or of the data that a layer reads."""
        return self.bits_of.get(point) or own_bits(point, self.qconfig)

    def _weight_axes(self) -> dict[Expr, int]:
        """Channel axis of each weight point all of whose consumers agree on it."""
        if self.qconfig.weight_granularity != "channel":
            return {}
        axes: dict[Expr, set[int | None]] = {}
        picked: dict[Expr, list[Call]] = {}
        for node in self.nodes:
            if not isinstance(node, Call):
                continue
            rule = FQProductShape.get(node.op)
            axis = rule(node).weight_axis if rule is not None else None
            for place, arg in enumerate(node.args):
                constant = quantize_kind(arg) == QAnnotateKind.WEIGHT
                if place == 0 and constant and axis is None and not self.qconfig.form.stores_values:
                    picked.setdefault(arg, []).append(node)
                else:
                    axes.setdefault(arg, set()).add(axis if place == 1 else None)
        agreed = {point: axis for point, (axis, *others) in axes.items() if not others}
        return {
            point: axis
            for point, axis in agreed.items()
            if axis is not None
            and all(
                picks_along(node, len(point.tensor_type.shape) - 1 - axis)
                for node in picked.get(point, ())
            )
        }

    def _biases(self, uses: Counter[Expr]) -> set[Expr]:
        """Weight points on constants that one add alone reads beside something computed."""
        return {
            bias
            for node in self.nodes
            for bias, other in add_operands(node)
            if quantize_kind(bias) == QAnnotateKind.WEIGHT
            and uses[bias] == 1
            and quantize_kind(other) != QAnnotateKind.WEIGHT
        }

    def _bind_weight(
        self,
        point: Call,
        axis: int | None,
        consumer: Call | None,
        at_least: NDArray[np.float32] | None = None,
    ) -> DomScale:
        data = _constant(point, consumer)
        nbit = self._nbit(point)
        if consumer is not None:
            name = f"the weight of {describe(consumer)}"
        else:
            name = "a weight"
        mode = self.qconfig.weight_scale
        # Relay's own rules, without integer_tables, know no grid that a weight brings along.
        tables = self.qconfig.integer_tables
        own = own_range(point, self.qconfig)
        if tables and own is None:
            range_s = range_on_few_levels(data.data, nbit, axis)
        else:
            range_s = None
        if own is not None:
            range_s = as_scale(max(-own[0], own[1]))
            axis = None
        if range_s is not None and at_least is not None and np.any(range_s < at_least):
            range_s = None
        steps = None
        if range_s is None and own is None and (self.keeps_grids or self.stored):
            range_s = range_on_grid(data.data, nbit, axis)
            grid = None
            if range_s is None:
                grid = given_grid(data.data, axis, consumer, self.qconfig, self._nbit)
            if grid is not None and (grid.exact or self.keeps_grids):
                range_s = grid.range_s
                nbit = grid.nbit
                steps = (grid.low, grid.high)
        if range_s is None:
            range_s = weight_range(data.data, mode, nbit, axis, name, at_least)
        trailing = None if axis is None else data.data.ndim - axis - 1
        range_s, scale = _scale_of(range_s, nbit, self.qconfig, trailing)
        self.bound[point] = _Bound(range_s, scale, steps=steps)
        return scale

    def _finer_bits(self, product: Expr) -> int:
        """Count the bits by which the sum with its bias may be finer than its product."""
        if isinstance(product, Call) and len(product.args) > 1:
            weight = product.args[1]
        else:
            weight = None
        if not isinstance(weight, Call) or weight not in self.bound:
            return 0
        scale = self.bound[weight].scale
        data = weight.args[0]
        if not isinstance(data, Constant):
            return 0
        if scale.trailing is None:
            axis = None
        else:
            axis = data.data.ndim - scale.trailing - 1
        assert isinstance(product, Call)
        room = room_of(data.data, axis, scale.values, product, self.qconfig, self._nbit)
        return min(max(int(room), 1).bit_length() - 1, _FINER)

    def _bind_bias(
        self, point: Expr, scale: DomScale | None, product: Expr, consumer: Call | None
    ) -> DomScale:
        assert isinstance(point, Call)
        if scale is not None and not scale.wide and self.qconfig.form.rounds_twice:
            scale = beside_constant(scale)
        if scale is None or not scale.wide:
            return self._bind_weight(point, None, consumer)
        data = _constant(point, consumer)
        if self.keeps_grids and not _whole(data.data, scale):
            finer = self._finer_bits(product)
            scale = DomScale(np.ldexp(scale.values, -finer), scale.trailing, scale.wide)
        levels = 2.0 ** (bits(self.qconfig.dtype_activation) - 1)
        if scale.trailing is not None:
            shape = (scale.values.size, *(1,) * scale.trailing)
            spread = np.broadcast_shapes(data.data.shape, shape)
            data = Constant(np.broadcast_to(data.data, spread))
        range_s = as_scale(scale.values.astype(np.float64) * levels)
        self.bound[point] = _Bound(range_s, scale, data)
        return scale

    def replacements(self) -> dict[Expr, Expr]:
        """Variables, and points on constants whose attributes change, with what replaces them."""
        found: dict[Expr, Expr] = {}
        for point in self.points:
            bound = self.bound[point]
            nbit = self._nbit(point)
            if bound.data is not None:
                nbit = bits(self.qconfig.dtype_activation)
            limit = 2.0 ** (nbit - 1) - 1
            twos = self.qconfig.form.whole_range
            whole = twos and quantize_kind(point) == QAnnotateKind.INPUT
            low, high = (-limit - whole, limit) if bound.steps is None else bound.steps
            constants = (
                Constant(bound.scale.values),
                Constant(np.array(low, np.float32)),
                Constant(np.array(high, np.float32)),
            )
            if bound.data is not None or bound.scale.is_vector:
                found[point] = _vector_point(point, bound, constants)
            for variable, value in zip(point.args[1:], constants):
                if isinstance(variable, Var):
                    found[variable] = value
        return found


def _scale_of(
    range_s: NDArray[np.float32], nbit: int, qconfig: QConfig, trailing: int | None = None
) -> tuple[NDArray[np.float32], DomScale]:
    """The range that a symmetric grid really has, and its scale."""
    levels = 2.0 ** (nbit - 1)
    plain = as_scale(range_s.astype(np.float64) / levels)
    scale = chosen_scale(plain, qconfig)
    if (scale == plain).all():
        reach = range_s
    else:
        reach = as_scale(scale.astype(np.float64) * levels)
    return reach, DomScale(scale, trailing)


def _whole(bias: NDArray[np.float32], scale: DomScale) -> bool:
    """True if a bias is a multiple of a scale, but for the rounding of float32."""
    values = scale.values
    if scale.trailing is not None:
        values = values.reshape(-1, *(1,) * scale.trailing)
    units = bias.astype(np.float64) / values
    return bool(
        (np.abs(units - np.rint(units)) <= np.maximum(np.abs(units) * 2.0**-21, 2**-6)).all()
    )


def _vector_point(point: Call, bound: _Bound, constants: tuple[Constant, ...]) -> Call:
    """A point over a constant with the axis of its scales in the attributes."""
    data = point.args[0] if bound.data is None else bound.data
    assert isinstance(data, Constant)
    assert point.attrs is not None
    trailing = bound.scale.trailing
    if trailing is None:
        axis = None
    else:
        axis = data.data.ndim - trailing - 1
    attrs = point.attrs.with_values(axis=axis)
    made = Call(point.op, (data, *constants), attrs, span=point.span)
    made.set_checked_type(data.checked_type)
    return made


def _constant(point: Call, consumer: Call | None) -> Constant:
    data = point.args[0]
    if isinstance(data, Constant):
        return data
    if consumer is not None:
        where = describe(consumer)
    else:
        where = describe(point)
    raise WeightNotConstantError(
        f"the weight of this {where} is not a constant: {describe(data)}",
        where=where,
        fix="make the weight an initializer of the ONNX file, as constant folding of exporters "
        "does; in Python, bind it with `params`; or leave the layer in float",
        span=None if consumer is None else consumer.span,
    )
