"""The picture as plain values, for a viewer: frames with boxes, edges and their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from compiler.drawing.layout import place
from compiler.drawing.picture import DATA_FLOW, Box, Frame, Picture
from compiler.drawing.svg import curve

_ONNX: Final = "ONNX node "
_MEMBER: Final = "module.relay:"
"""Prefix of spans of nodes that only the text within a .qmod has: nobody opened that text."""

Ranges = Mapping[str, Mapping[str, Any]]


def graph_of(picture: Picture, ranges: Ranges | None = None) -> dict[str, Any]:
    """Frames of the functions as data flow through them, each with its boxes and edges. A box of
    several operators has no room for their rows, which a click opens.

    Args:
        picture: of a module; places are in pixels, from the top left of a frame.
        ranges: what is proved of the values of ``quantized_main``, by the value's number.
    """
    return {"frames": [_frame(frame, ranges or {}) for frame in picture.frames]}


def _frame(frame: Frame, ranges: Ranges) -> dict[str, Any]:
    layout = place(frame, folded=True)
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
