"""Text for people: on standard output, and as the tables that notebooks show."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from html import escape


def show(text: str) -> None:
    """Print ``text``, ended by one newline; what ``head`` and its like do not take is dropped."""
    try:
        print(text, end="" if text.endswith("\n") else "\n", flush=True)
    except BrokenPipeError:
        # The interpreter flushes once more when it ends, and would report the closed pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def abbreviated(names: Sequence[str], most: int) -> str:
    """The first names, and how many more there are."""
    if len(names) > most:
        more = f" and {len(names) - most} more"
    else:
        more = ""
    return ", ".join(names[:most]) + more


def first_lines(lines: Sequence[str], most: int) -> list[str]:
    """The first lines of a report, and how many more its JSON has."""
    more = len(lines) - most
    return [*lines[:most], *([f"  and {more} more; all are in the JSON"] if more > 0 else [])]


def html_table(title: str, header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; names inside come from models, so they are text and never markup."""
    head = "".join(f"<th>{escape(cell)}</th>" for cell in header)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if header else ""
    return f"<table><caption>{escape(title)}</caption>{top}<tbody>{body}</tbody></table>"
