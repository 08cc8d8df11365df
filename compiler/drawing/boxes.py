"""The picture as plain values, for a viewer: frames, boxes and edges with their positions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from compiler.drawing.layout import Point, place
from compiler.drawing.picture import DATA_FLOW, Box, Frame, Picture

_ONNX: Final = "ONNX node "
_MEMBER: Final = "module.relay:"
"""Prefix of spans of nodes that only the text within a .qmod has: nobody opened that text."""

Ranges = Mapping[str, Mapping[str, Any]]


def graph_of(picture: Picture, ranges: Ranges | None = None) -> dict[str, Any]:
    """Return the functions in the order of the data flow, each with its boxes and edges.

    Args:
        picture: of a module. Positions are in pixels, from the top left of a frame; an edge is the
            path of an SVG. A box has no room for its rows: a viewer opens them.
        ranges: what is proved of the values of ``quantized_main``, by the value's number.
    """
    return {"frames": [_frame(frame, ranges or {}) for frame in picture.frames]}


def _frame(frame: Frame, ranges: Ranges) -> dict[str, Any]:
    layout = place(frame)
    name = frame.title.lstrip("@").split(" ")[0]
    known = ranges if name == "quantized_main" else {}
    return {
        "title": frame.title,
        "part": DATA_FLOW.get(name, ""),
        "width": layout.width,
        "height": layout.height,
        "boxes": [{**asdict(layout.places[box.key]), **_box(box, known)} for box in frame.boxes],
        "edges": [
            {"path": curve(route), "label": edge.label, "quantized": edge.quantized}
            for edge, route in zip(frame.edges, layout.routes)
        ],
    }


def curve(route: tuple[Point, ...]) -> str:
    """Return an SVG path through all points that leaves and enters each of them vertically."""
    (x, y), *rest = route
    path = [f"M{_n(x)} {_n(y)}"]
    for nx, ny in rest:
        middle = _n((y + ny) / 2)
        path.append(f"C{_n(x)} {middle} {_n(nx)} {middle} {_n(nx)} {_n(ny)}")
        x, y = nx, ny
    return "".join(path)


def _n(value: float) -> str:
    """Return a length with at most one decimal: the same text on every machine."""
    return f"{value:.1f}".removesuffix(".0")


def _box(box: Box, ranges: Ranges) -> dict[str, Any]:
    return {
        "key": box.key,
        "title": box.title,
        "subtitle": box.subtitle,
        "kind": box.kind.value,
        "detail": _detail(box.detail, ranges),
        "rows": [{"title": row, "detail": _detail(detail, ranges)} for row, detail in box.rows],
    }


def _detail(detail: Mapping[str, str], ranges: Ranges) -> dict[str, str]:
    shown = {k: v for k, v in detail.items() if k != "span"}
    value = ranges.get(detail.get("text", "").split(" ")[0].rstrip(":"))
    if value is not None:
        shown["range"] = f"{value['low']} … {value['high']} ({value['dtype']}), proved"
    span = detail.get("span", "")
    if span.startswith(_ONNX):
        shown["source"] = span.replace(_ONNX, "").strip("'")
    elif span and not span.startswith(_MEMBER):
        shown["at"] = span
    return shown
