"""Ranges with the least error of what reads a tensor, given the quantized network in front of it.

    minimise over ranges r    sum over the readers f of  |f(q_r(y)) - f(x)|^2 / |f(x)|^2

y is the tensor in the quantized network, whose layers in front are rounded already, x in the float
network, q_r rounds to the grid of the range. A reader whose other operands are constants is taken
with them as they are in the float network. Moves and pools between the tensor and a reader belong
to f. For any other reader, such as an add of two computed values or a comparison, f is the tensor
itself.

The error is no smooth function of the range. Where a tensor holds one value at many places, such as
the background of images, all of these places have the same error, and layers add such errors up
instead of averaging them. So some ranges are tried, around the one that was given: the steps of the
grid shrink or grow, its integers stay. What only a concatenation reads has the range of the point
behind it, so it is not rounded until that range is chosen.

Of samples of many values, strips tell which few ranges are tried on a whole one, where all readers
work along the axis that is cut.

A range ends near the largest values of the samples, so these samples do not show what it cuts off
of other data, least of all where smoothing lets every channel end there. Leaving one sample out
shows it: only a channel whose largest value that sample holds loses by it, since the range would
have ended as much nearer as the second largest value is. These losses are added, in what the
readers make of them.

In front of a loop no range becomes smaller: what is cut off lasts for many steps, whose states add
it up, while errors of rounding average out. Two trained denoisers lost 2 to 3 dB by it.
Source: Nagel et al., "A white paper on neural network quantization", 2021, section 3.1 (ranges by
the error of a later tensor); the inputs are those of Li et al., "GPTAQ", 2025; Stone,
"Cross-validatory choice and assessment of statistical predictions", 1974 (leaving one out).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Call, Constant, Expr, Function, Tuple, Var, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import STATE, STEP
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.ty import TensorType, is_float, tensor_fields
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import quantize_kind
from compiler.ops.rules.dom_scale import keeps_scale
from compiler.qtypes.qconfig import QAnnotateKind
from compiler.quantize.bits.predicted_error import squares
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.quantize.calibration.profile_function import used_range, uses_of_points
from compiler.quantize.scales.bind_scales import bound_grid, measured_points
from compiler.quantize.weight_rounding.prefix_runs import PrefixRuns, source_of
from compiler.quantize.weighted_calls import weighted_calls

_FACTORS: Final = np.append(1.0, np.linspace(0.84, 1.16, 25)).astype(np.float32)
_FAR: Final = np.array([1.25, 1.4, 1.6], np.float32)
_FEW_VALUES: Final = 128
"""The largest of so few values says little of those to come: wider ranges are tried too. A Kalman
filter whose states are two values of eight samples has 29 dB on fresh ones instead of 15."""
_IMAGES: Final = 128
_VALUES: Final = 1 << 20
"""Samples that ranges are tried on: so many, and at most so many values of the tensor."""
_MADE: Final = 4
"""Values that a reader makes which count as one of the tensor."""
_STRIPS: Final = 8
_ROWS: Final = 16
_IN_STRIPS: Final = 1 << 18
"""Strips that stand for samples of more values: so many, of at least so many rows, and of so many
values together."""
_RACED: Final = 32
_FINALISTS: Final = 5
"""Samples that all ranges are tried on, and how many ranges are tried on the others too."""
_GAIN_IMAGES: Final = 16
"""Samples that tell what readers make of the error of a value."""
_SIGNS: Final = np.array([-1, 1], np.float32)
_LEVELS: Final = 256
_FINER: Final = 256
"""Parts of a step that are next to nothing."""
_NEAR: Final = 32
"""Operators between a tensor and its readers that are looked through."""

Values = NDArray[Any]
_Pair = tuple[Values, Values]


class RangeFitting:
    """The ranges of one simulated module, which become better point by point.

    Args:
        simulated: result of ``bind_scales``.
        ranges: that were bound, as ``activation_scales`` gives them.
        bind: makes the simulated module of other ranges; kept.
        joined: points that have the range of a point behind a concatenation, by their places.
        kept: points whose range becomes no smaller.
        fixed: points that keep their range.

    Attributes:
        points: whose ranges are fitted: of kind INPUT, of 8 bits at most; the steps of more bits
            are fine in any range.
    """

    def __init__(
        self,
        simulated: IRModule,
        ranges: Sequence[float] | NDArray[np.float32],
        bind: Callable[[NDArray[np.float32]], IRModule],
        joined: Mapping[int, int],
        kept: Collection[Expr],
        fixed: Collection[Expr] = (),
    ) -> None:
        main: Function = simulated["main"]
        measured = measured_points(simulated)
        self._place: dict[Expr, int] = {point: place for place, point in enumerate(measured)}
        self._ranges = np.asarray(ranges, np.float32).reshape(-1, len(measured)).copy()
        self.bind = bind
        self._uses: dict[Expr, list[Expr]] = {}
        for node in nodes_of(main):
            for child in node.operands():
                self._uses.setdefault(child, []).append(node)
        self._read = uses_of_points(nodes_of(main), main.body)
        self._axis = {call.args[0]: rule.data_axis for call, rule in weighted_calls(main)}
        self.points = frozenset(
            point
            for k, point in enumerate(measured)
            if _narrow(point) and k not in joined and point not in fixed
        )
        self._kept = frozenset(kept)
        fields: dict[Expr, list[Call]] = {}
        for place, behind in joined.items():
            fields.setdefault(measured[behind], []).append(measured[place])
        self._fields = {
            point: each
            for point, each in fields.items()
            if point in self.points and all(map(self._is_only_joined, each))
        }

    @property
    def ranges(self) -> NDArray[np.float32]:
        """The ranges as they are now, as ``activation_scales`` gives them."""
        return self._ranges.reshape(-1)

    def begin(self, runs: PrefixRuns) -> None:
        """Let what only concatenations read round next to nothing until its range is chosen."""
        for point in chain.from_iterable(self._fields.values()):
            step, low, high = (arg.data for arg in point.args[1:] if isinstance(arg, Constant))
            parts = np.float32(_FINER)
            room = np.float32(2 * _FINER)
            fine = Constant(step / parts), Constant(low * room), Constant(high * room)
            runs.replaced.update(zip(point.args[1:], fine, strict=True))

    @staticmethod
    def samples(point: Expr) -> int:
        """Runs that the range of a point is fitted to."""
        size = max(point.tensor_type.num_elements, 1)
        return max(min(_IMAGES // max(_images(point), 1), _VALUES // size), 1)

    @np.errstate(invalid="ignore", over="ignore")  # here: to enter it takes as long as a small sum
    def fit(self, point: Expr, runs: PrefixRuns) -> None:
        """Choose the range of one of ``points`` that ``runs`` has advanced to."""
        assert isinstance(point, Call)
        images = max(_images(point), 1)
        reading = self._reading(point, point.tensor_type)
        # All on a few samples or on strips, the best of these on the rest.
        raced = _RACED // images or 1
        value = point.args[0]
        pairs = list(zip(runs.values(value), runs.float_values(value), strict=True))
        strips = self._strips(point, reading, pairs)
        whole = _Heat(reading, pairs[: 1 if strips else self.samples(point)])
        first = strips or whole
        used = used_range(self._read[point])
        unseen = _Unseen.of([np.clip(y, *used) for y, _ in first.pairs], self._axis.get(point, 1))

        own = [runs.replaced.get(arg, arg) for arg in point.args[1:]]
        assert isinstance(own[0], Constant)
        step = own[0].data
        each_unseen = first.gain(step, max(_GAIN_IMAGES // images, 1))
        place = self._place[point]
        known = sum(y.size for y, _ in pairs)
        if known > _FEW_VALUES:
            tries = _FACTORS
        else:
            tries = np.append(_FACTORS, _FAR)
        factors = [f for f in tries if f >= 1 or point not in self._kept]
        tried = [([Constant(step * f), *own[1:]], self._ranges[:, place] * f) for f in factors]
        few = slice(raced)
        rest = slice(0 if strips else raced, None)
        kept = _FINALISTS if strips or len(whole.pairs) > raced else 1
        begun = [np.inf] * len(tried)
        for at in sorted(range(len(tried)), key=lambda k: abs(factors[k] - 1)):  # far ones end soon
            one = tried[at][0]
            last = sorted(begun)[kept - 1]
            begun[at] = first.error(one, few, each_unseen * unseen.cut_off(one), last)
        (constants, rows), least = tried[0], np.inf
        for at in sorted(range(len(tried)), key=begun.__getitem__)[:kept]:
            found = whole.error(tried[at][0], rest, 0.0 if strips else begun[at], least)
            if found < least:
                least, (constants, rows) = found, tried[at]
        for each in (point, *self._fields.get(point, ())):
            self._ranges[:, self._place[each]] = rows
            runs.replaced.update(zip(each.args[1:], constants, strict=True))

    def _strips(self, point: Call, reading: Function, pairs: Sequence[_Pair]) -> _Heat | None:
        """Parts of samples that are too large; None for smaller ones, or where a reader does not
        work along the axis that is cut."""
        whole = tensor_fields(reading.body.checked_type)
        shape = point.tensor_type.concrete_shape
        size = max(math.prod(shape), max(field.num_elements for field in whole) // _MADE)
        axis = next((a for a in range(1, len(shape)) if a != self._axis.get(point, 1)), 0)
        if size <= _VALUES or not axis:
            return None
        strips = _cut(pairs, axis, max(shape[axis] * _IN_STRIPS // size, _ROWS))
        ty = TensorType(strips[0][0].shape, point.tensor_type.dtype)
        with suppress(TypeInferenceError):
            part = self._reading(point, ty)
            ends = zip(tensor_fields(part.body.checked_type), whole, strict=True)
            if all(_is_shorter(ours, theirs, axis) for ours, theirs in ends):
                return _Heat(part, strips)
        return None

    def _reading(self, point: Call, ty: TensorType) -> Function:
        """Build the function that the readers of a point compute from its value, of this type; the
        value if none does.

        Raises:
            TypeInferenceError: a reader does not take a value of this type.
        """
        value = Var("value", ty)
        value.set_checked_type(ty)
        new: dict[Expr, Expr] = {point: value}
        results: list[Expr] = []
        waiting: list[Expr] = [point]
        while waiting:
            node = waiting.pop()
            for user in dict.fromkeys(self._uses.get(node, ())):
                alone = _with_constants(user, node, new[node])
                if alone is None or is_op_call(user, STATE, STEP) or len(new) == _NEAR:
                    results.append(new[node])
                elif _hands_on(user, node):
                    new[user] = new[node] if quantize_kind(user) is not None else alone
                    waiting.append(user)
                else:
                    results.append(alone)
        fields = tuple(dict.fromkeys(results)) or (value,)
        made: Function = infer_module(IRModule.from_expr(Function((value,), Tuple(fields))))["main"]
        return made

    def _is_only_joined(self, point: Call) -> bool:
        """Return whether only concatenations read a point, behind moves and pools or not."""
        waiting: list[Expr] = [point]
        while waiting:
            node = waiting.pop()
            for user in self._uses.get(node, ()):
                if isinstance(user, Tuple):
                    continue
                if quantize_kind(user) == QAnnotateKind.INPUT or not _hands_on(user, node):
                    return False
                waiting.append(user)
        return True


class _Heat:
    """Values that ranges of a point are tried on, and what its readers make of them.

    Attributes:
        pairs: the value in the quantized network, and in the float network.
    """

    def __init__(self, reading: Function, pairs: list[_Pair]) -> None:
        self.pairs = pairs
        held = isinstance(reading.body, Tuple) and reading.body.fields == reading.params
        if held:
            self._run = None
        else:
            self._run = float_executor(IRModule.from_expr(reading))
        self._wanted = [self._read(x) for _, x in pairs]
        powers = (sum(map(squares, each)) for each in zip(*self._wanted, strict=True))
        self._powers = [max(power, 1e-30) for power in powers]

    def error(self, tried: Sequence[Expr], part: slice, total: float, least: float) -> float:
        """``total`` and the sum over a part of the samples, as far as it stays below ``least``."""
        step, low, high = (c.data for c in tried if isinstance(c, Constant))
        for (y, _), target in zip(self.pairs[part], self._wanted[part], strict=True):
            if total >= least:
                break
            total += self._apart(self._read(_on_grid(y, step, low, high)), target)
        return total

    def gain(self, step: Values, count: int) -> float:
        """Return the effect of independent errors on the readers, over so many samples."""
        rng = np.random.default_rng(0)
        errors = 0.0
        some = [y for y, _ in self.pairs[:count]]
        for y in some:
            noisy = self._read(y + step * rng.choice(_SIGNS, y.shape))
            errors += self._apart(noisy, self._read(y))
        gain = errors / (float(step) ** 2 * sum(y.size for y in some))
        # a reader's infinities tell nothing
        if np.isfinite(gain):
            return gain
        return 0.0

    def _read(self, held: Values) -> list[Values]:
        if self._run is None:
            return [held]
        return self._run.run([held])

    def _apart(self, found: Sequence[Values], target: Sequence[Values]) -> float:
        sides = zip(found, target, self._powers, strict=True)
        total = sum(squares(a - b) / power for a, b, power in sides)
        if math.isfinite(total):
            return total
        return math.inf


@dataclass(frozen=True, slots=True, eq=False)
class _Unseen:
    """Distances by which the channels of a sample exceed those of all others.

    Attributes:
        first: largest value of each channel, then largest negated value; those above 0.
        second: the same in all samples but the one that holds the first.
        upper: which of them are ends above.
    """

    first: NDArray[np.float64]
    second: NDArray[np.float64]
    upper: NDArray[np.bool_]

    @staticmethod
    def of(values: Sequence[Values], axis: int) -> _Unseen:
        """From samples along the first axis; one alone tells nothing.

        Args:
            axis: of the channels.
        """
        ends = np.concatenate([_ends_by_sample(held, axis) for held in values])
        if len(ends) < 2:
            ends = np.zeros((2, ends.shape[1]), np.float32)
        second, first = np.sort(ends.astype(np.float64), axis=0)[-2:]
        alive = first > 0
        is_upper = np.arange(len(first)) < len(first) // 2
        return _Unseen(first[alive], np.maximum(second[alive], 0.0), is_upper[alive])

    def cut_off(self, constants: Sequence[Expr]) -> float:
        """Squares of what a grid cuts off when it ends by the other samples, over what it cuts off
        as it is."""
        step, low, high = (float(c.data) for c in constants if isinstance(c, Constant))
        end = np.where(self.upper, high * step, -low * step)
        without = np.maximum(self.first - end * (self.second / self.first), 0.0)
        return float(np.square(without).sum() - np.square(np.maximum(self.first - end, 0.0)).sum())


def _ends_by_sample(values: Values, axis: int) -> Values:
    """[samples, 2 * channels]: the largest value of each channel, then the largest negated one."""
    values = np.atleast_1d(values)
    within = tuple(a for a in range(1, values.ndim) if a != axis)
    ends = values.max(within), -values.min(within)
    return np.concatenate([end.reshape(len(values), -1) for end in ends], axis=1)


def _cut(pairs: Sequence[_Pair], axis: int, rows: int) -> list[_Pair]:
    """Strips along an axis, evenly over all samples, of about so many rows together."""
    length = pairs[0][0].shape[axis]
    height = min(max(rows // _STRIPS, _ROWS), length)
    found = []
    for k, start in enumerate(np.linspace(0, length - height, max(rows // height, 1)).astype(int)):
        at = (slice(None),) * axis + (slice(start, start + height),)
        y, x = pairs[k % len(pairs)]
        found.append((y[at], x[at]))
    return found


def _is_shorter(part: TensorType, whole: TensorType, axis: int) -> bool:
    """Return whether two shapes have that axis and differ in nothing else."""
    ours = list(part.concrete_shape)
    theirs = list(whole.concrete_shape)
    return len(ours) == len(theirs) > axis and ours.pop(axis) < theirs.pop(axis) and ours == theirs


def _on_grid(values: Values, step: Values, low: Values, high: Values) -> Values:
    held = np.asarray(values / step)  # numpy makes a number of an array without axes
    held += np.float32(0.5)
    np.floor(held, out=held)
    np.maximum(held, low, out=held)
    np.minimum(held, high, out=held)
    held *= step
    return held


def _narrow(point: Call) -> bool:
    grid = bound_grid(point)
    narrow = grid is not None and grid[2] - grid[1] < _LEVELS
    return narrow and quantize_kind(point) == QAnnotateKind.INPUT


def _hands_on(node: Expr, operand: Expr) -> bool:
    """Return whether a node hands on the integers of an operand, or the largest of them."""
    if not isinstance(node, Call) or not node.args or node.args[0] is not operand:
        return False
    return quantize_kind(node) == QAnnotateKind.INPUT or keeps_scale(node.op)


def _with_constants(user: Expr, operand: Expr, new: Expr) -> Expr | None:
    """A float call over the new form of its first operand and constants; None for other nodes."""
    if not isinstance(user, Call) or user.args[:1] != (operand,):
        return None
    if not all(is_float(ty.dtype) for ty in tensor_fields(user.checked_type)):
        return None
    rest = [source_of(arg) for arg in user.args[1:]]
    if not all(isinstance(arg, Constant) for arg in rest):
        return None
    return with_operands(user, (user.op, new, *rest))


def _images(point: Expr) -> int:
    shape = point.tensor_type.concrete_shape
    if len(shape) > 1:
        return shape[0]
    return 1
