"""A plot as a file of its own: the SVG with the style that a page would bring."""

from __future__ import annotations

from importlib.resources import files


def alone(svg: str) -> str:
    """The SVG with its style inside, light or dark as the viewer asks for."""
    head, _, rest = svg.partition(">")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}><style>{stylesheet()}</style>{rest}\n'


def stylesheet() -> str:
    """The style of plots, which the dashboard serves as well."""
    return files("qsearch.report.plots").joinpath("plots.css").read_text(encoding="utf-8")
