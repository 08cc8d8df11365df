"""The picture as one HTML page: click a box for its text, type and span; nothing is loaded."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files

from compiler.drawing.palette import MEANING
from compiler.drawing.picture import Picture
from compiler.drawing.svg import svg_element


def html_text(picture: Picture) -> str:
    """The page. What a model says of itself reaches it as JSON or escaped text, never as markup."""
    details = {str(box.key): box.detail for frame in picture.frames for box in frame.boxes}
    legend = "".join(
        f'<li><svg width="18" height="12" class="box {kind.value}">'
        f'<rect x="1" y="1" width="16" height="10" rx="2"/></svg> {escape(meaning)}</li>'
        for kind, meaning in MEANING.items()
    )
    filled = {
        "LEGEND": legend,
        "COUNT": f"{picture.num_boxes} boxes in {len(picture.frames)} functions",
        "SVG": svg_element(picture),
        "DETAILS": _script_safe(json.dumps(details, sort_keys=True)),
    }
    page = files("compiler.drawing").joinpath("page.html").read_text(encoding="utf-8")
    parts = page.split("@@")
    return "".join(filled[part] if i % 2 else part for i, part in enumerate(parts))


def _script_safe(text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
