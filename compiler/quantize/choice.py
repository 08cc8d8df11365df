"""Choose a configuration from statistics, where no search does.

``QConfig.recommended()`` is fixed. It collapses where channels are uneven, and its weight_scale
"max" loses more per channel than per tensor: the step is max|w| / 128 and the last level 127, so
the largest weight of every channel is cut by 1/128, towards zero, and outputs lose their mean.
``choose`` starts from it and makes the changes that the statistics of the channels suggest.
``PredictedError`` says from histograms and weights how much a configuration may lose.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.wide_point import WIDE_BITS
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.layer_choices import LayerChoice
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize._channel_groups import find_groups
from compiler.quantize._cost import module_cost
from compiler.quantize._given_points import given_points
from compiler.quantize._layers import choices_of, has_weight, named_layers
from compiler.quantize._rescaling import free_rescalings
from compiler.quantize._sequential_rounding import sequential_products
from compiler.quantize.calibration.activation_scales import activation_scales
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.point_bits import TABLES, Readers, point_readers
from compiler.quantize.calibration.stats import NUM_BINS, CalibrationStats, TensorStats
from compiler.quantize.calibration.weight_scale import weight_range
from compiler.quantize.calibration.weighted_calls import weight_of, weighted_calls
from compiler.quantize.candidate import mark

SMOOTH_ALPHA: Final = 0.75
UNEVEN: Final = 2.0
"""Largest channel by median channel of one operator's data from which smoothing pays. Measured: a
CNN at 1.4 loses by it, networks from 2.0 on gain 0.2 dB, one at 40 gains 30 dB."""
UNEVEN_FITTED: Final = 1.25
"""The same where ranges are fitted, which leaves the smoothed channels room. Measured over 128 and
512 samples: five networks at 1.4 to 2.0 gain -0.2 to 0.9 dB, 0.3 on average."""

UNEVEN_SELDOM: Final = 4.0
"""The same for channels that were seen less than ``_SEEN`` times: the largest value of a few says
little of those to come. A perceptron at 2.2 loses 10, 7 and 1 dB by smoothing over 128, 128 and 512
samples."""
_SEEN: Final = 1024
UNEVEN_FEW: Final = 8.0
"""The same over fewer than ``_MANY`` samples: over 2 to 16, ten networks at 1.4 to 5.8 lose up to
25 dB by smoothing, one at 40 to 70 gains 8 to 22. Over one all lose 0 to 23 dB."""
_MANY: Final = 32


@dataclass(frozen=True, slots=True)
class Decision:
    """A field of the configuration, its value, and the figure that is the reason."""

    field: str
    value: Any
    why: str

    def __str__(self) -> str:
        return f"{self.field}={self.value}: {self.why}"


MOST_PRODUCTS: Final = 5 * 10**10
"""Of weights that are rounded sequentially; a few CPU seconds."""
_ENOUGH: Final = 2
"""Samples from which sequential rounding with fitted ranges is chosen. Measured on 11 small
networks: over 2 samples it gains 1.6 to 8.8 dB, over 8 -0.1 to 5.3, over 16 0 to 5.9, over 128 0.3
to 8; over 1 it gains -2.4 to 1.7."""


def choose(
    module: IRModule, statistics: ChannelStats | None, rounding: bool = True
) -> tuple[QConfig, tuple[Decision, ...]]:
    """A configuration for a module, and why.

    Args:
        module: result of ``prerequisite_optimize``.
        statistics: channel statistics of it, as ``Calibration.channels`` gives them; None for a
            module without weights.
        rounding: choose ``weight_rounding`` too; a search compares its values itself.
    Returns:
        ``QConfig.recommended()`` with the decisions. A model that brings its quantize points along
        keeps the recommended configuration.
    Source: Xiao et al., "SmoothQuant", 2023 (smoothing); Nagel et al., "Data-free quantization
    through weight equalization and bias correction", 2019 (the mean error of weights).
    """
    given = given_points(module).count
    if given:
        return QConfig.recommended(), (
            Decision("calibrate_mode", "percentile", f"the model brings {given} ranges along"),
        )
    decisions = [
        Decision("calibrate_mode", "mse", "the range with the least squared error of each tensor"),
        Decision(
            "activation_scheme",
            "asymmetric",
            "a zero point where the range of a tensor is not even, unsigned where it begins at 0",
        ),
    ]
    calls = weighted_calls(module["main"])
    if calls and statistics is not None:
        samples = statistics.runs * _batch_size(module)
        large = sequential_products(module) > MOST_PRODUCTS
        rounded = _rounding(samples, large) if rounding else []
        fitted = any(decision.field == "fit_ranges" for decision in rounded)
        weights = [weight_of(call) for call, _ in calls]
        channels = sum(w.data.shape[0] for w in weights if w is not None and w.data.ndim)
        decisions += [
            Decision(
                "weight_scale",
                "mse",
                f"'max' would cut the largest weight of each of {channels} channels by 1/128",
            ),
            Decision(
                "bias_correction",
                True,
                f"rounded weights move the means of what {len(calls)} operators compute",
            ),
            _smoothing(module, statistics, samples, fitted),
        ]
        free = free_rescalings(module, large)
        decisions += [Decision(field, True, why) for field, why in free.items()]
        wide = wide_inputs(module)
        if wide.layers:
            decisions.append(Decision("layers", wide.layers, "; ".join(wide.why)))
        if wide.products_a_table >= _A_CHEAP_TABLE:
            work = f"layers multiply {wide.products_a_table:.0f} times for each value of them"
            why = f"tables of functions read {TABLE_BITS} bits nearly as fast as 8: {work}"
            decisions.append(Decision("table_bits", TABLE_BITS, why))
        decisions += rounded
    chosen = {d.field: d.value for d in decisions}
    return QConfig.recommended(**chosen), tuple(decisions)


def _uneven_from(samples: int, seen: float, fitted: bool) -> float:
    """Largest channel by median channel from which smoothing pays.

    Args:
        samples: of the calibration set.
        seen: values of one channel.
        fitted: whether ranges are.
    """
    if samples < _ENOUGH:
        return math.inf
    if samples < _MANY:
        return UNEVEN_FEW
    if seen < _SEEN:
        return UNEVEN_SELDOM
    return UNEVEN_FITTED if fitted else UNEVEN


def _smoothing(module: IRModule, statistics: ChannelStats, samples: int, fitted: bool) -> Decision:
    """By the channels that take factors; those in front of a clip do so with ``smooth_clips``."""
    groups = find_groups(module["main"], through_concat=True)
    spreads: dict[str, tuple[float, float]] = {}
    for (call, _), label, channels in zip(
        weighted_calls(module["main"]), statistics.labels, statistics.ranges(), strict=True
    ):
        group = groups.group_of.get(call.args[0])
        if group is not None and not groups.limits[group]:
            seen = statistics.runs * _size(call.args[0]) / max(channels.largest.size, 1)
            spreads[label] = _spread(channels.largest), _uneven_from(samples, seen, fitted)
    if not spreads:
        return Decision("smooth_alpha", None, "no operator reads channels that take factors")
    label = max(spreads, key=lambda one: (spreads[one][0] / spreads[one][1], spreads[one][0]))
    spread, enough = spreads[label]
    told = f"the largest channel that operator {label} reads is {spread:.1f} times"
    if spread >= enough:
        why = f"{told} the median: the weights take a share of it"
        return Decision("smooth_alpha", SMOOTH_ALPHA, why)
    even = f"less than {enough:g}: channels are even"
    why = "but one sample says little of those to come" if math.isinf(enough) else even
    return Decision("smooth_alpha", None, f"{told} the median, {why}")


def _batch_size(module: IRModule) -> int:
    shape = module["main"].params[0].tensor_type.concrete_shape
    return shape[0] if shape else 1


def _rounding(samples: int, large: bool) -> list[Decision]:
    """Sequentially where there are enough samples to fit to, and where it does not take long."""
    if samples < _ENOUGH:
        why = f"{samples} calibration sample is too few to fit weights to; {_ENOUGH} are enough"
        return [Decision("weight_rounding", "nearest", why)]
    if large:
        why = "fitting weights of this size takes long; weight_rounding=sequential does it"
        return [Decision("weight_rounding", "nearest", why)]
    why = f"layer by layer, each fitted to make up for earlier ones on {samples} samples"
    fitted = "each range is fitted to what reads it, given the rounded layers before it"
    return [
        Decision("weight_rounding", "sequential", why),
        Decision("fit_ranges", True, fitted),
    ]


_SMALL: Final = 64
"""The last layers read at most this part of all quantized values."""
_CHEAP: Final = 256
"""They multiply at most this part of all multiplications. Measured: 13 bits in front of the
classifier of EfficientNet-Lite0, 0.3 % of them, gain 0.25 dB; the engine takes no longer."""
_FEWEST_BITS: Final = 12
"""From which a range with room for outliers still has finer steps than 8 bits."""
_FEW_TERMS: Final = 64
"""Products of a sum that does not average rounding errors out."""
_FIRST: Final = 64
"""The first grouped layers multiply at most this part of all multiplications. Measured: 16 bits for
the first depthwise layer of two MobileNets gain 1.1 and 1.5 dB, of EfficientNet-Lite0 0.65 dB, and
the engine takes 0.3 to 3 % longer. Those of the next layers gain 0.2 dB and cost 8 %, those of a
network with squeeze and excite, whose first one is 6 % of the multiplications, 0.1 dB."""

TABLE_BITS: Final = 12
"""Of what tables of functions read, where they are cheap. Measured over 128 samples: LeakyReLU
gains 6.6 dB, hard-swish 0.8, GELU 0.3; the engine takes -4 to 5 % longer (four small networks)."""
_A_CHEAP_TABLE: Final = 64
"""Multiplications for each value that a table reads, from which the engine takes 1 to 6 % longer
for 12 bits (four networks, AVX512-VBMI; 2 to 12 % on AVX2)."""
_A_TABLE: Final = 24
"""The same for searches, which see what it gains: with 30 it took 19 % longer (25 % on AVX2). Fewer
were not measured."""

_TINY: Final = 1 << 19
"""Multiplications of one sample, up to which a run takes longer for its steps than for these. In a
network of 0.35 million, 16 bits in all layers gain 5 dB. The engine takes 10 % longer for a batch
of 1, and up to 60 % for a batch of 16 (VNNI; 4 % on AVX2)."""

_Layers = dict[str, dict[str, int]]


@dataclass(frozen=True, slots=True)
class WideInputs:
    """Layers that read more bits than the others, and why.

    Attributes:
        layers: for ``QConfig.layers``.
        why: one sentence for each kind of layers.
        products_a_table: multiplications for each value that only tables of functions read; 0 where
            ``table_bits`` has no effect.
        tiny: further layers that may, where the network is so small that this takes little time;
            for a search, which sees what it gains.
    """

    layers: _Layers = field(default_factory=dict)
    why: tuple[str, ...] = ()
    products_a_table: float = 0.0
    tiny: _Layers = field(default_factory=dict)

    @property
    def cheap_tables(self) -> bool:
        """Whether a search tries more than 8 bits for what tables read."""
        return self.products_a_table >= _A_TABLE


def wide_inputs(module: IRModule) -> WideInputs:
    """Up to 16 bits for what a few layers read, where that gains and costs little; O(edges).

    Args:
        module: result of ``prerequisite_optimize``.
    Raises:
        QuantizeError: layers of the module multiply integers already.
    """
    marked = _Marked.of(module)
    last = marked.last_layers()
    first, share = marked.first_layers(set(last))
    why = [f"few values in front of {', '.join(last)} decide: more bits cost nothing there"]
    why = why if last else []
    if first:
        why.append(
            f"sums of {', '.join(first)} are of few products, so rounding errors of their data go "
            f"to all layers behind them: more bits cost {share:.1%} of the multiplications"
        )
    values = sum(_size(p) for p, readers in marked.points.items() if readers == (TABLES,))
    work = sum(marked.work.values())
    tiny = work <= _TINY * _batch_size(module)
    others = marked.further_layers({*last, *first}) if tiny else {}
    return WideInputs(last | first, tuple(why), work / values if values else 0.0, others)


@dataclass(frozen=True, slots=True, eq=False)
class _Marked:
    """A marked module.

    Attributes:
        nodes: operands before users.
        layers: calls by their names.
        points: who reads each quantize point.
        behind: what layers compute, and all that is computed from it.
        work: multiplications of each layer.
    """

    nodes: Sequence[Expr]
    layers: Mapping[Expr, str]
    points: Mapping[Expr, Readers]
    behind: frozenset[Expr]
    work: Mapping[str, int]

    @staticmethod
    def of(module: IRModule) -> _Marked:
        qconfig = QConfig.recommended()
        annotated, _ = mark(module, qconfig)
        main = annotated["main"]
        nodes, layers = nodes_of(main), named_layers(main)
        behind: set[Expr] = set()
        for node in nodes:
            if node in layers or not behind.isdisjoint(node.operands()):
                behind.add(node)
        work = {one.name: one.multiplications for one in module_cost(annotated, qconfig).layers}
        return _Marked(nodes, layers, point_readers(main), frozenset(behind), work)

    def bits_of(self, layer: Expr) -> int:
        """The most bits of its data, up to 16, for which no sum leaves the accumulator; 0 where
        these are too few, or the layer has no weight."""
        if not isinstance(layer, Call) or not has_weight(layer):
            return 0
        nbit = 32 - QConfig.recommended().nbit_weight - (_terms(layer) - 1).bit_length()
        return min(WIDE_BITS, nbit) if nbit >= _FEWEST_BITS else 0

    def last_layers(self) -> _Layers:
        """Layers that only other last layers follow, where they read few values.

        Behind a pool over the image there are a few values that decide. Their rounding goes into
        the results as it is, and calibration sees too few of them to know how large they become.
        16 bits have room for both and cost next to nothing there.
        """
        most = sum(map(_size, self.points)) / _SMALL
        left = sum(self.work.values()) / _CHEAP
        found: _Layers = {}
        inner: set[Expr] = set()
        for node in reversed(self.nodes):
            if node in self.layers and node not in inner and isinstance(node, Call):
                name, nbit = self.layers[node], self.bits_of(node)
                if _size(node.args[0]) <= most and nbit and self.work[name] <= left:
                    left -= self.work[name]
                    found[name] = {"nbit_input": nbit}
                    continue
            if node in self.layers or node in inner:
                inner.update(node.operands())
        for point, names in self.points.items():
            if not found.keys() >= set(names) or point.operands()[1] not in self.behind:
                for name in names:
                    found.pop(name, None)
        return found

    def first_layers(self, others: Collection[str]) -> tuple[_Layers, float]:
        """The first layers of few products a sum behind other layers, and their share of the work.

        A sum of many products averages the rounding errors of its data out, a depthwise layer does
        not; and what the first layers lose goes through the whole network. They are taken in
        their order as long as they are a small part of the multiplications.

        Args:
            others: layers that are not looked at.
        """
        whole = sum(self.work.values())
        left = whole / _FIRST
        alone = self._read_alone()
        found: _Layers = {}
        for node, name in self.layers.items():
            assert isinstance(node, Call)
            grouped = getattr(node.attrs, "groups", 1) > 1 and _terms(node) <= _FEW_TERMS
            if not grouped or name in others:
                continue
            left -= self.work[name]
            if left < 0:
                break
            if name in alone and self.bits_of(node):
                found[name] = {"nbit_input": self.bits_of(node)}
        return found, sum(self.work[name] for name in found) / max(whole, 1)

    def further_layers(self, others: Collection[str]) -> _Layers:
        """All layers that read computed values, but for ``others``."""
        behind = {n for point, names in self.points.items() if point in self.behind for n in names}
        return {
            name: {"nbit_input": self.bits_of(node)}
            for node, name in self.layers.items()
            if name in behind and name not in others and self.bits_of(node)
        }

    def _read_alone(self) -> set[str]:
        """Layers that read a computed value which, but for sums, nothing else reads."""
        users: dict[Expr, list[Expr]] = {}
        for node in reversed(self.nodes):
            handed = is_op_call(node, "annotation.cast_hint", "annotation.stop_fusion")
            read = users.get(node, []) if handed else [node]
            for operand in node.operands():
                users.setdefault(operand, []).extend(read)
        alone: set[str] = set()
        others: set[str] = set()
        for point, names in self.points.items():
            own = set(names) - {""}
            sums = all(u in self.layers or is_op_call(u, "add") for u in users.get(point, []))
            fits = len(own) == 1 and sums and point in self.behind and not own & alone
            (alone if fits else others).update(own)
        return alone - others


def _terms(layer: Call) -> int:
    return FQProductShape.require(layer.op)(layer).terms


def _size(value: Expr) -> int:
    return math.prod(value.tensor_type.concrete_shape)


def _spread(largest: np.ndarray[Any, np.dtype[np.float64]]) -> float:
    """Largest by median channel; channels that are always 0 are left out."""
    alive = largest[largest > 0]
    return float(alive.max() / np.median(alive)) if alive.size else 1.0


_WEIGHTS_LOOKED_AT: Final = 1 << 14
"""Weights of one layer that a prediction rounds: rows in equal steps."""
_ROUNDED: Final = {"nearest": 1.0, "adaptive": 0.5, "sequential": 0.4}
"""Share of a layer's weight error that is left, by weight_rounding; measured on small networks."""


