"""draw: a module as the text of Graphviz (dot), or as JSON for a viewer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from compiler.drawing.boxes import graph_of
from compiler.drawing.picture import Kind, Picture, picture_of
from compiler.errors import check_known
from compiler.ir.module import IRModule

_COLOURS: Final = {
    Kind.INPUT: ("#ffffff", "#555555"),
    Kind.FLOAT: ("#dcecf8", "#0072b2"),
    Kind.SIMULATED: ("#fbe3f0", "#cc79a7"),
    Kind.QUANTIZED: ("#ffe3ad", "#b36b00"),
    Kind.ACCUMULATOR: ("#fff6d8", "#b36b00"),
    Kind.OTHER: ("#eeeeee", "#777777"),
}
"""Fill and outline of a box. Hues of Okabe and Ito, "Color Universal Design", 2008, which readers
with red-green colour blindness can tell apart."""


def dot_text(picture: Picture) -> str:
    """A digraph with a cluster per function; quantized boxes are drawn with a wide line."""
    lines = [
        "digraph module {",
        '  node [shape=box, style="filled,rounded", fontname="monospace", fontsize=10];',
        '  edge [fontname="monospace", fontsize=8];',
    ]
    for number, frame in enumerate(picture.frames):
        lines.append(f"  subgraph cluster_{number} {{")
        lines.append(f"    label={_quoted(frame.title)};")
        for box in frame.boxes:
            fill, line = _COLOURS[box.kind]
            width = 2 if box.kind in (Kind.QUANTIZED, Kind.SIMULATED) else 1
            rows = [row for row, _ in box.rows]
            lines.append(
                f"    n{box.key} [label={_quoted(box.title, box.subtitle, *rows)}, "
                f'fillcolor="{fill}", color="{line}", penwidth={width}, '
                f"tooltip={_quoted(box.detail['text'])}];"
            )
        for edge in frame.edges:
            wide = ", penwidth=2" if edge.quantized else ""
            lines.append(
                f"    n{edge.source} -> n{edge.target} [label={_quoted(edge.label)}{wide}];"
            )
        lines.append("  }")
    lines.append("}")
    return "\n".join(lines) + "\n"


def _quoted(*parts: str) -> str:
    """A quoted string of one line per part; backslash and quote lose their meaning."""
    escaped = (
        part.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "")
        for part in parts
    )
    return '"' + "\\n".join(escaped) + '"'


def json_text(picture: Picture) -> str:
    """Return the boxes and edges of ``graph_of``."""
    return json.dumps(graph_of(picture)) + "\n"


_WRITERS: dict[str, Callable[[Picture], str]] = {"dot": dot_text, "json": json_text}

FORMATS = tuple(_WRITERS)


def draw(mod: IRModule, format: str = "dot") -> str:
    """Return the drawing of a module as the text of one file.

    Args:
        mod: any module; edges show types where InferType has run.
        format: "dot" (for Graphviz) or "json".
    Raises:
        CompilerError: an unknown format.
    """
    check_known(format, FORMATS, f"there is no drawing format {format!r}")
    return _WRITERS[format](picture_of(mod))
