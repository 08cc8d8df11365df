"""The page of one insight: facts, four plots, two tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from compiler.insight import Insight, LayerInsight, OutputInsight, PointInsight
from qsearch.report.page import plot_page, plot_row

MODES = ("max", "percentile", "kl_divergence", "mse", "global_scale")
"""Series of the range plot, in the order of its shapes."""

RANGE_TOP = 1.25


def insight_page(title: str, facts: Mapping[str, str], insight: Insight, mode: str) -> str:
    """HTML of the page.

    Args:
        title: of the page.
        facts: what was examined, in order.
        insight: the figures.
        mode: the calibrate_mode in use.
    """
    measured = [point for point in insight.points if point.thresholds]
    names = {layer.index: layer_name(layer) for layer in insight.layers}
    said = dict(facts)
    said["simulated"] = output_told(insight.simulated)
    if insight.integer is not None:
        said["integer"] = output_told(insight.integer)
    plots: list[dict[str, Any]] = [
        {
            "name": "What each layer costs alone",
            "about": "SQNR of the outputs when this layer is quantized and all others are float. "
            "Short bars are where accuracy goes; an open bar loses nothing.",
            "rows": [
                plot_row(layer_name(x), [x.output_db], decibels(x.output_db))
                for x in insight.layers
            ],
            "unit": "dB",
        },
        {
            "name": "SQNR at the quantize points",
            "about": "Of the tensor itself, and with everything before it quantized as well.",
            "series": ["the tensor alone", "with everything before it"],
            "rows": [
                plot_row(point_name(p, {}), [p.local_db, p.upstream_db], decibels(p.upstream_db))
                for p in measured
            ],
            "unit": "dB",
        },
        {
            "name": "Ranges by method",
            "about": "Each method's range over the largest magnitude in the calibration data; the "
            f"ring marks the one in use. Beyond {RANGE_TOP} stands at the edge.",
            "series": list(MODES),
            "rows": [_range_row(point, mode) for point in measured],
            "unit": "",
            "top": RANGE_TOP,
        },
        {
            "name": "Values cut off",
            "about": "Percent of the values beyond the clip bounds, over the samples examined.",
            "rows": [
                plot_row(point_name(p, names), [100 * p.saturated], f"{100 * p.saturated:.3g}")
                for p in insight.points
                if p.saturated > 0
            ],
            "unit": "%",
        },
    ]
    tables = {
        "Layers": layer_rows(insight.layers),
        "Quantize points": point_rows(insight.points, names),
    }
    return plot_page(title, said, plots, tables)


def layer_rows(layers: Iterable[LayerInsight]) -> list[dict[str, Any]]:
    """The layers as rows of a table."""
    return [
        {
            "number": layer.index,
            "layer": layer_name(layer),
            "operator": layer.op,
            "conv": "" if layer.conv_index is None else layer.conv_index,
            "SQNR dB": decibels(layer.output_db),
            "agreement %": f"{100 * layer.agreement:.2f}",
            "points": " ".join(map(str, layer.points)),
        }
        for layer in layers
    ]


def point_rows(points: Iterable[PointInsight], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """The quantize points as rows of a table; ``names`` of layers by their index."""
    return [
        {
            "number": point.index,
            "point": point_name(point, names),
            "in layers": point.name,
            "kind": point.kind,
            "min": f"{point.minimum:.4g}",
            "max": f"{point.maximum:.4g}",
            "range": f"{point.range_s:.4g}",
            **{mode: _number(point.thresholds.get(mode)) for mode in MODES},
            "levels": f"{point.levels[0]} … {point.levels[1]}",
            "scales": point.channels,
            "cut off %": f"{100 * point.saturated:.3g}",
            "SQNR dB": decibels(point.local_db),
            "with upstream dB": "" if not point.thresholds else decibels(point.upstream_db),
        }
        for point in points
    ]


def layer_name(layer: LayerInsight) -> str:
    """Return the layer's name in QConfig.layers, the ONNX node, or the operator."""
    if layer.layer:
        return layer.layer
    if layer.onnx_nodes:
        return layer.onnx_nodes[0]
    return f"{layer.op} {layer.index}"


def point_name(point: PointInsight, names: Mapping[int, str]) -> str:
    """Name the origin of the tensor: an ONNX node, an operator, an input, or the layer of a
    constant."""
    if point.onnx_nodes:
        return point.onnx_nodes[0]
    if point.op:
        return f"{point.op} ({point.index})"
    if point.kind == "weight":
        if point.layers:
            return f"constant of {names[point.layers[0]]}"
        return "constant"
    return "model input"


def decibels(value: float | None) -> str:
    """None is a comparison without any error."""
    if value is None:
        return "exact"
    return f"{value:.1f}"


def _range_row(point: PointInsight, mode: str) -> dict[str, Any]:
    largest = point.thresholds["max"]
    values = [
        point.thresholds[m] / largest if m in point.thresholds and largest > 0 else None
        for m in MODES
    ]
    chosen = MODES.index(mode) if mode in MODES else None
    if chosen is None or values[chosen] is None:
        note = ""
    else:
        note = f"{values[chosen]:.2f}"
    return {**plot_row(point_name(point, {}), values, note), "chosen": chosen}


def output_told(output: OutputInsight) -> str:
    """Describe the distance between the outputs of the quantized network and those in float."""
    told = f"SQNR {decibels(output.output_db)} dB, agreement {100 * output.agreement:.2f} %"
    if output.worst_told:
        return f"{told}; {output.worst_told}"
    return told


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}"
