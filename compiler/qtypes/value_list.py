"""ValueList, the immutable list of a QConfig field, and the text form of assignments."""

from __future__ import annotations

import ast
from typing import Any, TypeVar

from compiler.qtypes.errors import ConfigValueError

V = TypeVar("V")


class ValueList(tuple[V, ...]):
    """A tuple that also equals the list of the same values, since people write lists in configs."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, list):
            return tuple.__eq__(self, tuple(other))
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return repr(list(self))


def split_assignments(text: str) -> dict[str, Any]:
    """``a=1,b=[0,3],c=max,d={x:{y:4}}`` as a dict; words that are no Python literal stay strings.

    A key or word that holds a comma, colon or bracket is put in quotes.

    Raises:
        ConfigValueError: an item without "=", a bracket left open, or a key given twice.
    """
    found: dict[str, Any] = {}
    for item in _split_at_commas(text):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or not key:
            raise ConfigValueError(
                f"{item.strip()!r} is not an assignment", fix="write key=value,key=[value,value]"
            )
        if key in found:
            raise ConfigValueError(f"{key!r} is given twice in {text!r}")
        found[key] = _value(value)
    return found


def _split_at_commas(text: str) -> list[str]:
    return [item for item in _split(text, ",") if item.strip()]


def _split(text: str, separator: str) -> list[str]:
    """The parts of ``text`` between separators that lie outside brackets and quotes."""
    items: list[str] = []
    start = 0
    open_brackets = ""
    quote = ""
    for i, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in "[({":
            open_brackets += letter
        elif letter in "])}":
            if open_brackets[-1:] != {"]": "[", ")": "(", "}": "{"}[letter]:
                raise ConfigValueError(f"brackets do not match in {text!r}")
            open_brackets = open_brackets[:-1]
        elif letter == separator and not open_brackets:
            items.append(text[start:i])
            start = i + 1
    if open_brackets or quote:
        raise ConfigValueError(f"{'quotes' if quote else 'brackets'} do not match in {text!r}")
    return [*items, text[start:]]


def _value(text: str) -> Any:
    lowered = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in lowered:
        return lowered[text.lower()]
    if text[:1] in "[(" and text[-1:] in "])":
        return [_value(item.strip()) for item in _split_at_commas(text[1:-1])]
    if text[:1] == "{" and text[-1:] == "}":
        return _mapping(text[1:-1])
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _mapping(text: str) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for item in _split_at_commas(text):
        key, *rest = (part.strip() for part in _split(item, ":"))
        if len(rest) != 1 or not key:
            raise ConfigValueError(
                f"{item.strip()!r} is not an entry of a mapping",
                fix='write {key:value,key:value}; a key with ":" or "," goes in quotes',
            )
        quoted = key[0] in "\"'" and key[-1] == key[0]
        key = key[1:-1] if quoted else key
        if key in found:
            raise ConfigValueError(f"{key!r} is given twice in {text!r}")
        found[key] = _value(rest[0])
    return found
