"""Print and write results of commands: rows as a table, CSV or JSON, IR text in colour, files."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from rich.console import Console

Rows = Sequence[Mapping[str, Any]]

COUNTED: Final = 1000
"""Whole numbers from here on are bytes and operations, and have no places."""


def print_rows(rows: Rows, format: str) -> None:
    """Print rows as "table", "json" or "csv"."""
    if format == "table":
        print_table(rows, "--format csv has them")
    elif format == "json":
        print(json.dumps(list(rows), indent=1))
    elif rows:
        writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            cells = {k: json.dumps(v) if isinstance(v, dict) else v for k, v in row.items()}
            writer.writerow(cells)


def json_printed(found: Any, asked: bool, page: str | os.PathLike[str] | None = None) -> bool:
    """Print a result as JSON, and write its page, each where it was asked for.

    Returns:
        Whether it was printed: no text follows.
    """
    if page is not None:
        write_text(Path(page), found.html())
    if asked:
        print(json.dumps(found.to_dict()))
    return asked


def print_table(rows: Rows, elsewhere: str) -> None:
    """Print a table that fits the terminal, and what its figures mean.

    Args:
        elsewhere: where the columns are that do not fit.
    """
    print(table(rows, terminal_width(), elsewhere))
    print_legend(rows[0] if rows else ())


def print_legend(names: Iterable[str]) -> None:
    """Say what measures mean, on stderr: programs read stdout."""
    from qsearch.cli.command import given_verbosity
    from workers.metrics.registry import legend

    for line in legend(names) if given_verbosity() != -1 else ():
        print(wrapped(line, "  "), file=sys.stderr)


def terminal_width() -> int | None:
    """Width of the terminal in letters; None where output goes to a file or a pipe."""
    if sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def wrapped(line: str, indent: str = "") -> str:
    """A line that is broken between words where it does not fit the terminal.

    Args:
        indent: of what follows.
    """
    width = terminal_width()
    if width is None or len(line) <= width:
        return line
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def table(rows: Rows, width: int | None = None, elsewhere: str = "") -> str:
    """Columns padded to their widest value; floats have four decimals, counts none.

    Args:
        width: letters of a line. Long names keep both ends, which tell nodes apart, texts their
            beginning; then the widest columns but the first, which names rows, are left out
            until lines fit, and named below.
        elsewhere: where those columns are, in words.
    """
    if not rows:
        return "(none)"
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    whole = cells
    for shares in () if width is None else _SHARES:
        most = [int(share * (width or 0)) for share in shares]
        columns = [_shortened_column(column, most) for column in zip(*whole, strict=True)]
        cells = list(map(list, zip(*columns, strict=True)))
        if sum(_widths(cells)) + 2 * (len(cells[0]) - 1) <= (width or 0):
            break
    widths = dict(enumerate(_widths(cells)))
    while (
        width is not None and len(widths) > 1 and sum(widths.values()) + 2 * len(widths) - 2 > width
    ):
        del widths[max([*widths][1:], key=lambda i: (widths[i], i))]
    lines = ["  ".join(line[i].ljust(w) for i, w in widths.items()) for line in cells]
    if len(widths) < len(whole[0]):
        names = ", ".join(name for i, name in enumerate(whole[0]) if i not in widths)
        lines.append(wrapped(f"(without {names}: too wide for this terminal; {elsewhere})"))
    return "\n".join(line.rstrip() for line in lines)


_SHARES: Final = ((1.0, 1.0), (1 / 3, 1.0), (1 / 4, 1.0), (1 / 4, 1 / 3), (1 / 5, 1 / 4))
"""Longest names and texts of a table, as shares of the line; the first that fit are taken."""


def _widths(cells: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*cells, strict=True)]


def _shortened_column(column: Sequence[str], most: Sequence[int]) -> list[str]:
    """Shorten long names and texts, below ``most`` letters; names lose a folder that all share."""
    names = [cell for cell in column[1:] if len(cell) > most[0] and " " not in cell]
    folders = [cell.rpartition("/")[0] for cell in names]
    while len(set(folders)) > 1:  # the longest are no folder of the others
        longest = max(map(len, folders))
        folders = [f.rpartition("/")[0] if len(f) == longest else f for f in folders]
    shared = len(folders[0]) if len(names) > 1 else 0
    return [
        shortened("…" + cell[shared:] if cell in names and shared else cell, most[" " in cell])
        for cell in column
    ]


def shortened(letters: str, most: int) -> str:
    """Return a name without its middle, or a text without its end, where it is longer."""
    if len(letters) <= most:
        return letters
    end = 0 if " " in letters else (most - 1) // 3
    return f"{letters[: most - 1 - end]}…{letters[len(letters) - end :]}"


def without_empty(rows: Rows, counts: Collection[str] = ()) -> list[dict[str, Any]]:
    """Rows without the columns in which every row holds nothing, or False.

    Args:
        counts: columns that are also left out where every row holds 0.
    """
    first = rows[0] if rows else {}
    shown = [
        name
        for name in first
        if any(row[name] not in (None, "") and row[name] is not False for row in rows)
        and not (name in counts and not any(row[name] for row in rows))
    ]
    return [{name: row[name] for name in shown} for row in rows]


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, float):
        counted = value.is_integer() and abs(value) >= COUNTED
        if counted:
            return f"{value:.0f}"
        return f"{value:.4f}"
    if isinstance(value, dict):
        return ",".join(f"{k}={v}" for k, v in value.items())
    return str(value)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text to the file that ``--out`` names.

    Raises:
        SettingsError: the file cannot be written.
    """
    from compiler.runtime.files import replaced
    from qsearch.errors import SettingsError, system_errors

    what = f"{path} cannot be written"
    fix = "choose another path"
    with system_errors(SettingsError, what, where="--out", fix=fix), replaced(path) as file:
        file.write(text.encode())


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
