"""The insight page: complete, self-contained, safe, readable without colour."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from compiler.insight import Insight, LayerInsight, OutputInsight, PointInsight
from qsearch.report.insight.page import MODES, insight_page
from qsearch.report.insight.plots import SHAPES, Row, bars, markers

EVIL = '<script>alert("x")</script>@@POINTS@@'


def insight(name: str = "conv_0") -> Insight:
    point = PointInsight(
        index=0,
        kind="input",
        op="nn.relu",
        onnx_nodes=(name,),
        layers=(0,),
        minimum=0.0,
        maximum=2.0,
        range_s=1.9,
        levels=(-20, 235),
        scale_min=0.015,
        scale_max=0.015,
        channels=1,
        thresholds={
            "max": 2.0,
            "percentile": 1.9,
            "kl_divergence": 1.5,
            "mse": 1.8,
            "global_scale": 8.0,
        },
        saturated=0.0125,
        local_db=41.5,
        upstream_db=30.25,
    )
    weight = replace(
        point, index=1, kind="weight", op="", onnx_nodes=(), thresholds={}, upstream_db=None
    )
    layers = (
        LayerInsight(0, "nn.conv2d", (name,), 0, "", (0, 1), 33.3, 0.975),
        LayerInsight(1, "add", (), None, "", (0,), None, 1.0),
    )
    return Insight(16, (point, weight), layers, OutputInsight(28.0, 0.97), OutputInsight(None, 1.0))


def page(name: str = "conv_0") -> str:
    return insight_page("Insight: m", {"model": name}, insight(name), "percentile")


class _Tags(HTMLParser):
    """Tags in use, and that every one is closed."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_every_figure_is_on_the_page() -> None:
    text = page()
    for figure in ("33.3", "97.50", "41.5", "30.2", "1.25", "0.95", "exact", "28.0", "-20 … 235"):
        assert figure in text, figure
    assert "@@" not in text


def test_nothing_is_loaded_and_no_script_runs() -> None:
    tags = _Tags(page())
    assert tags.open == []
    assert tags.seen.isdisjoint({"script", "link", "img", "iframe", "object"})
    assert all(name not in ("src", "href", "onload", "onclick") for name, _ in tags.attributes)
    assert "default-src 'none'" in page()
    assert "url(" not in page()


def test_what_a_model_says_of_itself_stays_text() -> None:
    text = page(EVIL)
    assert "<script>" not in text
    assert "script" not in _Tags(text).seen


def test_dark_mode_and_narrow_screens_are_provided_for() -> None:
    text = page()
    assert "prefers-color-scheme: dark" in text
    assert "width=device-width" in text
    light, dark = (set(re.findall(r"--(c\d|ink|ground)", part)) for part in text.split("dark)")[:2])
    assert light == dark
    # Plots shrink with the page and fit 400 px; tables scroll inside their own box.
    assert all(int(w) <= 400 for w in re.findall(r'class="plot" viewBox="0 0 (\d+)', text))
    assert "overflow-x: auto" in text


def test_each_series_has_a_shape_of_its_own() -> None:
    assert len(MODES) <= len(SHAPES) == len(set(SHAPES))
    drawn = markers([Row("a", (0.1, 0.2, 0.3, 0.4, 0.5), chosen=1)], "m", "dB")
    groups = re.findall(r'<g class="s\d">(.*?)</g>', drawn)
    outlines = {re.sub(r'[\d.\- "]', "", group) for group in groups}
    assert len(groups) == len(outlines) == 5
    assert drawn.count('class="ring"') == 1


def test_plots_are_well_formed_and_stay_inside() -> None:
    rows = [Row("a<b>&", (2.0,), "2"), Row("c" * 60, (None,), "exact"), Row("d", (-3.0,))]
    root = ET.fromstring(bars(rows, "costs", "dB"))
    width = float(root.attrib["viewBox"].split()[2])
    rects = root.findall("rect")
    assert len(rects) == 3
    assert all(float(r.attrib["x"]) + float(r.attrib["width"]) <= width for r in rects)
    assert float(rects[2].attrib["width"]) == 0
    beyond = ET.fromstring(markers([Row("a", (8.0, 0.5))], "m", "", top=1.25))
    edge = max(float(c.attrib["cx"]) for c in beyond.iter("circle"))
    assert edge < width


@pytest.mark.parametrize("values", [(), (None,), (0.0,)])
def test_nothing_to_draw_is_still_a_plot(values: tuple[float | None, ...]) -> None:
    rows = [Row("a", values)] if values else []
    ET.fromstring(markers(rows, "m", "dB"))


def test_constants_are_called_after_their_layer_and_only_cut_values_are_drawn() -> None:
    text = page()
    assert "constant of conv_0" in text
    whole = insight()
    kept = replace(whole, points=(whole.points[0], replace(whole.points[1], saturated=0.0)))
    shown = insight_page("Insight: m", {}, kept, "percentile")
    assert shown.count("constant of conv_0") == text.count("constant of conv_0") - 2  # label, title
