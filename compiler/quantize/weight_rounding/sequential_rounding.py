"""Sequential rounding: each layer compensates the errors of the layers before it.

    minimise  |W X - Q Y|^2  over whole numbers Q of the grid

X is what the layer reads in the float network, Y what it reads in the quantized network, whose
layers in front are rounded already. With H = Y Y^T and C = (X - Y) Y^T this is, up to a constant,

    |(W* - Q) Y|^2,   W* = W + W C (H + l I)^-1

so a weight may leave its level by more than one, and ``reconstructed`` finds Q. With
corrected biases H and C are of deviations from the mean, and the bias takes the mean error.
Layers in loops and behind them have no layer before all others; they are rounded to the nearest.
Scales stay. The damping l, 0.2 of the mean square of a tap, keeps W* near W where the sample says
little. Rows of X and Y are bounded; they are taken in steps of 2^-11 of the largest magnitude of a
channel, so that sums are exact in any order.

Two's complement of b bits goes from -2^(b - 1) to 2^(b - 1) - 1. Below 8 bits, a row with a scale
of its own uses all of these numbers, or all of them negated, whichever is nearer: packed, its scale
has a sign. In the module scales are positive, and the integers have the sign.

A few images say little about a thousand taps. So deviations from the mean are measured on two
halves of the runs, and their products of different taps are multiplied by the share that both
halves A and B have in common, <A, B> / |(A + B) / 2|^2. Where that is nothing, weights are rounded
to the nearest.
Source: Frantar et al., "GPTQ", 2022, with the asymmetric calibration of Li et al., "GPTAQ:
efficient finetuning-free quantization for asymmetric calibration", 2025; Schäfer and Strimmer, "A
shrinkage approach to large-scale covariance matrix estimation", 2005 (the diagonal as target).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import scipy  # loads its parts when they are first used
from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.ir.expr import Call, Constant, Expr, Function
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import quantize_kind
from compiler.ops.rules.input_columns import InputColumns
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.channel_ranges import FloatSide, RoundedWeight, narrowed
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind
from compiler.quantize.kernels.choice import choose_kernels
from compiler.quantize.kernels.numpy_kernels import on_grid, read_columns
from compiler.quantize.rewriting import rewritten
from compiler.quantize.scales.bind_scales import quantize_points
from compiler.quantize.scales.range_fitting import RangeFitting
from compiler.quantize.weight_rounding.bias_correction import biases_of, corrected_bias
from compiler.quantize.weight_rounding.prefix_runs import PrefixRuns
from compiler.quantize.weight_rounding.reconstruction import Products, damped, reconstructed
from compiler.quantize.weight_rounding.weight_rows import (
    PointRows,
    blocked,
    channel_steps,
    cut_rows,
    joined_rows,
    units_of,
)
from compiler.quantize.weighted_calls import weighted_calls

Floats = NDArray[np.float64]
Words = NDArray[np.int16]

_DAMPING: Final = 0.2
_ROWS: Final = 1 << 13
_ROWS_OF_A_TAP: Final = 64
_WORDS: Final = 1 << 23
_FEW_ROWS: Final = 64
"""Positions that one layer is fitted to: so many for each tap, at most ``_ROWS``, and as many as
all taps of all groups read so many words, but a few. EfficientNet-Lite0 with eight times as many
words: 0.1 dB more, 2 CPU seconds more."""
_PRODUCTS: Final = 5 * 10**10
"""Networks of more have half of ``_ROWS`` and ``_WORDS``, and are solved in float32, not float64:
EfficientNet-Lite0 is as good, and faster by 1.4 s."""
_FEW_RUNS: Final = 16
_INPUTS: Final = 1 << 23
"""Values of the inputs in the runs for weights of 8 bits; fewer bits use the whole sample."""
_IMAGES: Final = 256
"""A sample of the inputs has at most so many."""
_MULTIPLICATIONS: Final = 1 << 37
"""All runs of a network have at most so many, where they are more than ``_FEW_RUNS``."""
_A_SECOND: Final = 25e9
"""Multiplications in a CPU second."""
_FEW_LEVELS: Final = 127
"""Largest level of 8 bits; that of fewer bits is below it."""


def round_sequentially(
    simulated: IRModule, run: QuantizeContext, correct_biases: bool, fitting: RangeFitting | None
) -> IRModule:
    """The simulated module with rounded weights, and biases that correct the rest of the error.

    Args:
        simulated: result of ``bind_scales``.
        run: knows the data of the layers, a sample of the inputs, and what is rounded already; what
            is fitted is added.
        correct_biases: biases take the mean errors.
        fitting: chooses the ranges of activations on the way, unless they are known with the
            weights; None keeps them.
    Raises:
        CalibrationError: there is no sample.
    """
    sample = run.input_sample
    found = run.rounded
    if sample is None:
        raise CalibrationError(
            'weight_rounding="sequential" needs a sample of the calibration inputs',
            fix="measure it with channel_stats(mod, dataset, sample=True)",
        )
    main: Function = simulated["main"]
    few = any(_has_few_levels(call.args[1]) for call, _ in weighted_calls(main))
    runs = PrefixRuns(main, sample.first(_most_runs(main, few)))
    biases = biases_of(main) if correct_biases else {}
    fitted: frozenset[Expr] = frozenset()
    if fitting is not None and found.ranges is None:
        found.weights.clear()  # they depend on the ranges
        fitted = fitting.points
        fitting.begin(runs)
    known = found.weights
    layers = {
        call: (place, rule, one)
        for place, ((call, rule), one) in enumerate(
            zip(weighted_calls(main), run.channel_ranges, strict=True)
        )
    }
    most = _most_rows(main)
    dtype: type[Any] = np.float64 if most == _ROWS else np.float32
    shared: tuple[tuple[Any, ...], _Seen] | None = None  # queries, keys and values read alike
    for call in nodes_of(main):
        if fitting is not None and call in fitted and call in runs:
            runs.advance(call, fitting.samples(call))
            fitting.fit(call, runs)
        if call not in layers or call not in runs:
            continue
        (place, rule, one), point = layers[call], call.args[1]
        if quantize_kind(point) != QAnnotateKind.WEIGHT or point in runs.replaced:
            continue
        assert isinstance(point, Call)
        bias = biases.get(call)
        held = PointRows.of(point, rule)
        if held.is_whole:
            continue  # a grid that came with the model
        if place not in known:
            centred = bias is not None
            same = call.args[0], call.op, call.attrs, call.args[1].tensor_type.shape[1:], centred
            if shared is not None and shared[0] != same:
                shared = None  # one at a time: products of many taps are large
            runs.advance(call, _runs_for(rule, most))
            if shared is None:
                data = call.args[0]
                units = units_of(one)
                side = found.float_side
                shared = same, _Seen.of(runs, data, rule, most, units, side, centred)
            known[place] = _rounded(held, shared[1], centred, dtype)
        levels = known[place].levels
        error = known[place].mean_error
        runs.replaced[point] = held.point_of(levels)
        if bias is not None and error is not None:
            runs.replaced[bias] = corrected_bias(bias, call, error)
    bound = simulated
    if fitting is not None:
        if found.ranges is None:
            found.ranges = fitting.ranges
        else:
            found.ranges = found.ranges
        bound = fitting.bind(found.ranges)
    replaced: dict[Expr, Expr] = {}
    for old, new in zip(quantize_points(simulated), quantize_points(bound), strict=True):
        changed = runs.replaced.get(old)
        if isinstance(changed, Call):
            operands = (new.op, changed.args[0], new.args[1], *changed.args[2:])
            replaced[new] = with_operands(new, operands)
    return rewritten(bound, lambda node, _: replaced.get(node))


MOST_SECONDS: Final = 120
"""CPU seconds that sequential rounding may take where nobody asks for it."""
FITTING_SECONDS: Final = 2
"""Ranges are not fitted where rounding takes longer: EfficientNet-Lite0 gains nothing
on other images, and a module takes 9 CPU seconds more."""


def sequential_seconds(mod: IRModule) -> float:
    """About how many CPU seconds ``round_sequentially`` takes for a prepared module."""
    main: Function = mod["main"]
    work = 2 * min(_most_runs(main), _IMAGES) * _multiplications(main)
    most = _most_rows(main)
    for call, rule in weighted_calls(main):
        groups, taps = blocked(rule)
        outputs = call.args[1].tensor_type.num_elements // rule.channels.size
        work += _products(rule, most) + groups * taps * taps * (4 * outputs + taps)
    return work / _A_SECOND


def _multiplications(main: Function) -> int:
    """Count the multiplications of one run of the network."""
    calls = (node for node in nodes_of(main) if isinstance(node, Call))
    shapes = ((call, FQProductShape.get(call.op)) for call in calls)
    return sum(call.tensor_type.num_elements * rule(call).terms for call, rule in shapes if rule)


def _most_runs(main: Function, whole_sample: bool = False) -> int:
    """Runs that layers are fitted to at most."""
    values = sum(param.tensor_type.num_elements for param in main.params)
    most = max(_MULTIPLICATIONS // max(_multiplications(main), 1), _FEW_RUNS)
    if whole_sample:
        return most
    return min(most, max(_INPUTS // max(values, 1), 1))


def _rounded(held: PointRows, seen: _Seen, centred: bool, dtype: type[Any]) -> RoundedWeight:
    """Levels, of deviations from the mean if centred, and then the mean error they leave."""
    taps = seen.hessian.shape[1]
    shape = (*held.scales.shape, held.rule.channels.shape[1])
    moved = np.array(cut_rows(held.rows, taps), dtype)
    hessian, cross = (each.astype(dtype, copy=False) for each in (seen.hessian, seen.cross))
    (solve,) = scipy.linalg.get_lapack_funcs(("posv",), (hessian,))
    for row, one, wanted in zip(moved, damped(hessian, _DAMPING), moved @ cross):
        row += solve(one.T, wanted.T, overwrite_a=1, overwrite_b=1)[1].T
    signs = np.ones((*moved.shape[:2], 1))
    ends = (-held.limit, held.limit)
    if held.own_scales and held.limit < _FEW_LEVELS:
        ends = (-held.limit - 1, held.limit)
        signs = _signs(joined_rows(moved, shape), np.einsum("gkk->gk", hessian), ends)
        signs = np.repeat(signs, len(moved) // len(signs), axis=0)
    moved *= signs
    found = reconstructed(moved, seen.hessian, ends)
    found *= signs
    levels = joined_rows(found, shape)
    if centred:
        error = (seen.mean_error(held.rows, levels) * held.scales).reshape(-1)
    else:
        error = None
    return RoundedWeight(narrowed(levels), error)


def _has_few_levels(point: Expr) -> bool:
    """Return whether a point stands for a weight of fewer than 8 bits."""
    if not isinstance(point, Call) or quantize_kind(point) != QAnnotateKind.WEIGHT:
        return False
    high = point.args[3]
    return isinstance(high, Constant) and float(high.data) < _FEW_LEVELS


def _signs(rows: Products, squares: Products, ends: tuple[int, int]) -> Floats:
    """The sign of each scale, (groups, outputs, 1), with which the nearest numbers err less.

    Args:
        rows: weights, (groups, outputs, taps).
        squares: mean squares of the taps.
    """
    importance = squares.reshape(len(rows), 1, -1)
    lost = [
        (np.square(one - on_grid(one, ends)) * importance).sum(axis=2, keepdims=True)
        for one in (rows, -rows)
    ]
    return np.where(lost[1] < lost[0], -1.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """Inputs of one layer in both networks.

    Attributes:
        hessian, cross: float32 (groups, taps, taps): the means of Y Y^T and of (X - Y) Y^T, of
            deviations if centred. Units are those of the largest tap of each group: in float32,
            squares could overflow.
        means: float64 (2, groups, taps), of Y and of X - Y.
    """

    hessian: NDArray[np.float32]
    cross: NDArray[np.float32]
    means: Floats

    @staticmethod
    def of(
        runs: PrefixRuns,
        data: Expr,
        rule: InputColumns,
        most: int,
        units: Floats,
        side: FloatSide | None,
        centred: bool,
    ) -> _Seen:
        positions = math.prod(rule.images)
        used = min(runs.count, _runs_for(rule, most))
        stride = -(-positions * used // _rows_for(rule, most))
        some = [slice(number % stride, None, stride) for number in range(used)]
        as_columns = rule.channels.size * positions // stride < data.tensor_type.num_elements

        def steps(values: NDArray[Any], part: slice) -> Words:
            """Return the smaller of all data and the columns at these positions."""
            if not as_columns:
                return channel_steps(values, units, rule.data_axis)
            columns = read_columns(values, rule.channels.size, (rule.stride, rule.reads(part)))
            return channel_steps(columns, units[rule.channels.reshape(-1)], 0)

        def of_float(part: slice) -> Iterator[Words]:
            return map(steps, runs.float_values(data)[part], some[part])

        if side is None:
            kept = None
        else:
            kept = side.get(runs.pieces, lambda: of_float(slice(used)))
        groups, taps = blocked(rule)
        # Each by itself: memory that was freed has room for so many bytes, and products go first.
        products, crossed = (
            [np.zeros((groups, taps, taps), np.int64) for _ in range(2)] for _ in range(2)
        )
        read, more = np.zeros((2, 2, groups, taps), np.int64)
        counts = [0, 0]
        kernels = choose_kernels()
        for half in range(min(used, 2)):
            part = slice(half, used, 2)
            wanted = list(of_float(part)) if kept is None else kept[part]
            found = list(map(steps, runs.values(data)[part], some[part]))
            if as_columns:
                found, wanted = ([np.concatenate(each, axis=1)] for each in (found, wanted))
                count = found[0].shape[1]
                layout = count, [np.arange(count, dtype=np.int32)[None]]
            else:
                layout = rule.stride, [rule.reads(each) for each in some[part]]
            counts[half] = sum(each.shape[1] for each in layout[1])
            into = products[half], crossed[half], (read[half], more[half])
            kernels.products(found, wanted, layout, *into)
        unit = units[rule.channels.reshape(read.shape[1:])]
        common = unit / unit.max(axis=1, keepdims=True)
        means = np.stack([read, more]).sum(axis=1) / max(sum(counts), 1) * unit
        hessian = kernels.shrunk(products, (read, read), counts, common, True, centred)
        del products
        cross = kernels.shrunk(crossed, (more, read), counts, common, False, centred)
        return _Seen(hessian, cross, means)

    def mean_error(self, rows: Floats, levels: Products) -> Floats:
        """Return the excess of the mean output, (groups, outputs), in units of the scale."""
        read, more = self.means.reshape(2, len(rows), -1)
        got = np.einsum("gok,gk->go", levels - rows, read)
        return np.asarray(got - np.einsum("gok,gk->go", rows, more))


def _most_rows(main: Function) -> int:
    """Positions that a layer of a network is fitted to at most."""
    products = sum(_products(rule, _ROWS) for _, rule in weighted_calls(main))
    if products <= _PRODUCTS:
        return _ROWS
    return _ROWS // 2


def _products(rule: InputColumns, most: int) -> int:
    groups, taps = blocked(rule)
    return 2 * groups * taps * taps * _rows_for(rule, most)


def _rows_for(rule: InputColumns, most: int) -> int:
    """Positions that a layer is fitted to."""
    words = max(_WORDS * most // _ROWS // rule.channels.size, _FEW_ROWS)
    return min(most, _ROWS_OF_A_TAP * blocked(rule)[1], words)


def _runs_for(rule: InputColumns, most: int) -> int:
    """Runs that have them. Whole runs are left out first, but not below a few: neighbouring
    positions are alike."""
    return max(_FEW_RUNS, _rows_for(rule, most) // math.prod(rule.images))
