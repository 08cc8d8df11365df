"""One QConfig's module, from a prepared module that all configurations share and known ranges.

    mark               prepared float module → rescale → recognize → partition → annotate
    build_candidate    annotated module → bind scales → correct → realize → cut off conversions

``calibration/flow.py`` measures the ranges that ``build_candidate`` takes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

import compiler.passes.fold_constant
import compiler.passes.outline_formulas
import compiler.passes.recover_layer_norm
import compiler.passes.recover_rms_norm
import compiler.passes.select_by_place  # noqa: F401  (passes that are named below)
from compiler.errors import QuantizeError
from compiler.ir.expr import Call, Expr, Function, Op, Tuple, is_op_call
from compiler.ir.garbage import collector_rests
from compiler.ir.loops import END, closed, read_by_loops
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext, Sequential
from compiler.ir.ty import TensorType, bits, is_integer
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import quantize_kind
from compiler.ops.rules.dom_scale import DomScale
from compiler.ops.rules.integer_calls import along_axis, subtract
from compiler.ops.rules.product_shape import FQProductShape
from compiler.passes.merge_requantize import MergeRequantize
from compiler.qtypes.channel_ranges import Rounding
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig
from compiler.qtypes.report import QuantizeReport
from compiler.quantize.bits.cost import ModuleCost, module_cost
from compiler.quantize.bits.own_points import own_points
from compiler.quantize.bits.point_bits import own_range
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.conversions.partition_conversions import (
    integer_dtypes,
    partition_conversions,
)
from compiler.quantize.layers import named_weights, require_known
from compiler.quantize.preparation.integer_inputs import (
    bounded_counts,
    bounded_inputs,
    refuse_overflows,
    whole_counts,
)
from compiler.quantize.preparation.masks import bounded_masks
from compiler.quantize.quantize_annotate import QuantizeAnnotate
from compiler.quantize.quantize_partition import QuantizePartition
from compiler.quantize.quantize_realize import QuantizeRealize
from compiler.quantize.rewriting import rewritten
from compiler.quantize.scales.bias_room import with_own_biases
from compiler.quantize.scales.bind_scales import (
    bind_scales,
    measured_points,
    results_of,
)
from compiler.quantize.scales.given_points import for_given_points
from compiler.quantize.scales.range_fitting import RangeFitting
from compiler.quantize.scales.shared_ranges import shared_ranges
from compiler.quantize.smoothing.rescaling import rescaled
from compiler.quantize.weight_rounding.correct_rounding import corrected
from compiler.quantize.weight_rounding.sequential_rounding import (
    FITTING_SECONDS,
    sequential_seconds,
)

RECOGNIZE = ("SelectByPlace", "RecoverLayerNorm", "RecoverRmsNorm", "OutlineFormulas")
"""Passes that give back their names to operators that have an integer form as a whole."""

_REQUIRED = ("QuantizeAnnotate", "QuantizeRealize")


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Module that one QConfig gives.

    Attributes:
        annotated: the float module with points that await their scales.
        bound: float32 arithmetic with bound simulated_quantize points, those of ``annotated``.
        simulated: the same; without round_for_shift, points truncate where the integers do.
        integer: realised and folded; None with do_simulation.
        partitioned: ``integer``, or with do_simulation ``simulated``, cut by
            partition_conversions; None where that is "disabled".
        context: the run.
        report: what stays float, and every scale.
    """

    annotated: IRModule
    bound: IRModule
    simulated: IRModule
    integer: IRModule | None
    partitioned: IRModule | None
    context: QuantizeContext
    report: QuantizeReport

    @property
    def module(self) -> IRModule:
        """Module that ships: partitioned, else integer, else simulated."""
        return self.partitioned or self.integer or self.simulated

    @property
    def cost(self) -> ModuleCost:
        """Bytes of its weights, packed, and its bit operations."""
        return module_cost(self.simulated, self.context.qconfig)


@collector_rests
def mark(
    mod: IRModule,
    qconfig: QConfig,
    channels: ChannelStats | None = None,
    context: QuantizeContext | None = None,
) -> tuple[IRModule, QuantizeContext]:
    """Partition and annotate a module that ``prerequisite_optimize`` has prepared.

    Args:
        channels: statistics of ``mod`` channel by channel, where ``qconfig.needs_channels``.
        context: the run to work in; a new one without it.

    Returns:
        the annotated module, whose quantize points await their scales, and the run.

    Raises:
        CalibrationError: ``channels`` are missing or of another module.
        QuantizeError: layers of the module multiply integers already.
    """
    refuse_integer_products(mod)
    run = QuantizeContext(qconfig) if context is None else context
    own = for_given_points(mod, qconfig)
    mod, ranges = rescaled(mod, qconfig, channels)
    sample = None if channels is None else channels.sample
    run = replace(run, qconfig=own, channel_ranges=ranges, input_sample=sample)
    if qconfig.integer_tables:
        mod = bounded_masks(Sequential(RECOGNIZE, name="recognize")(mod))
        mod = with_own_biases(bounded_inputs(bounded_counts(whole_counts(mod))))
    layers = named_weights(mod["main"])
    require_known(run.qconfig.layers, layers)
    run.report.begin(mod["main"], layers)
    with PassContext.current().inner(opt_level=3, required_pass=_REQUIRED):
        return Sequential([QuantizePartition(run), QuantizeAnnotate(run)], name="mark")(mod), run


