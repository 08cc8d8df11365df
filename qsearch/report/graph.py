"""A module for the graph viewer: boxes with their places as JSON, and a page around them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from compiler.drawing.layout import place
from compiler.drawing.picture import Box, Frame, Picture, picture_of
from compiler.drawing.svg import curve
from compiler.errors import CompilerError
from compiler.ir.module import IRModule
from compiler.ir.printer import text
from compiler.transform import FuseOps
from qsearch.report.page import page

_ONNX: Final = "ONNX node "
_PARTS: Final[Mapping[str, str]] = {
    "quantize_inputs": "prefix",
    "quantized_main": "integer main",
    "dequantize_outputs": "suffix",
    "main": "whole",
}
_GROUPS: Final = {"fused": "fused kernels", "none": "operators"}

Ranges = Mapping[str, Mapping[str, Any]]


def graph_of(picture: Picture, ranges: Ranges | None = None) -> dict[str, Any]:
    """Frames of the functions as data flow through them, each with its boxes and edges.

    Args:
        picture: of a module; places are in pixels, from the top left of a frame.
        ranges: what is proved of the values of ``quantized_main``, by the value's number.
    """
    return {"frames": [_frame(frame, ranges or {}) for frame in picture.frames]}


def graph_page(title: str, module: IRModule, *, fused: bool = False) -> str:
    """A module as one HTML file: the graph, what a click on a box shows, and the IR text.

    Args:
        title: of the page.
        module: any module; types are shown where InferType has run.
        fused: also draw the kernels that FuseOps makes, and show them first.
    """
    graphs = graphs_of(module) if fused else {"none": graph_of(picture_of(module))}
    told = {
        "title": title,
        "groups": [[name, words] for name, words in _GROUPS.items() if name in graphs],
        "graphs": graphs,
        "text": text(module, brief_constants=True),
    }
    return page(title, told)


def graphs_of(module: IRModule) -> dict[str, dict[str, Any]]:
    """The drawings of a module by grouping: "fused" where FuseOps can read it, and "none"."""
    found = {"none": graph_of(picture_of(module))}
    try:
        return {"fused": graph_of(picture_of(FuseOps()(module))), **found}
    except CompilerError:
        # A module before InferType, or of open dimensions, is drawn as it is.
        return found


def _frame(frame: Frame, ranges: Ranges) -> dict[str, Any]:
    layout = place(frame)
    name = frame.title.lstrip("@").split(" ")[0]
    known = ranges if name == "quantized_main" else {}
    return {
        "title": frame.title,
        "part": _PARTS.get(name, ""),
        "width": layout.width,
        "height": layout.height,
        "boxes": [
            {
                **{k: getattr(layout.places[box.key], k) for k in ("x", "y", "width", "height")},
                **_box(box, known),
            }
            for box in frame.boxes
        ],
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
        "rows": [
            {"title": row, "detail": _detail(detail, ranges)}
            for row, detail in zip(box.rows, box.row_details or ({},) * len(box.rows))
        ],
    }


def _detail(detail: Mapping[str, str], ranges: Ranges) -> dict[str, str]:
    shown = {k: v for k, v in detail.items() if k not in ("span", "operators")}
    value = ranges.get(detail.get("text", "").split(" ")[0].rstrip(":"))
    if value is not None:
        shown["range"] = f"{value['low']} … {value['high']} ({value['dtype']}), proved"
    span = detail.get("span", "")
    if span:
        known = span.startswith(_ONNX)
        shown["source" if known else "at"] = span.replace(_ONNX, "").strip("'") if known else span
    return shown
