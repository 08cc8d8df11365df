"""Rows of plain values as a table, CSV or JSON."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Rows = Sequence[Mapping[str, Any]]

_COUNTED: Final = 1000
"""Whole numbers from here on are bytes and operations, and have no places."""


def print_rows(rows: Rows, format: str) -> None:
    """Print rows as "table", "json" or "csv"."""
    write = {"table": table, "json": json_text, "csv": csv_text}[format]
    print(write(rows), end="" if format == "csv" else "\n")


def table(rows: Rows) -> str:
    """Columns padded to their widest value; floats to four places, counts to none."""
    if not rows:
        return "(none)"
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(line.rstrip() for line in lines)


def csv_text(rows: Rows) -> str:
    """Comma-separated values with a header."""
    if not rows:
        return ""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: json.dumps(v) if isinstance(v, dict) else v for k, v in row.items()})
    return stream.getvalue()


def json_text(rows: Rows) -> str:
    """One JSON array."""
    return json.dumps(list(rows), indent=1)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        counted = value.is_integer() and abs(value) >= _COUNTED
        return f"{value:.0f}" if counted else f"{value:.4f}"
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items())
    return str(value)
