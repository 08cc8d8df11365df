"""The text form of passes and their options: ``Name{option=value,…}``."""

from __future__ import annotations

import json
from typing import Any

from compiler.errors import CompilerError

_OPEN = "{[("
_CLOSE = "}])"
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False}


def split_passes(pipeline: str) -> list[str]:
    """``A,B{x=1,y=[2,3]}`` → ``["A", "B{x=1,y=[2,3]}"]``."""
    return [part for part in _split(pipeline) if part]


def split_options(spec: str) -> tuple[str, dict[str, Any]]:
    """``B{x=1}`` → ``("B", {"x": 1})``.

    Raises:
        CompilerError: the braces do not close or an option has no ``=``.
    """
    name, brace, rest = spec.strip().partition("{")
    if not brace:
        return name, {}
    if not rest.endswith("}"):
        raise CompilerError(f"pass {spec!r}: the options do not end with }}")
    options = {}
    for item in _split(rest[:-1]):
        key, equals, value = item.partition("=")
        if not equals:
            raise CompilerError(f"pass {spec!r}: {item!r} is not option=value")
        options[key.strip()] = _value(value.strip())
    return name, options


def format_value(value: Any) -> str:
    """The text ``split_options`` reads back."""
    if isinstance(value, (list, tuple)):
        return f"[{','.join(format_value(v) for v in value)}]"
    if isinstance(value, str):
        return json.dumps(value)
    return str(value)


def _split(text: str) -> list[str]:
    parts = []
    depth = 0
    start = 0
    for index, char in enumerate(text):
        depth += (char in _OPEN) - (char in _CLOSE)
        if char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    last = text[start:].strip()
    if last:
        return [*parts, last]
    return parts


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("["):
        return tuple(_value(v) for v in _split(text[1:-1]))
    if text.startswith('"'):
        return json.loads(text)
    return number_or_word(text)


def number_or_word(text: str) -> int | float | str:
    """The number that a text is, or the text."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