@dataclass(slots=True, eq=False)
class PredictedError:
    """The error of configurations, predicted from statistics; no module is built.

    The errors of all activations and weights, each over its signal, are taken to add up; what
    layers amplify is not known. So the figure tells bad configurations from good ones, and hardly
    the good ones from each other.

    Args:
        module: result of ``prerequisite_optimize``.
        stats: of one graph variant, both rounds; smoothing and equalization stay as there.
    """

    module: IRModule
    stats: CalibrationStats
    _known: dict[tuple[Any, ...], float] = field(default_factory=dict)

    def sqnr_db(self, qconfig: QConfig) -> float:
        """Signal over predicted error, in dB."""
        shape: tuple[Any, ...] = (qconfig.activation_scheme, qconfig.calibrate_mode)
        shape += (qconfig.percentile, qconfig.global_scale, qconfig.nbit_input)
        weights: tuple[Any, ...] = (qconfig.weight_granularity, qconfig.weight_scale)
        weights += (qconfig.nbit_weight, qconfig.layers)
        if shape not in self._known:
            self._known[shape] = self._of_activations(qconfig)
        if weights not in self._known:
            self._known[weights] = self._of_weights(qconfig)
        error = self._known[shape] + self._known[weights] * _ROUNDED[qconfig.weight_rounding]
        return float(-10 * np.log10(max(error, 1e-12)))

    def _of_activations(self, qconfig: QConfig) -> float:
        ranges = activation_scales(self.stats, qconfig).astype(np.float64)
        points = self.stats.point_tensor.size
        if points == 0:
            return 0.0
        ends = ranges.reshape(-1, points)
        if len(ends) == 1:
            ends = np.stack([ends[0], -ends[0], ends[0]])
        total = 0.0
        for place, (tensor, kind) in enumerate(zip(self.stats.point_tensor, self.stats.point_kind)):
            if kind == QAnnotateKind.INPUT:
                nbit = qconfig.get_nbit_by_kind(int(kind))
                low, high = map(float, ends[1:, place])
                total += _relative_error(self.stats.tensor(int(tensor)), low, high, nbit)
        return total

    def _of_weights(self, qconfig: QConfig) -> float:
        total = 0.0
        axis = 0 if qconfig.weight_granularity == "channel" else None
        choices = choices_of(self.module["main"], qconfig.layers)
        for call, _ in weighted_calls(self.module["main"]):
            weight, choice = weight_of(call), choices.get(call, LayerChoice())
            if weight is None or weight.data.ndim < 2 or choice.float:
                continue
            nbit = choice.nbit_weight or qconfig.nbit_weight
            stride = max(weight.data.size // _WEIGHTS_LOOKED_AT, 1)
            values = weight.data[::stride].astype(np.float32)
            largest = weight_range(values, qconfig.weight_scale, nbit, axis)
            step = largest / 2.0 ** (nbit - 1)
            step = step.reshape(-1, *[1] * (values.ndim - 1)) if axis == 0 else step
            limit = 2 ** (nbit - 1) - 1
            held = np.clip(np.rint(values / step), -limit, limit) * step
            total += float(np.square(held - values).sum() / max(np.square(values).sum(), 1e-30))
        return total


def _relative_error(one: TensorStats, low: float, high: float, nbit: int) -> float:
    """Squared error of a grid of 2^nbit levels over [low, high] by the squares of the values."""
    assert one.bins is not None
    filled = one.bins.keys.astype(np.int64)
    centre = (filled - NUM_BINS // 2) * (2.0 * float(one.largest) / NUM_BINS)
    counts: NDArray[Any] = one.bins.counts.astype(np.float64)
    step = max((high - low) / (2**nbit - 1), 1e-30)
    held = np.clip(np.rint(centre / step), np.rint(low / step), np.rint(high / step)) * step
    signal = float(np.square(centre) @ counts)
    return float(np.square(held - centre) @ counts) / signal if signal else 0.0
