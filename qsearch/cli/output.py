"""What commands print and write: rows as a table, CSV or JSON, IR text in colour, files."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

Rows = Sequence[Mapping[str, Any]]

COUNTED: Final = 1000
"""Whole numbers from here on are bytes and operations, and have no places."""


def print_rows(rows: Rows, format: str) -> None:
    """Print rows as "table", "json" or "csv"; a table fits the terminal it is printed to."""
    if format == "table":
        print(table(rows, shutil.get_terminal_size().columns if sys.stdout.isatty() else None))
        return
    write = {"json": json_text, "csv": csv_text}[format]
    print(write(rows), end="" if format == "csv" else "\n")


def table(rows: Rows, width: int | None = None) -> str:
    """Columns padded to their widest value; floats to four places, counts to none.

    Args:
        width: letters of a line. The widest columns are left out until lines fit, and named below.
    """
    if not rows:
        return "(none)"
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = {i: max(len(line[i]) for line in cells) for i in range(len(cells[0]))}
    dropped: list[int] = []
    while width is not None and len(widths) > 1 and sum(widths.values()) + 2 * len(widths) > width:
        dropped.append(max((i for i in widths if i), key=lambda i: (widths[i], i)))
        del widths[dropped[-1]]
    lines = ["  ".join(line[i].ljust(w) for i, w in widths.items()) for line in cells]
    if dropped:
        names = ", ".join(cells[0][i] for i in sorted(dropped))
        lines.append(f"(without {names}: too wide for this terminal; --format csv has them)")
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
        counted = value.is_integer() and abs(value) >= COUNTED
        return f"{value:.0f}" if counted else f"{value:.4f}"
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items())
    return str(value)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text to the file that ``--out`` names.

    Raises:
        SettingsError: the file cannot be written.
    """
    from qsearch.errors import SettingsError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror}", where="--out", fix="choose another path"
        ) from error


# IR text in colour, at a terminal ---------------------------------------------------------------

# Line by line: a model's text has megabytes, and its longest lines hold weights nobody reads.
_LONGEST_LINE: Final = 4000

_STYLES: Final = {
    "relay.comment": "dim",
    "relay.keyword": "bold magenta",
    "relay.global": "bold blue",
    "relay.local": "cyan",
    "relay.quantized": "bold yellow",
    "relay.type": "green",
    "relay.string": "yellow",
    "relay.operator": "bold",
}
"""Integer dtypes of 8 bits stand out as quantized regions do."""

_WORDS: Final = (
    r"(?P<operator>\b[a-z_][\w.]*)(?=\()",
    r"(?P<keyword>\b(?:def|fn|let|if|else|match|type|free_var|ref|ref_read|ref_write|meta)\b)",
    r"(?P<global>@[\w.\"]+)",
    r"(?P<local>%(?:\"[^\"]*\"|[\w./]+))",
    r"(?P<type>\bTensor\[[^\]]*\])",
    r"(?P<quantized>\bu?int[48]\b)",
    r"(?P<string>\"[^\"]*\")",
    r"(?P<comment>/\*.*?\*/|//.*|#\[.*?\])",
)


def print_coloured(text: str, console: Console | None = None) -> None:
    """Print IR text; what is inside it is never taken for markup of the terminal."""
    from rich.console import Console
    from rich.text import Text
    from rich.theme import Theme

    console = console or Console(highlight=False)
    with console.use_theme(Theme(_STYLES)):
        for line in text.splitlines():
            shown = Text(line, no_wrap=True, overflow="ignore")
            if len(line) <= _LONGEST_LINE:
                for words in _WORDS:
                    shown.highlight_regex(words, style_prefix="relay.")
            console.print(shown, soft_wrap=True, crop=False)
