"""The picture as SVG: the boxes where the layout puts them, one group per box and frame."""

from __future__ import annotations

from html import escape

from compiler.drawing.layout import BOX_HEIGHT, ROW_HEIGHT, Layout, Point, place
from compiler.drawing.palette import DARK, LIGHT, Colours
from compiler.drawing.picture import Box, Frame, Kind, Picture

FRAME_PADDING = 20.0
TITLE_HEIGHT = 24.0


def svg_text(picture: Picture) -> str:
    """A stand-alone SVG file; light or dark as the viewer asks for.

    Every box carries its key in ``data-key``.
    """
    parts: list[str] = []
    y = FRAME_PADDING
    width = 0.0
    for frame in picture.frames:
        layout = place(frame)
        frame_width = max(layout.width, 8.0 * len(frame.title)) + 2 * FRAME_PADDING
        frame_height = layout.height + TITLE_HEIGHT + 2 * FRAME_PADDING
        parts.append(_frame_group(frame, layout, y, frame_width, frame_height))
        y += frame_height + FRAME_PADDING
        width = max(width, frame_width + 2 * FRAME_PADDING)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(y)}" '
        f'viewBox="0 0 {_n(width)} {_n(y)}" role="img" aria-label="module">\n'
        f"<style>{stylesheet()}</style>\n"
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" class="head"/></marker></defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def stylesheet() -> str:
    """Style of boxes and edges, with the dark colours behind a media query."""
    light = "".join(_rule(kind, colours) for kind, colours in LIGHT.items())
    dark = "".join(_rule(kind, colours) for kind, colours in DARK.items())
    return (
        "text{font:11px ui-monospace,monospace;fill:#1a1a1a}.type,.row{font-size:10px;fill:#444}"
        ".frame>rect{fill:none;stroke:#888;stroke-dasharray:6 4}.frame>text{font-weight:bold}"
        ".edge{fill:none;stroke:#777}.edge.q{stroke:#b36b00;stroke-width:2}.head{fill:#777}"
        ".box rect{stroke-width:1}.box.quantized rect,.box.simulated rect{stroke-width:2.5}"
        f".box.simulated rect{{stroke-dasharray:5 2}}{light}"
        "@media (prefers-color-scheme:dark){text{fill:#eee}.type,.row{fill:#bbb}.edge{stroke:#999}"
        f".edge.q{{stroke:#ffb733}}.head{{fill:#999}}{dark}}}"
    )


def _rule(kind: Kind, colours: Colours) -> str:
    return f".{kind.value} rect{{fill:{colours.fill};stroke:{colours.line}}}"


def _frame_group(frame: Frame, layout: Layout, y: float, width: float, height: float) -> str:
    left = FRAME_PADDING
    top = TITLE_HEIGHT + FRAME_PADDING
    lines = [
        f'<g class="frame" transform="translate({_n(FRAME_PADDING)} {_n(y)})">',
        f'<rect width="{_n(width)}" height="{_n(height)}" rx="8"/>',
        f'<text x="{_n(left)}" y="{_n(TITLE_HEIGHT)}">{escape(frame.title)}</text>',
        f'<g transform="translate({_n(left)} {_n(top)})">',
    ]
    for edge, route in zip(frame.edges, layout.routes):
        quantized = " q" if edge.quantized else ""
        lines.append(
            f'<path class="edge{quantized}" d="{curve(route)}" marker-end="url(#arrow)">'
            f"<title>{escape(edge.label)}</title></path>"
        )
    for box in frame.boxes:
        at = layout.places[box.key]
        middle = at.width / 2
        lines.append(
            f'<g class="box {box.kind.value}" data-key="{box.key}" '
            f'transform="translate({_n(at.x)} {_n(at.y)})">'
            f'<rect width="{_n(at.width)}" height="{_n(at.height)}" rx="5"/>'
            f'<text x="{_n(middle)}" y="16" text-anchor="middle">{escape(box.title)}</text>'
            f'<text class="type" x="{_n(middle)}" y="31" text-anchor="middle">'
            f"{escape(box.subtitle)}</text>{_rows(box, at.width)}"
            f"<title>{escape(box.detail['text'])}</title></g>"
        )
    lines.append("</g></g>")
    return "\n".join(lines)


def _rows(box: Box, width: float) -> str:
    """The operators of a kernel, under a line that parts them from its title."""
    if not box.rows:
        return ""
    lines = [f'<path class="edge" d="M0 {_n(BOX_HEIGHT)}H{_n(width)}"/>']
    for number, (row, _) in enumerate(box.rows):
        y = BOX_HEIGHT + ROW_HEIGHT * (number + 1)
        lines.append(f'<text class="row" x="8" y="{_n(y)}">{escape(row)}</text>')
    return "".join(lines)


def curve(route: tuple[Point, ...]) -> str:
    """A path through all points that leaves and enters each of them vertically."""
    (x, y), *rest = route
    path = [f"M{_n(x)} {_n(y)}"]
    for nx, ny in rest:
        middle = _n((y + ny) / 2)
        path.append(f"C{_n(x)} {middle} {_n(nx)} {middle} {_n(nx)} {_n(ny)}")
        x, y = nx, ny
    return "".join(path)


def _n(value: float) -> str:
    """A length with at most one decimal: the same text on every machine."""
    return f"{value:.1f}".removesuffix(".0")
