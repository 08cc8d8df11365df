"""A plot as PNG: the elements that ``Chart`` writes, drawn by Pillow in the colours of plots.css.

Not a renderer of SVG at large: paths of straight lines, rectangles, circles, text and groups, with
the classes of the style sheet; an element beyond these is an error, so that none is left out.
Letters are of the font that Pillow brings along, as servers have none.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from xml.etree.ElementTree import Element, fromstring

from PIL import Image, ImageDraw, ImageFont

from qsearch.report.plots.alone import stylesheet

SCALE: Final = 2
"""Pixels of the picture by pixels of the plot."""
_FINER: Final = 2
"""Drawn so much larger, then reduced, for smooth edges."""
_RULE: Final = re.compile(r"([^{}]+)\{([^{}]*)\}")
_PATH: Final = re.compile(r"([MLHVZmlhvz])|(-?\d+(?:\.\d+)?(?:e-?\d+)?)")
_ROTATED: Final = re.compile(r"translate\(([-\d.]+) ([-\d.]+)\) rotate\(-90\)")

Style = Mapping[str, str]
Point = tuple[float, float]
Colour = tuple[int, int, int, int]


def png(svg: str) -> bytes:
    """The picture on a light ground.

    Args:
        svg: of a function in ``qsearch.report.plots``.
    """
    root = fromstring(svg)
    width, height = (int(float(root.attrib[name])) for name in ("width", "height"))
    sheet = _Sheet.read(stylesheet())
    factor = SCALE * _FINER
    image = Image.new("RGB", (width * factor, height * factor), sheet.variables["--plot-ground"])
    canvas = _Canvas(image, ImageDraw.Draw(image, "RGBA"), factor)
    waiting: list[tuple[Element, Style]] = [(child, {}) for child in reversed(root)]
    while waiting:
        element, inherited = waiting.pop()
        tag = element.tag.rpartition("}")[2]
        if tag == "title":
            continue
        style = {**inherited, **sheet.of(tag, element.get("class", "").split())}
        if tag == "g":
            waiting += [(child, style) for child in reversed(element)]
        else:
            canvas.draw(tag, element, style)
    out = io.BytesIO()
    reduced = image.resize((width * SCALE, height * SCALE), Image.Resampling.BOX)
    reduced.save(out, "PNG", optimize=True)
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class _Sheet:
    """Light colours and the rules below ``.plot``, in their order."""

    variables: Mapping[str, str]
    rules: Sequence[tuple[str, frozenset[str], Style]]

    @staticmethod
    def read(css: str) -> _Sheet:
        """Rules that hold for a part of the viewers only (``@media``) are left out."""
        plain = re.sub(r"/\*.*?\*/|@media[^{]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", css, flags=re.S)
        variables: dict[str, str] = {}
        rules: list[tuple[str, frozenset[str], Style]] = []
        for selectors, body in _RULE.findall(plain):
            pairs = (line.partition(":") for line in body.split(";") if ":" in line)
            said = {name.strip(): value.strip() for name, _, value in pairs}
            for selector in selectors.split(","):
                parent, _, own = selector.strip().partition(" ")
                if parent == ":root":
                    variables |= said
                elif parent == ".plot" and own and " " not in own and ":" not in own:
                    tag, *classes = own.split(".")
                    rules.append((tag, frozenset(classes), said))
        return _Sheet(variables, rules)

    def of(self, tag: str, classes: Sequence[str]) -> Style:
        """What the sheet says of an element; later and more particular rules win."""
        found: dict[str, str] = {}
        fitting = [r for r in self.rules if r[0] in ("", tag) and r[1] <= set(classes)]
        for _, _, said in sorted(fitting, key=lambda rule: len(rule[1])):
            found |= said
        return {k: re.sub(r"var\((.*?)\)", self._value, v) for k, v in found.items()}

    def _value(self, match: re.Match[str]) -> str:
        return self.variables[match[1]]


@dataclass(frozen=True, slots=True)
class _Canvas:
    """Draws elements, ``factor`` times as large as they say."""

    image: Image.Image
    pen: ImageDraw.ImageDraw
    factor: int

    def draw(self, tag: str, element: Element, style: Style) -> None:
        """One element.

        Raises:
            ValueError: of a kind that plots do not have.
        """
        at = {k: float(v) for k, v in element.attrib.items() if k in _NUMBERS}
        if tag == "text":
            self._text(element, style)
        elif tag == "circle":
            box = self._box(at["cx"] - at["r"], at["cy"] - at["r"], 2 * at["r"], 2 * at["r"])
            self.pen.ellipse(box, _fill(style), _stroke(style), self._width(style))
        elif tag == "rect":
            box = self._box(at["x"], at["y"], at["width"], at["height"])
            radius = at.get("rx", 0.0) * self.factor
            outline = _stroke(style)
            thick = self._width(style) if outline else 0
            self.pen.rounded_rectangle(box, radius, _fill(style), outline, thick)
        elif tag == "path":
            self._path(element.attrib["d"], style)
        else:
            raise ValueError(f"plots have no <{tag}>")

    def _path(self, d: str, style: Style) -> None:
        fill, stroke, width = _fill(style), _stroke(style), self._width(style)
        dashes = [float(n) * self.factor for n in style.get("stroke-dasharray", "").split()]
        for points, closed in _lines(d):
            scaled = [(x * self.factor, y * self.factor) for x, y in points]
            if fill and len(scaled) > 2:
                self.pen.polygon(scaled, fill)
            if stroke is None:
                continue
            if len(set(scaled)) == 1:
                (x, y), r = scaled[0], width / 2
                self.pen.ellipse((x - r, y - r, x + r, y + r), stroke)
                continue
            if closed:
                scaled.append(scaled[0])
            for piece in _dashed(scaled, dashes) if dashes else [scaled]:
                self.pen.line(piece, stroke, width, joint="curve")

    def _text(self, element: Element, style: Style) -> None:
        size = float(re.search(r"([\d.]+)px", style.get("font-size", style["font"]))[1])  # type: ignore[index]
        font = ImageFont.load_default(size * self.factor)
        words = "".join(piece or "" for piece in (element.text, *(e.tail for e in element)))
        anchor = {"middle": "ms", "end": "rs"}.get(style.get("text-anchor", ""), "ls")
        fill = _fill(style)
        assert fill is not None
        turned = _ROTATED.match(element.get("transform", ""))
        if turned is None:
            place = tuple(float(element.attrib[k]) * self.factor for k in ("x", "y"))
            halo = _stroke(style)
            wide = 0 if halo is None else self._width(style) // 2
            self.pen.text(
                (place[0], place[1]), words, fill, font, anchor, stroke_width=wide, stroke_fill=halo
            )
            return
        length = int(font.getlength(words)) + 4
        high = int(2 * size * self.factor)
        strip = Image.new("L", (length, high))
        ImageDraw.Draw(strip).text((length / 2, high * 0.75), words, 255, font, "ms")
        mask = strip.rotate(90, expand=True)
        x, y = (float(turned[i]) * self.factor for i in (1, 2))
        corner = (int(x - high * 0.75), int(y - length / 2))
        self.image.paste(fill[:3], (*corner, corner[0] + mask.width, corner[1] + mask.height), mask)

    def _box(self, x: float, y: float, width: float, height: float) -> tuple[float, ...]:
        return tuple(v * self.factor for v in (x, y, x + width, y + height))

    def _width(self, style: Style) -> int:
        return max(round(float(style.get("stroke-width", "1").removesuffix("px")) * self.factor), 1)


_NUMBERS: Final = frozenset(("x", "y", "width", "height", "rx", "cx", "cy", "r"))


def _fill(style: Style) -> Colour | None:
    return _colour(style.get("fill", "#000000"), style.get("fill-opacity", "1"))


def _stroke(style: Style) -> Colour | None:
    return _colour(style.get("stroke", "none"), style.get("stroke-opacity", "1"))


def _colour(value: str, opacity: str) -> Colour | None:
    if value == "none":
        return None
    red, green, blue = (int(value[i : i + 2], 16) for i in (1, 3, 5))
    return red, green, blue, round(255 * float(opacity))


def _lines(d: str) -> Iterator[tuple[list[Point], bool]]:
    """The polylines of a path, and whether each is closed."""
    points: list[Point] = []
    command = ""
    numbers: list[float] = []
    x = y = 0.0
    for letter, figure in _PATH.findall(d):
        if letter:
            command, numbers = letter, []
            if letter in "Zz":
                yield points, True
                points = points[:1]
                (x, y), command = points[0], ""
            continue
        numbers.append(float(figure))
        low = command.lower()
        if low in "ml" and len(numbers) < 2:
            continue
        here = (x, y) if command.islower() else (0.0, 0.0)
        if low == "h":
            x = here[0] + numbers[0]
        elif low == "v":
            y = here[1] + numbers[0]
        else:
            x, y = here[0] + numbers[0], here[1] + numbers[1]
        if low == "m":
            if len(points) > 1:
                yield points, False
            points = []
            command = "L" if command == "M" else "l"
        points.append((x, y))
        numbers = []
    if len(points) > 1:
        yield points, False


def _dashed(points: Sequence[Point], dashes: Sequence[float]) -> Iterator[list[Point]]:
    """The pieces of a polyline that dashes leave."""
    piece, index, left = [points[0]], 0, dashes[0]
    for begin, end in pairwise(points):
        length = ((end[0] - begin[0]) ** 2 + (end[1] - begin[1]) ** 2) ** 0.5
        gone = 0.0
        while length - gone > left:
            gone += left
            share = gone / length
            at = (begin[0] + (end[0] - begin[0]) * share, begin[1] + (end[1] - begin[1]) * share)
            if index % 2 == 0:
                yield [*piece, at]
            piece, index = [at], index + 1
            left = dashes[index % len(dashes)]
        left -= length - gone
        piece.append(end)
    if index % 2 == 0 and len(piece) > 1:
        yield piece
