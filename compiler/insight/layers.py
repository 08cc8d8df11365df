"""The layers of a network: which operator reads which quantize points, and what each loses.

``layer_sqnr`` needs two runs per sample for any number of layers, which is fast enough for every
trial. ``examine`` measures the loss at the outputs by each layer alone, which needs a network per
layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.insight.measuring import PointSums
from compiler.insight.network import Network, Scales, compared, through
from compiler.insight.records import OutputInsight
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.module import IRModule
from compiler.ops.annotation.attach_simulated_quantize import quantize_kind
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.pass_through import annotate_pass_through
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.qtypes.report import MARKER_OPS, CallRecord, call_places
from compiler.quantize import build_candidate
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.collect_stats import Batch, float_executor
from compiler.span import onnx_nodes

RESULT = "result"


@dataclass(slots=True, eq=False)
class Layer:
    """An operator call and the places, in binding order, of the points it reads.

    Attributes:
        record: what annotation says of the call.
        onnx_nodes: ONNX nodes it came from.
        points: their places.
    """

    record: CallRecord
    onnx_nodes: tuple[str, ...] = ()
    points: list[int] = field(default_factory=list)


def find_layers(network: Network) -> list[Layer]:
    """The layers of a simulated function in visiting order; O(nodes).

    Behind them stands one of the points that only a function result reads.
    """
    points = network.points
    calls = network.report.calls
    # Annotation keeps the order of the float graph's calls, which the report is in.
    place_of = call_places(network.main)
    places: dict[Expr, int] = {point: place for place, point in enumerate(points)}
    seen_through: dict[Expr, tuple[int, ...]] = {}
    layer_of: dict[Expr, Layer] = {}
    layers: list[Layer] = []
    for node in post_order(network.main.body):
        if node in places:
            seen_through[node] = (places[node],)
        elif is_op_call(node) and not is_op_call(node, *MARKER_OPS):
            read = _read(node.operands(), seen_through)
            if read and FQAnnotateRewrite.get(node.op) is annotate_pass_through:
                seen_through[node] = read  # the next operator reads the integers that it moves
            elif read:
                layer = _followed(node, read, points, layer_of)
                if layer is None:
                    layer = Layer(calls[place_of[node]], onnx_nodes(node.span))
                    layers.append(layer)
                layer.points += [place for place in read if place not in layer.points]
                layer_of[node] = layer
        else:  # markers, tuples and their fields hand on what they hold
            seen_through[node] = _read(node.operands(), seen_through)
    used = {place for layer in layers for place in layer.points}
    rest = [place for place in range(len(points)) if place not in used]
    if rest:
        layers.append(Layer(CallRecord(RESULT), points=rest))
    return layers


def _read(
    operands: Iterable[Expr], seen_through: Mapping[Expr, tuple[int, ...]]
) -> tuple[int, ...]:
    return tuple(dict.fromkeys(p for node in operands for p in seen_through.get(node, ())))


def _followed(
    call: Call, read: Iterable[int], points: Sequence[Call], layer_of: Mapping[Expr, Layer]
) -> Layer | None:
    """The layer that this call only adds a constant to."""
    if FQProductShape.get(call.op) is not None:
        return None
    if any(quantize_kind(points[place]) != QAnnotateKind.WEIGHT for place in read):
        return None
    owners = [layer_of[arg] for arg in call.args if arg in layer_of]
    if len(owners) == 1:
        return owners[0]
    return None


@dataclass(frozen=True, slots=True)
class LayerSqnr:
    """Signal-to-quantization-noise ratios in dB of what one operator reads; the worst of several.

    Attributes:
        name: what ``QConfig.layers`` calls it, its ONNX node, or the operator and its place.
        op: operator.
        weights_db: of its constants; None where it has none, or nothing is lost.
        alone_db: of its inputs, were only they quantized; None as above.
        upstream_db: of its inputs with all before them quantized too; None as above.
    """

    name: str
    op: str
    weights_db: float | None
    alone_db: float | None
    upstream_db: float | None


def layer_sqnr(
    mod: IRModule,
    qconfig: QConfig,
    activation_scales: Scales,
    batches: Iterable[Batch],
    *,
    channels: ChannelStats | None = None,
) -> tuple[tuple[LayerSqnr, ...], OutputInsight]:
    """The layers in visiting order, and the outputs of the whole.

    Args:
        mod: result of ``prerequisite_optimize``.
        qconfig: the configuration; float parts are always allowed.
        activation_scales: as for ``build_candidate``.
        batches: inputs of ``main`` by name, one run each; all are held in memory.
        channels: statistics of single channels, where ``qconfig.needs_channels``.
    Raises:
        CalibrationError: no batch, or ranges that do not belong to the module.
        IntegerOverflowError: the configuration cannot be realised.
    """
    samples = list(batches)
    network = Network.of(mod, qconfig, activation_scales, channels)
    reference, sums, _ = through(network, samples)
    found = []
    for index, layer in enumerate(find_layers(network)):
        place = f"{layer.record.op} {index}"
        name = layer.record.layer or next(iter(layer.onnx_nodes), place)
        found.append(_figures(name, layer, network, sums))
    uncut = build_candidate(mod, qconfig.uncut, activation_scales, channels)
    simulated = float_executor(uncut.simulated)
    return tuple(found), compared(simulated, samples, reference)


def _figures(name: str, layer: Layer, network: Network, sums: Sequence[PointSums]) -> LayerSqnr:
    weights = []
    alone = []
    upstream = []
    for place in layer.points:
        total = sums[place]
        if network.points[place] in network.floats:
            weights.append(total.local.db)
        else:
            alone.append(total.local.db)
            upstream.append(total.upstream.db)
    return LayerSqnr(name, layer.record.op, _worst(weights), _worst(alone), _worst(upstream))


def _worst(ratios: Sequence[float | None]) -> float | None:
    return min((ratio for ratio in ratios if ratio is not None), default=None)
