"""The text of a condition, ``name(argument, …)``: parsed, never evaluated.

An argument is a number, ``true``, ``false``, ``none``, a quoted or bare word, one of the operators
``== != <= >= in``, or a list of arguments in square brackets.
"""

from __future__ import annotations

import re
from typing import Any

from compiler.errors import HDFGError
from compiler.ir.pass_text import number_or_word

_WORDS = {"true": True, "false": False, "none": None}
_FORM = re.compile(r"\s*([A-Za-z_]\w*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_TOKEN = re.compile(
    r"""\s*(?:(?P<mark>[\[\],]) | "(?P<quoted>[^"]*)" | '(?P<single>[^']*)'
        | (?P<bare>[^\s\[\],"']+))\s*""",
    re.VERBOSE,
)


def split_condition(text: str) -> tuple[str, list[Any]]:
    """``attr(groups, ==, 1)`` → ``("attr", ["groups", "==", 1])``.

    Raises:
        HDFGError: the text is not of this form.
    """
    found = _FORM.fullmatch(text)
    if found is None:
        raise HDFGError(f"{text!r} is no condition", fix="write name, or name(argument, …)")
    name, inside = found.groups()
    return name, [] if inside is None else _arguments(inside, text)


def _arguments(inside: str, text: str) -> list[Any]:
    lists: list[list[Any]] = [[]]
    place, after_value = 0, False
    while place < len(inside):
        token = _TOKEN.match(inside, place)
        if token is None:
            raise _malformed(text, f"{inside[place:]!r} cannot be read")
        place = token.end()
        mark = token["mark"]
        if mark == ",":
            if not after_value:
                raise _malformed(text, "a comma has nothing before it")
            after_value = False
            continue
        if mark == "]":
            if len(lists) == 1:
                raise _malformed(text, "a ] closes nothing")
            closed = lists.pop()
            lists[-1].append(closed)
        elif after_value:
            raise _malformed(text, f"a comma is missing before {token[0].strip()!r}")
        elif mark == "[":
            lists.append([])
            continue
        else:
            lists[-1].append(_value(token))
        after_value = True
    if len(lists) > 1:
        raise _malformed(text, "a [ is not closed")
    return lists[0]


def _value(token: re.Match[str]) -> Any:
    if token["bare"] is None:
        return token["quoted"] if token["quoted"] is not None else token["single"]
    word = token["bare"]
    return _WORDS[word] if word in _WORDS else number_or_word(word)


def _malformed(text: str, why: str) -> HDFGError:
    return HDFGError(
        f"condition {text!r} is malformed: {why}", fix="write name(argument, [list, of, them], …)"
    )
