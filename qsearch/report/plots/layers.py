"""Plots of layers: figures as bars in the order of the model, and histograms of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from qsearch.report.plots.chart import Chart, axis, drawn, nothing, number
from qsearch.store.records import LayerFigures

_SERIES: Final = {
    "weights_db": ("weights", "square", "weights"),
    "alone_db": ("alone", "circle", "inputs alone"),
    "upstream_db": ("upstream", "triangle", "with all before"),
}
"""Class, shape and name of the ratios of a layer."""
_WORDS: Final[Mapping[str, str]] = {
    "sqnr_loss_db": "SQNR lost by the outputs (dB)",
    "sqnr_db": "SQNR of the outputs (dB)",
    "weight_elements": "weights",
}
"""Figures for people; those that tell most come first."""


def figures_of(layers: Sequence[LayerFigures]) -> list[str]:
    """Names of the plain numbers in which layers differ, those that tell most first."""
    values: dict[str, set[float]] = {}
    for layer in layers:
        for name, value in layer.figures.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(name, set()).add(float(value))
    told = [name for name, found in values.items() if len(found) > 1 or len(layers) == 1]
    known = list(_WORDS)
    return sorted(told, key=lambda name: known.index(name) if name in known else len(known))


def figure_words(layers: Sequence[LayerFigures], figure: str) -> str:
    """What a figure is called, with the bits that all layers were measured at."""
    bits = {layer.figures.get("bits") for layer in layers}
    one = next(iter(bits)) if len(bits) == 1 else None
    at = f", this layer alone at {one} bits" if one is not None and "sqnr" in figure else ""
    return f"{_WORDS.get(figure, figure)}{at}"


def bars(layers: Sequence[LayerFigures], figure: str, kind: str, width: int) -> str:
    """One figure of every layer."""
    name = f"{kind}: {figure_words(layers, figure)}"
    known = [
        (layer.layer, float(value))
        for layer in layers
        if isinstance(value := layer.figures.get(figure), int | float)
        and not isinstance(value, bool)
    ]
    if not known:
        return nothing(name, width, "no figures of layers are stored")
    row = 20
    label = min(max(len(layer) for layer, _ in known) * 7 + 14, width * 0.45)
    chart = Chart(name, width, 48 + row * len(known), left=label, right=54, top=22, bottom=26)
    x = axis([v for _, v in known], label, width - chart.right, zero=True)
    for tick in x.ticks(4):
        at = x.at(tick)
        chart.parts.append(f'<path class="grid faint" d="M{at:.1f} 20V{chart.height - 26}"/>')
        chart.text(at, 13, number(tick), "mid soft")
    for index, (layer, value) in enumerate(known):
        y = 22 + index * row
        begin, end = sorted((x.at(0.0), x.at(value)))
        chart.text(label - 6, y + 13, layer, "end", label - 6)
        chart.parts.append(
            f'<rect class="bar" data-layer="{escape(layer, quote=True)}" x="{begin:.1f}" '
            f'y="{y + 4}" width="{max(end - begin, 1):.1f}" height="{row - 8}" rx="2">'
            f"<title>{escape(layer)}: {value:.6g}</title></rect>"
        )
        chart.text(end + 5, y + 13, number(float(f"{value:.4g}")), "soft")
    words = figure_words(layers, figure)
    chart.text(width - chart.right, chart.height - 6, words, "end soft", width - chart.right)
    return chart.svg()


def decibels(layers: Sequence[Mapping[str, Any]], output_db: float | None, width: int) -> str:
    """What each layer reads against the float model: constants, inputs, inputs as they arrive.

    Args:
        layers: ``name`` and ``weights_db``, ``alone_db``, ``upstream_db``; None is not drawn.
        output_db: of the outputs of the whole; None where nothing is lost.
    """
    name = "SQNR of what the layers read"
    rows = [*layers, {"name": "outputs", "upstream_db": output_db}]
    known = [v for row in rows for key in _SERIES if (v := row.get(key)) is not None]
    if not known:
        return nothing(name, width, "nothing is lost")
    step = 20
    label = min(max(len(row["name"]) for row in rows) * 7 + 14, width * 0.4)
    chart = Chart(name, width, 52 + step * len(rows), left=label, right=48, top=22, bottom=26)
    # Round ends, so that plots of two trials have one scale.
    end = 20.0 * math.ceil(max(known) / 20 + 1e-9)
    x = axis([*known, end], label, width - chart.right, zero=True, tight=True)
    bottom = chart.height - 28
    for tick in x.ticks(5):
        chart.parts.append(f'<path class="grid faint" d="M{x.at(tick):.1f} 20V{bottom}"/>')
        chart.text(x.at(tick), 13, number(tick), "mid soft")
    for index, row in enumerate(rows):
        y = 22 + index * step + step / 2
        chart.text(label - 8, y + 4, row["name"], "end", label - 8)
        places = {key: x.at(row[key]) for key in _SERIES if row.get(key) is not None}
        if len(places) > 1:
            ends = min(places.values()), max(places.values())
            chart.parts.append(f'<path class="rule" d="M{ends[0]:.1f} {y:g}H{ends[1]:.1f}"/>')
        for key, at in places.items():
            kind, shape, words = _SERIES[key]
            told = f"{row['name']}, {words}: {row[key]:.1f} dB"
            chart.parts.append(
                f'<g class="mark {kind}" data-layer="{escape(row["name"], quote=True)}">'
                f"<title>{escape(told)}</title>{drawn(shape, at, y)}</g>"
            )
        if row.get("upstream_db") is not None:
            chart.text(width - 4, y + 4, f"{row['upstream_db']:.1f}", "end soft")
    chart.named([(kind, shape, words) for kind, shape, words in _SERIES.values()], 8)
    chart.text(width - 4, 13, "dB", "end soft")
    return chart.svg()


def histogram(point: Mapping[str, Any], width: int) -> str:
    """How often values occur (on a logarithmic scale), and the chosen threshold on both sides."""
    counts, low, high = point["counts"], point["low"], point["high"]
    chart = Chart(f"Values of {point['label']}", width, 150, left=8, right=8, bottom=24)
    x = chart.x_axis([low, high], tight=True)
    top = max([1, *counts])
    bottom, step = chart.height - chart.bottom, (x.end - x.begin) / max(len(counts), 1)
    parts = []
    for i, count in enumerate(counts):
        if count:
            height = (bottom - chart.top) * _log(count) / _log(top)
            parts.append(
                f"M{x.begin + i * step:.1f} {bottom:g}v{-height:.1f}h{step:.2f}v{height:.1f}z"
            )
    chart.parts.append(f'<path class="bar" d="{"".join(parts)}"/>')
    chart.parts.append(f'<path class="rule" d="M{x.begin:g} {bottom:g}H{x.end:g}"/>')
    for tick in x.ticks(5):
        chart.text(x.at(tick), bottom + 14, number(tick), "mid soft")
    for name in ("threshold_low", "threshold_high"):
        value = point.get(name)
        if value is not None and low <= value <= high:
            at = x.at(value)
            chart.parts.append(
                f'<path class="threshold" d="M{at:.1f} {chart.top:g}V{bottom:g}">'
                f"<title>{escape(name.replace('_', ' '))}: {value:.6g}</title></path>"
            )
    return chart.svg()


def _log(count: float) -> float:
    return math.log10(count + 1)
