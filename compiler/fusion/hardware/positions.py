"""Lines of the values in a TOML or JSON text, by key path, for messages about a wrong value.

``tomllib`` and ``json`` read the values and refuse what is not their language, but forget where a
value stood. This scanner walks the tokens of a text that they have accepted and only counts lines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Path = tuple[str | int, ...]

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r]+) | (?P<newline>\n) | (?P<comment>\#[^\n]*)
      | (?P<long>\"\"\"(?:[^\\]|\\.)*?\"\"\" | '''.*?''')
      | (?P<text>"(?:[^"\\\n]|\\.)*" | '[^'\n]*')
      | (?P<mark>[\[\]{},=:.])
      | (?P<bare>[^\s\#"'\[\]{},=:.]+(?:\.\d[\w+-]*)?)""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(slots=True)
class _Open:
    """A bracket that is open: where its values hang, and the key or place it is at."""

    path: Path
    is_list: bool
    place: int = 0
    key: list[str] = field(default_factory=list)
    in_value: bool = False

    def here(self) -> Path:
        """Path of the value that comes next."""
        if self.is_list:
            return (*self.path, self.place)
        return (*self.path, *self.key)


def lines_of(text: str, *, is_toml: bool) -> dict[Path, int]:
    """Line (from 1) of the first mention of every key path; list items by their place.

    Args:
        text: accepted by ``tomllib.loads``, or by ``json.loads``.
        is_toml: which of the two.
    """
    lines: dict[Path, int] = {(): 1}
    tokens = list(_tokens(text))
    counts: dict[Path, int] = {}
    stack: list[_Open] = [_Open((), False)]
    at = 0
    while at < len(tokens):
        kind, word, line = tokens[at]
        top = stack[-1]
        if is_toml and len(stack) == 1 and not top.in_value and word == "[" and kind == "mark":
            at = _header(tokens, at, top, counts, lines)
            continue
        at += 1
        if kind == "newline":
            if len(stack) == 1:
                top.key = []
                top.in_value = False
        elif word in ("[", "{") and kind == "mark":
            lines.setdefault(top.here(), line)
            top.in_value = True
            stack.append(_Open(top.here(), word == "["))
        elif word in ("]", "}") and kind == "mark":
            if len(stack) > 1:
                stack.pop()
        elif word == "," and kind == "mark":
            top.place = top.place + 1
            top.key = []
            top.in_value = False
        elif word in ("=", ":") and kind == "mark":
            top.in_value = True
            lines.setdefault(top.here(), line)
        elif top.is_list or top.in_value:
            lines.setdefault(top.here(), line)
        elif kind != "mark":
            top.key.append(_key(kind, word))
    return lines


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    line = 1
    for found in _TOKEN.finditer(text):
        kind = str(found.lastgroup)
        if kind not in ("space", "comment"):
            yield kind, found[0], line
        line += found[0].count("\n")


def _header(
    tokens: list[tuple[str, str, int]],
    at: int,
    top: _Open,
    counts: dict[Path, int],
    lines: dict[Path, int],
) -> int:
    """Enter ``[table]`` or ``[[table]]``; the place of the token behind it."""
    repeated = tokens[at + 1][1] == "["
    line = tokens[at][2]
    keys = []
    while at < len(tokens) and tokens[at][0] != "newline":
        kind, word, _ = tokens[at]
        if kind != "mark":
            keys.append(_key(kind, word))
        at += 1
    path: Path = ()
    for depth, key in enumerate(keys):
        path = (*path, key)
        if repeated and depth == len(keys) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
        lines.setdefault(path, line)
    top.path = path
    top.key = []
    top.in_value = False
    return at


def _key(kind: str, word: str) -> str:
    if kind != "text":
        return word
    if word.startswith('"'):
        return str(json.loads(word))
    return word[1:-1]
