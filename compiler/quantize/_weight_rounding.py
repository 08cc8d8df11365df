"""Adaptive rounding: weights get the levels with the least error at their layer's output.

    before                                      after, w' on the grid of the point
    nn.conv2d(q(%x), q(w))                      nn.conv2d(q(%x), q(w'))

w' = scale * integers, which the point leaves as they are, so simulation, realization and every
executor follow without a rule of their own. Scales stay. The integers come from
``_reconstruction.py`` and the products that calibration has measured on the float network. With
``bias_correction``, which corrects the mean error, they come from deviations from the mean.
Operators without FQInputColumns keep the nearest levels. Fits are kept with the products.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Call, Constant, Expr, Function, describe
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import substitute
from compiler.ops.annotation.attach_simulated_quantize import point_attrs, quantize_kind
from compiler.ops.rules.input_columns import InputColumns
from compiler.ops.rules.integer_calls import along_axis
from compiler.qtypes.channel_ranges import (
    ChannelRanges,
    InputGram,
    Levels,
    RoundedWeight,
    narrowed,
)
from compiler.qtypes.qconfig import QAnnotateKind
from compiler.quantize._reconstruction import reconstructed
from compiler.quantize.calibration.input_grams import column_rules
from compiler.quantize.calibration.weighted_calls import weighted_calls

Number = TypeVar("Number", bound=np.generic)


def round_weights(
    simulated: IRModule,
    ranges: Sequence[ChannelRanges],
    centred: bool = False,
    rounded: dict[int, RoundedWeight] | None = None,
) -> IRModule:
    """The simulated module with adaptively rounded weights.

    Args:
        simulated: result of ``bind_scales``.
        ranges: of the data of each weighted operator, in visiting order, products included.
        centred: judge errors by their deviation from their mean.
        rounded: levels that are known already; those that are fitted are added.
    Raises:
        CalibrationError: products were not measured.
    """
    main: Function = simulated["main"]
    replaced: dict[Expr, Expr] = {}
    known = {} if rounded is None else rounded
    calls = [call for call, _ in weighted_calls(main)]
    layers = zip(calls, column_rules(main), ranges, strict=True)
    for place, (call, rule, one) in enumerate(layers):
        point = call.args[1]
        # A weight that two layers read is fitted to the first.
        if rule is None or quantize_kind(point) != QAnnotateKind.WEIGHT or point in replaced:
            continue
        assert isinstance(point, Call)
        held = PointRows.of(point, rule)
        if place not in known:
            if one.gram is None:
                raise CalibrationError(
                    'weight_rounding="adaptive" needs products of what weights read',
                    where=describe(call),
                    fix="measure them with channel_stats(mod, dataset, grams=True)",
                )
            known[place] = RoundedWeight(_levels(held, one.gram, centred))
        replaced[point] = held.point_of(known[place].levels)
    changed = main.with_fields(body=substitute(main.body, replaced))
    return infer_module(simulated.with_function("main", changed))


@dataclass(frozen=True, slots=True, eq=False)
class PointRows:
    """The constant behind a weight point, as the rows that adaptive rounding works on.

    Attributes:
        point: simulated_quantize of a constant, its scale bound.
        rule: of the call that reads the point.
        rows: weights in units of their scale, float64 (groups, outputs of a group, taps).
        scales: float64 (groups, outputs of a group).
        limit: largest magnitude of the grid.
        own_scales: whether each output has a scale.
    """

    point: Call
    rule: InputColumns
    rows: NDArray[np.float64]
    scales: NDArray[np.float64]
    limit: int
    own_scales: bool

    @staticmethod
    def of(point: Call, rule: InputColumns) -> PointRows:
        """The rows of a weight point."""
        held, scale, _, high = point.args
        assert isinstance(held, Constant)
        assert isinstance(scale, Constant)
        assert isinstance(high, Constant)
        attrs, rank = point_attrs(point), held.data.ndim
        assert attrs is not None
        trailing = None if attrs.axis is None else rank - attrs.axis % rank - 1
        along = along_axis(scale.data, trailing, "float64").data
        scales = rule.rows(np.broadcast_to(along, held.data.shape))[:, :, 0]
        rows, limit = rule.rows(held.data / along), int(high.data)
        return PointRows(point, rule, rows, scales, limit, attrs.axis is not None)

    def point_of(self, levels: Levels) -> Call:
        """The point around other weights, whole numbers of the shape of ``rows``."""
        held, scale = self.point.args[:2]
        end = max(self.limit, int(np.abs(levels.astype(np.int64)).max(initial=0)))
        ends = (Constant(np.array(each, np.float32)) for each in (-end, end))
        data = self.rule.weight(levels * self.scales[:, :, None]).astype(np.float32)
        return self.point.with_fields(args=(Constant(data, span=held.span), scale, *ends))


def _levels(held: PointRows, gram: InputGram, centred: bool) -> Levels:
    rows, limit = held.rows, held.limit
    data = rows, gram.unit, np.asarray(gram.shift)
    key = hashlib.sha256(b"".join(one.tobytes() for one in data) + b"%d %d" % (limit, centred))
    found = gram.fits.get(
        key.digest(),
        lambda: narrowed(
            reconstructed(cut_rows(rows, gram), gram.matrix(centred), (-limit, limit))
        ),
    )
    return joined_rows(found, rows.shape)


def cut_rows(rows: NDArray[np.float64], gram: InputGram) -> NDArray[np.float64]:
    """(groups, outputs, taps) as (groups * blocks, outputs, taps of a block)."""
    groups, outputs, taps = rows.shape
    inside = gram.products.shape[1]
    cut = rows.reshape(groups, outputs, taps // inside, inside).transpose(0, 2, 1, 3)
    return np.asarray(cut.reshape(-1, outputs, inside))


def joined_rows(blocks: NDArray[Number], shape: tuple[int, ...]) -> NDArray[Number]:
    """The inverse of ``cut_rows``."""
    groups, outputs, taps = shape
    inside = blocks.shape[2]
    apart = blocks.reshape(groups, taps // inside, outputs, inside)
    return apart.transpose(0, 2, 1, 3).reshape(shape)
