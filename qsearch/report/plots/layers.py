"""Plots of layers: figures as bars in the order of the model, and histograms of their values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from qsearch.report.plots.chart import Chart, axis, nothing, number
from qsearch.store.records import LayerFigures


def figures_of(layers: Sequence[LayerFigures]) -> list[str]:
    """Names of the plain numbers that layers have, in the order they appear."""
    names: dict[str, None] = {}
    for layer in layers:
        for name, value in layer.figures.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                names[name] = None
    return list(names)


def bars(layers: Sequence[LayerFigures], figure: str, kind: str, width: int) -> str:
    """One figure of every layer."""
    name = f"{figure} of the layers ({kind})"
    known = [
        (layer.layer, float(value))
        for layer in layers
        if isinstance(value := layer.figures.get(figure), int | float)
        and not isinstance(value, bool)
    ]
    if not known:
        return nothing(name, width, "no figures of layers are stored")
    row = 20
    label = min(max(len(layer) for layer, _ in known) * 6.4 + 8, width * 0.45)
    chart = Chart(name, width, 30 + row * len(known), left=label, right=54, top=22, bottom=8)
    x = axis([v for _, v in known], label, width - chart.right, zero=True)
    for tick in x.ticks(4):
        at = x.at(tick)
        chart.parts.append(f'<path class="grid faint" d="M{at:.1f} 20V{chart.height - 8}"/>')
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
        chart.text(end + 5, y + 13, number(value), "soft")
    return chart.svg()


def histogram(point: Mapping[str, Any], width: int) -> str:
    """How often values occur (on a logarithmic scale), and the chosen threshold on both sides."""
    counts, low, high = point["counts"], point["low"], point["high"]
    chart = Chart(f"Values of {point['label']}", width, 150, left=8, right=8, bottom=24)
    x = chart.x_axis([low, high], whole=True)
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
