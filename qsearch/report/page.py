"""One HTML file that draws JSON with the code of the dashboard, and loads nothing.

The only script that may run is the one inside, named by its hash; data are text to it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import posixpath
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

_IMPORT: Final = re.compile(r'^import (?:(\{[^}]*\}) from )?"([^"]+)";\n', re.M)
_EXPORT: Final = re.compile(r"^export (?=(?:(?:async )?function|class|const) (\w+))", re.M)
_LATER: Final = re.compile(r'import\("([^"]+)"\)')


def bundle(sources: Mapping[str, str], entry: str) -> str:
    """A JavaScript module with all that it imports, as one script; every file keeps its scope.

    Args:
        sources: text by path; imports and exports take one line each, and make no cycle.
        entry: path of the module. What it loads later, by ``import()``, stays a file of its own.
    Raises:
        KeyError: a file that is imported is not among the sources.
    """
    done: dict[str, str] = {}

    def scope(path: str) -> str:
        return "$" + re.sub(r"\W", "_", path)

    def add(path: str) -> None:
        if path in done:
            return
        text = sources[path]
        folder = posixpath.dirname(path)

        def at(target: str) -> str:
            return posixpath.normpath(posixpath.join(folder, target))

        def imported(match: re.Match[str]) -> str:
            add(at(match[2]))
            names = (match[1] or "").replace(" as ", ": ")
            if names:
                return f"const {names} = {scope(at(match[2]))};\n"
            return ""

        def later(match: re.Match[str]) -> str:
            return f'import("./{posixpath.relpath(at(match[1]), posixpath.dirname(entry))}")'

        body = _EXPORT.sub("", _LATER.sub(later, _IMPORT.sub(imported, text)))
        given = ", ".join(_EXPORT.findall(text))
        done[path] = f"const {scope(path)} = (() => {{\n{body}\nreturn {{ {given} }};\n}})();\n"

    add(entry)
    given = ", ".join(_EXPORT.findall(sources[entry]))
    if given:
        last = f"export const {{ {given} }} = {scope(entry)};\n"
    else:
        last = ""
    return "".join(done.values()) + last


def page(title: str, data: Mapping[str, Any]) -> str:
    """The whole file; ``report.js`` draws ``data``."""
    web = Path(str(files("qsearch.report").joinpath("web")))
    scripts = {p.relative_to(web).as_posix(): p.read_text("utf-8") for p in web.rglob("*.js")}
    script = bundle(scripts, "report.js")
    styles = ("plots.css", "style.css")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # No "<" in JSON: nothing in it ends the element, whatever a model calls its nodes.
    told = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src blob:; "
        f"script-src 'sha256-{digest}'"
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n"
        f"{''.join((web / name).read_text('utf-8') for name in styles)}</style>\n"
        f'</head>\n<body>\n<main id="main"><h1>{escape(title)}</h1>'
        "<noscript>This file draws itself with the script inside.</noscript></main>\n"
        f'<script type="application/json" id="data">{told}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def plot_page(
    title: str,
    facts: Mapping[str, str],
    plots: Sequence[Mapping[str, Any]],
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> str:
    """A page of facts, plots and tables.

    Args:
        title: of the page.
        facts: name and value, in order.
        plots: ``name``, ``about``, ``rows`` (see ``plot_row``), ``unit``; with ``series``, names of
            markers in a row, else bars; ``top`` is the end of the axis.
        tables: rows by name; the first one is open.
    """
    shown = [
        {
            "name": name,
            "head": list(rows[0]) if rows else [],
            "rows": [[str(value) for value in row.values()] for row in rows],
            "open": number == 0,
        }
        for number, (name, rows) in enumerate(tables.items())
    ]
    return page(
        title, {"title": title, "facts": dict(facts), "plots": list(plots), "tables": shown}
    )


def plot_row(label: str, values: Sequence[float | None], note: str = "") -> dict[str, Any]:
    """A row of a plot: a value per series, None where there is none, and words at its end."""
    return {"label": label, "value": values[0], "values": list(values), "note": note}
