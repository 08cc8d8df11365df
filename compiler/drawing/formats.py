"""draw: a module as a file of one of the formats; the one of Graphviz is written here."""

from __future__ import annotations

from collections.abc import Callable

from compiler.drawing.palette import LIGHT
from compiler.drawing.picture import Kind, Picture, picture_of
from compiler.drawing.svg import svg_text
from compiler.errors import check_known
from compiler.ir.module import IRModule


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
            colours = LIGHT[box.kind]
            width = 2 if box.kind in (Kind.QUANTIZED, Kind.SIMULATED) else 1
            rows = [row for row, _ in box.rows]
            lines.append(
                f"    n{box.key} [label={_quoted(box.title, box.subtitle, *rows)}, "
                f'fillcolor="{colours.fill}", color="{colours.line}", penwidth={width}, '
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


_WRITERS: dict[str, Callable[[Picture], str]] = {"dot": dot_text, "svg": svg_text}

FORMATS = tuple(_WRITERS)


def draw(mod: IRModule, format: str = "svg") -> str:
    """The drawing of a module as the text of one self-contained file.

    Args:
        mod: any module; edges show types where InferType has run.
        format: "dot" (for Graphviz) or "svg".
    Raises:
        CompilerError: an unknown format.
    """
    check_known(format, FORMATS, f"there is no drawing format {format!r}")
    return _WRITERS[format](picture_of(mod))
