"""Attributes of functions and routines read from text."""

from __future__ import annotations

import json
from typing import Any

from compiler.ir.attrs import NO_ATTRS, DictAttrs
from compiler.lir.tokens import Words


def read_attributes(words: Words) -> DictAttrs:
    """``attrs={key=value, …}`` at the reading position; empty where there is none.

    Raises:
        ParseError: something else than numbers, strings, bools and lists of them.
    """
    if not words.take("attrs"):
        return NO_ATTRS
    words.expect("=")
    words.expect("{")
    found: dict[str, Any] = {}
    for _ in words.items("}"):
        key = words.next()
        if key.kind not in ("word", "string"):
            words.fail_at(key, f"expected the name of an attribute, found {key.text!r}")
        words.expect("=")
        found[json.loads(key.text) if key.kind == "string" else key.text] = _value(words)
    return DictAttrs(found)


def _value(words: Words) -> Any:
    """A number, string, bool or list of them; lists of lists have a stack of their own."""
    open_lists: list[list[Any]] = []
    while True:
        if words.take("["):
            open_lists.append([])
            if not words.take("]"):
                continue
            value: Any = tuple(open_lists.pop())
        else:
            value = _plain_value(words)
        while open_lists:
            open_lists[-1].append(value)
            if words.take(","):
                break
            words.expect("]")
            value = tuple(open_lists.pop())
        else:
            return value


def _plain_value(words: Words) -> Any:
    sign = -1 if words.take("-") else 1
    word = words.next()
    if word.kind == "number":
        if word.text.isdigit():
            return sign * int(word.text)
        return sign * float(word.text.removesuffix("f64").removesuffix("f"))
    if word.kind == "string" and sign > 0:
        return json.loads(word.text)
    if word.text not in ("True", "False"):
        words.fail_at(word, f"{word.text!r} is no value of an attribute")
    return word.text == "True"
