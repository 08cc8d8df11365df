"""The insight page: every figure, and nothing but data."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from compiler.insight import Insight, LayerInsight, OutputInsight, PointInsight
from qsearch.report.insight import MODES, insight_page

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
    return Insight(16, OutputInsight(28.0, 0.97), OutputInsight(None, 1.0), layers, (point, weight))


def page(name: str = "conv_0") -> str:
    return insight_page("Insight: m", {"model": name}, insight(name), "percentile")


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert found is not None
    told: dict[str, Any] = json.loads(found[1])
    return told


def test_every_figure_is_on_the_page() -> None:
    text = json.dumps(data_of(page()), ensure_ascii=False)
    for figure in ("33.3", "97.50", "41.5", "30.2", "1.25", "0.95", "exact", "28.0", "-20 … 235"):
        assert figure in text, figure


def test_what_a_model_says_of_itself_stays_text() -> None:
    assert len(re.findall("<script", page(EVIL))) == len(re.findall("<script", page())) == 2
    assert EVIL in json.dumps(data_of(page(EVIL))).replace('\\"', '"')


def test_the_chosen_calibrate_mode_is_marked() -> None:
    ranges = next(p for p in data_of(page())["plots"] if p["name"] == "Ranges by method")
    assert ranges["series"] == list(MODES)
    assert ranges["rows"][0]["chosen"] == MODES.index("percentile")
    assert ranges["rows"][0]["values"] == pytest.approx([1.0, 0.95, 0.75, 0.9, 4.0])


def test_constants_are_called_after_their_layer_and_only_cut_values_are_drawn() -> None:
    text = page()
    assert "constant of conv_0" in text
    whole = insight()
    kept = replace(whole, points=(whole.points[0], replace(whole.points[1], saturated=0.0)))
    shown = insight_page("Insight: m", {}, kept, "percentile")
    assert shown.count("constant of conv_0") == text.count("constant of conv_0") - 1
