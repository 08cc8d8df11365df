"""The page of one insight: facts, four plots, two tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from compiler.insight import Insight, LayerInsight, OutputInsight, PointInsight
from qsearch.report.insight.plots import Row, bars, legend, markers

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
    said["simulated"] = _output(insight.simulated)
    if insight.integer is not None:
        said["integer"] = _output(insight.integer)
    costs = bars(
        [Row(layer_name(x), (x.output_db,), decibels(x.output_db)) for x in insight.layers],
        "SQNR of the outputs when only this layer is quantized",
        "dB",
    )
    cut = [
        Row(point_name(p, names), (100 * p.saturated,), f"{100 * p.saturated:.3g}")
        for p in insight.points
        if p.saturated > 0
    ]
    return plot_page(
        title,
        said,
        [
            (
                "What each layer costs alone",
                "SQNR of the outputs, in dB, when this layer is quantized and all others are "
                "float. Short bars are where accuracy goes; an open bar loses nothing.",
                costs,
            ),
            (
                "SQNR at the quantize points",
                "Of the tensor itself, and with everything before it quantized as well.",
                legend(("the tensor alone", "with everything before it"))
                + markers([_sqnr_row(p) for p in measured], "SQNR at the quantize points", "dB"),
            ),
            (
                "Ranges by method",
                "Each method's range over the largest magnitude in the calibration data; the ring "
                "marks the one in use. Beyond 1.25 stands at the edge.",
                legend(MODES)
                + markers(
                    [_range_row(p, mode) for p in measured], "Ranges by method", "", top=RANGE_TOP
                ),
            ),
            (
                "Values cut off",
                "Percent of the values beyond the clip bounds, over the samples examined.",
                bars(cut, "Percent of values cut off", "%"),
            ),
        ],
        {
            "Layers": layer_rows(insight.layers),
            "Quantize points": point_rows(insight.points, names),
        },
    )


def plot_page(
    title: str,
    facts: Mapping[str, str],
    plots: Sequence[tuple[str, str, str]],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    """A page of facts, plots and tables that loads nothing.

    Args:
        title: of the page.
        facts: name and value, in order.
        plots: heading, explanation and SVG of each.
        tables: rows by name; the first one is open.
    """
    sections = "\n".join(
        f"<section><h2>{escape(heading)}</h2>\n<p>{escape(said)}</p>{plot}</section>"
        for heading, said, plot in plots
    )
    details = "\n".join(
        f"<details{'' if number else ' open'}><summary>{escape(name)}</summary>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name.lower())}">'
        f"{_table(rows)}</div></details>"
        for number, (name, rows) in enumerate(tables.items())
    )
    filled = {
        "TITLE": escape(title),
        "FACTS": "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items()),
        "PLOTS": sections,
        "TABLES": details,
    }
    page = files("qsearch.report.insight").joinpath("page.html").read_text(encoding="utf-8")
    parts = page.split("@@")
    return "".join(filled[part] if i % 2 else part for i, part in enumerate(parts))


def layer_rows(layers: Iterable[LayerInsight]) -> list[dict[str, Any]]:
    """The layers as rows of a table."""
    return [
        {
            "": layer.index,
            "layer": layer_name(layer),
            "operator": layer.op,
            "conv": "" if layer.conv_index is None else layer.conv_index,
            "points": " ".join(map(str, layer.points)),
            "output SQNR dB": decibels(layer.output_db),
            "agreement %": f"{100 * layer.agreement:.2f}",
        }
        for layer in layers
    ]


def point_rows(points: Iterable[PointInsight], names: Mapping[int, str]) -> list[dict[str, Any]]:
    """The quantize points as rows of a table; ``names`` of layers by their index."""
    return [
        {
            "": point.index,
            "point": point_name(point, names),
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
    """What QConfig.layers calls it, the ONNX node, or the operator."""
    if layer.layer:
        return layer.layer
    return layer.onnx_nodes[0] if layer.onnx_nodes else f"{layer.op} {layer.index}"


def point_name(point: PointInsight, names: Mapping[int, str]) -> str:
    """What makes the tensor: an ONNX node, an operator, an input, or the layer of a constant."""
    if point.onnx_nodes:
        return point.onnx_nodes[0]
    if point.op:
        return f"{point.op} ({point.index})"
    if point.kind == "weight":
        return f"constant of {names[point.layers[0]]}" if point.layers else "constant"
    return "model input"


def decibels(value: float | None) -> str:
    """None is a comparison without any error."""
    return "exact" if value is None else f"{value:.1f}"


def _sqnr_row(point: PointInsight) -> Row:
    note = decibels(point.upstream_db)
    return Row(point_name(point, {}), (point.local_db, point.upstream_db), note)


def _range_row(point: PointInsight, mode: str) -> Row:
    largest = point.thresholds["max"]
    values = tuple(
        point.thresholds[m] / largest if m in point.thresholds and largest > 0 else None
        for m in MODES
    )
    chosen = MODES.index(mode) if mode in MODES else None
    note = "" if chosen is None or values[chosen] is None else f"{values[chosen]:.2f}"
    return Row(point_name(point, {}), values, note, chosen)


def _output(output: OutputInsight) -> str:
    return f"SQNR {decibels(output.output_db)} dB, agreement {100 * output.agreement:.2f} %"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p>none</p>"
    words = {"layer", "operator", "point", "kind", "steps", "shape"}
    head = "".join(_cell("th", name, name in words) for name in rows[0])
    body = "".join(
        f"<tr>{''.join(_cell('td', value, name in words) for name, value in row.items())}</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(tag: str, value: Any, left: bool) -> str:
    kind = ' class="words"' if left else ""
    return f"<{tag}{kind}>{escape(str(value))}</{tag}>"