def without_data(qconfig: QConfig) -> QConfig:
    """The configuration without the fields that need calibration data.

    Ranges decide numbers, and hardly which operator has an integer form: ``global_scale`` stands in
    for them.
    """
    return qconfig.with_overrides(
        calibrate_mode="global_scale",
        do_simulation=False,
        smooth_alpha=None,
        weight_rounding="nearest",
    )


def recommended_mark(mod: IRModule) -> tuple[IRModule, QuantizeContext]:
    """``mark`` of the recommended configuration without data; as a ``view``, it is made once."""
    return mark(mod, without_data(QConfig.recommended()).uncut)


def tied_states(simulated: IRModule) -> IRModule:
    """One scale for a state in front of the first step and behind every step.

    before                                    after
    %0 = simulated_quantize(%h, s, …);        %h = scan.state(simulated_quantize(%h0, s, …));
    scan.end((%0,), (%next,), …)              scan.end((%h,), (simulated_quantize(%next, s, …),), …)
    """
    main: Function = simulated["main"]
    if not mentions(main, (END,)):
        return simulated
    held: set[Expr] = set()
    for node in nodes_of(main):
        if is_op_call(node, END):
            held.update(state for state in node.args[0].operands() if quantize_kind(state))
    points_of = {point.operands()[1]: point for point in held}  # a state may be its next one

    def tied(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if node in held:
            assert isinstance(node, Call)
            state = node.args[0]
            assert isinstance(state, Call)
            point = node.with_fields(args=(new[state.args[0]], *node.args[1:]))
            return state.with_fields(args=(point,))
        if not is_op_call(node, END):
            return None
        points = node.args[0].operands()
        following = [
            point.with_fields(args=(new[points_of.get(one, one)], *point.args[1:]))
            if point in held
            else new[one]
            for point, one in zip(points, node.args[1].operands())
            if isinstance(point, Call)
        ]
        return node.with_fields(
            args=(new[node.args[0]], Tuple(tuple(following)), new[node.args[2]])
        )

    return rewritten(simulated, tied)


@collector_rests
def build_candidate(
    mod: IRModule,
    qconfig: QConfig,
    activation_scales: Sequence[float] | NDArray[np.float32] | None,
    channels: ChannelStats | None = None,
    context: QuantizeContext | None = None,
) -> Candidate:
    """The simulated and the integer module of one QConfig.

    Ranges that are fitted on the way (``RangeFitting``) are those of weights of 8 bits, whatever
    bits the weights have: with fewer the SQNR differs by less than 0.1 dB in the mean of four
    networks, and configurations that differ in the bits of weights share them.

    Args:
        mod: result of ``prerequisite_optimize``.
        activation_scales: range S of each INPUT or ACTIVATION point in binding order, in the units
            of its tensor; None stands for ``global_scale``.
        channels: statistics of ``mod`` channel by channel, where ``qconfig.needs_channels``.
        context: the run to work in; a new one without it. ``rounded`` may hold fitted ranges.

    Raises:
        CalibrationError: the ranges do not belong to this module and QConfig.
        ConfigValueError: the configuration names a quantize point that there is not.
        NotFullyIntegralError: "fully_integral" was asked for and float is left, or whole numbers
            of the model may overflow.
        IntegerOverflowError: a sum may leave its dtype.
    """
    return build_marked(mod, *mark(mod, qconfig, channels, context), activation_scales)


def build_marked(
    mod: IRModule,
    annotated: IRModule,
    run: QuantizeContext,
    activation_scales: Sequence[float] | NDArray[np.float32] | None,
) -> Candidate:
    """``build_candidate`` behind ``mark``, which gave the annotated module and the run."""
    qconfig = run.qconfig
    if qconfig.partition_conversions == "fully_integral":
        refuse_overflows(annotated)
    annotated, activation_scales = own_points(annotated, run.qconfig, activation_scales)
    fits = qconfig.sequential and sequential_seconds(mod) <= FITTING_SECONDS
    ranges, joined = shared_ranges(annotated, run.qconfig, activation_scales, fits)
    of_whole = run.qconfig.with_whole_weights()
    if not fits or ranges is None or not len(ranges):
        simulated = corrected(bind_scales(annotated, run, ranges), run)
    elif of_whole == run.qconfig:
        simulated = _fitted(annotated, run, ranges, joined)
    else:
        if run.rounded.ranges is None:
            other = replace(run, qconfig=of_whole, rounded=Rounding(), report=QuantizeReport())
            _fitted(annotated, other, ranges, joined)
            run.rounded.ranges = other.rounded.ranges
        simulated = corrected(bind_scales(annotated, run, run.rounded.ranges), run)
    if qconfig.do_simulation:
        cut = None
        if qconfig.partition_conversions != "disabled":
            folded = Sequential(["FoldConstant"], name="simulate")(simulated)
            cut = partition_conversions(folded, integer_dtypes(run.qconfig), False)
        return Candidate(annotated, simulated, simulated, None, cut, run, run.report)
    bound = simulated
    simulated = tied_states(simulated)
    with PassContext.current().inner(opt_level=3, required_pass=_REQUIRED):
        passes = (QuantizeRealize(run), "FoldConstant", MergeRequantize())
        integer = Sequential(passes, name="realize")(simulated)
    integer = closed(integer)
    cut = None
    if qconfig.partition_conversions != "disabled":
        whole = qconfig.partition_conversions == "fully_integral"
        cut = partition_conversions(integer, integer_dtypes(run.qconfig), whole)
    floored = truncating(simulated, run)
    return Candidate(annotated, bound, floored, integer, cut, run, run.report)


def _fitted(
    annotated: IRModule,
    run: QuantizeContext,
    ranges: Sequence[float] | NDArray[np.float32],
    joined: Mapping[int, int],
) -> IRModule:
    """The simulated module with rounded weights, its ranges fitted on the way."""
    simulated = bind_scales(annotated, run, ranges)
    bind = partial(bind_scales, annotated, run)
    main = simulated["main"]
    kept = results_of(main.body, run.qconfig) | read_by_loops(main)
    fixed = {p for p in measured_points(simulated) if own_range(p, run.qconfig) is not None}
    return corrected(simulated, run, RangeFitting(simulated, ranges, bind, joined, kept, fixed))


def refuse_integer_products(mod: IRModule) -> None:
    """Refuse a model whose layers multiply integers: it has no real values left to calibrate.

    Such are models of onnxruntime's quantize_dynamic (DynamicQuantizeLinear, MatMulInteger,
    ConvInteger) and of its QOperator format (QLinearConv, QLinearMatMul). They are imported and
    evaluated, but their ranges are either computed anew for every input or baked into integers.

    Args:
        mod: a typed float module, in front of annotation.

    Raises:
        QuantizeError: the layer, how many there are, and which model to give instead.
    """
    narrow: set[Expr] = set()  # integers of 8 bits, and what is computed from them on integers
    found: list[Expr] = []
    for node in nodes_of(mod["main"]):
        ty = node.checked_type_or_none
        if not isinstance(ty, TensorType) or not is_integer(ty.dtype):
            continue
        if bits(ty.dtype) <= 8 or not narrow.isdisjoint(node.operands()):
            narrow.add(node)
            if isinstance(node, Call) and FQProductShape.get(node.op) is not None:
                found.append(node)
    if not found:
        return
    first = found[0]
    assert isinstance(first, Call)
    assert isinstance(first.op, Op)
    more = f"; {len(found)} layers do so" if len(found) > 1 else ""
    raise QuantizeError(
        f"the model is quantized already: {first.op.name} multiplies integers "
        f"({first.args[0].checked_type}){more}",
        fix="give the float model it was made from, or its QDQ form (QuantizeLinear and "
        "DequantizeLinear around float layers), whose scales are kept",
        span=first.span,
    )


def truncating(simulated: IRModule, run: QuantizeContext) -> IRModule:
    """The simulated module with a floor wherever a shift truncates (``round_for_shift=False``).

        before                              after, s' the scale of the integers that are shifted
        simulated_quantize(%x, s, …)        simulated_quantize(subtract(%x, (s - s') / 2), s, …)

    The reference's simulation rounds at every point, also where its shifts do not. Which points are
    shifts is known once they are realised. O(nodes).

    Args:
        simulated: the module that was realised.
        run: of that realization.
    """
    if not run.truncated:
        return simulated

    def floored(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        lost = run.truncated.get(node)
        if lost is None:
            return None
        assert isinstance(node, Call)
        assert isinstance(lost, DomScale)
        half = along_axis(lost.values, lost.trailing, "float32")
        return node.with_fields(args=(subtract(new[node.args[0]], half), *node.args[1:]))

    return rewritten(simulated, floored)
