"""layer_sqnr: the inputs of the layers of one configuration, compared with the float model.

It needs two runs per sample for any number of layers, which is fast enough for every trial.
``examine`` measures the loss at the outputs by each layer alone, which needs a network per layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compiler.insight.layers import Layer, find_layers
from compiler.insight.measuring import PointSums
from compiler.insight.network import Network, Scales, compared, through
from compiler.insight.records import OutputInsight
from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import build_candidate
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.collect_stats import Batch, float_executor


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
    network = Network.of(mod, qconfig, activation_scales, channels, float_executor)
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
    weights, alone, upstream = [], [], []
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
