"""examine: one configuration of one model, measured point by point and layer by layer.

Everything is derived from the simulated module: with all points taken out it is the float network,
with the points of one layer left in it shows what that layer alone costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from compiler.insight.layers import Layer, find_layers
from compiler.insight.measuring import PointSums
from compiler.insight.network import Network, compared, through
from compiler.insight.records import Insight, LayerInsight, PointInsight
from compiler.ir.expr import Call, Expr, Op
from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import activation_scales, build_candidate, point_names
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.collect_stats import Batch, float_executor
from compiler.quantize.calibration.stats import CalibrationStats
from compiler.quantize.scales.modes import calibrate_modes
from compiler.runtime.exact_executor import exact_executor
from compiler.span import onnx_nodes


def examine(
    mod: IRModule,
    qconfig: QConfig,
    stats: CalibrationStats,
    batches: Iterable[Batch],
    *,
    channels: ChannelStats | None = None,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Insight:
    """Measure what every quantize point and every layer of a configuration costs.

    Args:
        mod: result of ``prerequisite_optimize``.
        qconfig: the configuration; float parts are always allowed.
        stats: calibration of this module for ``qconfig.calibration_fields()``, both rounds.
        batches: inputs of ``main`` by name, one run each; all are held in memory.
        channels: statistics of single channels, where ``qconfig.needs_channels``.
        progress: called with (layers done, layers).
    Raises:
        CalibrationError: no batch, or statistics that do not belong to the module.
        IntegerOverflowError: the configuration cannot be realised.
    """
    samples = list(batches)
    scales = activation_scales(stats, qconfig)
    network = Network.of(mod, qconfig, scales, channels)
    final = build_candidate(mod, qconfig.uncut, scales, channels)
    reference, sums, _ = through(network, samples)
    layers = find_layers(network)
    found = []
    for index, layer in enumerate(layers):
        progress(index, len(layers))
        kept = {network.points[place] for place in layer.points}
        outputs = compared(network.run_with(kept), samples, reference)
        found.append(
            LayerInsight(
                index=index,
                op=layer.record.op,
                onnx_nodes=layer.onnx_nodes,
                conv_index=layer.record.conv_index,
                layer=layer.record.layer,
                points=tuple(layer.points),
                output_db=outputs.output_db,
                agreement=outputs.agreement,
            )
        )
    progress(len(layers), len(layers))
    integer = None
    if final.integer is not None:
        integer = compared(exact_executor(final.integer).executor, samples, reference)
    return Insight(
        samples=len(samples),
        points=_points(network, sums, layers, _thresholds(stats, qconfig)),
        layers=tuple(found),
        simulated=compared(float_executor(final.simulated), samples, reference),
        integer=integer,
    )


def _points(
    network: Network,
    sums: Sequence[PointSums],
    layers: Sequence[Layer],
    thresholds: Sequence[Mapping[str, float]],
) -> tuple[PointInsight, ...]:
    readers: list[list[int]] = [[] for _ in network.points]
    for index, layer in enumerate(layers):
        for place in layer.points:
            readers[place].append(index)
    measured = sum(total.kind != "weight" for total in sums)
    if len(thresholds) != measured:  # a reader has a point of its own, which is not measured
        thresholds = [{}] * measured
    waiting = iter(thresholds)
    names = point_names(IRModule.from_expr(network.main))
    found = []
    for place, (point, total) in enumerate(zip(network.points, sums, strict=True)):
        op, nodes = _producer(point.args[0])
        scale = np.atleast_1d(total.scale)
        found.append(
            PointInsight(
                index=place,
                kind=total.kind,
                op=op,
                onnx_nodes=nodes,
                layers=tuple(readers[place]),
                minimum=total.minimum,
                maximum=total.maximum,
                range_s=float(np.max(network.report.points[place].range_s)),
                levels=total.levels,
                scale_min=float(scale.min()),
                scale_max=float(scale.max()),
                channels=scale.size,
                thresholds={} if total.kind == "weight" else next(waiting),
                saturated=total.saturated,
                local_db=total.local.db,
                upstream_db=total.upstream.db,
                name=names[point],
            )
        )
    return tuple(found)


def _thresholds(stats: CalibrationStats, qconfig: QConfig) -> list[dict[str, float]]:
    """Per measured point, in binding order: what every calibrate_mode would choose."""
    rows: list[dict[str, float]] = [{} for _ in stats.point_tensor]
    for name in calibrate_modes.names():
        chosen = activation_scales(stats, qconfig.with_overrides(calibrate_mode=name))[: len(rows)]
        for row, value in zip(rows, chosen, strict=True):
            row[name] = float(value)
    return rows


def _producer(node: Expr) -> tuple[str, tuple[str, ...]]:
    """Name and ONNX nodes of the operator call a point reads, through tuple fields."""
    while not isinstance(node, Call):
        operands = node.operands()
        if not operands:
            return "", ()
        node = operands[0]
    if isinstance(node.op, Op):
        return (node.op.name, onnx_nodes(node.span))
    return ("", ())
