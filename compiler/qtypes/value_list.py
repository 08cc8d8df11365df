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
        return (
            tuple.__eq__(self, tuple(other)) if isinstance(other, list) else super().__eq__(other)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = tuple.__hash__

    def __repr__(self) -> str:
        return repr(list(self))


def split_assignments(text: str) -> dict[str, Any]:
    """``a=1,b=[0,3],c=max`` as a dict; words that are no Python literal stay strings.

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
    items, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        if letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        elif letter == "," and depth == 0:
            items.append(text[start:i])
            start = i + 1
        if depth < 0:
            break
    if depth != 0:
        raise ConfigValueError(f"brackets do not match in {text!r}")
    items.append(text[start:])
    return [item for item in items if item.strip()]


def _value(text: str) -> Any:
    lowered = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in lowered:
        return lowered[text.lower()]
    if text[:1] in "[(" and text[-1:] in "])":
        return [_value(item.strip()) for item in _split_at_commas(text[1:-1])]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
