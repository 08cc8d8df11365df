"""Tokens of the text of loops, with positions in the module they stand in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NoReturn

from compiler.ir.text.lexer import QUOTED, Source, Token, TokenStream
from compiler.ir.text.literals import DOTTED_TEXT

_KINDS: Final = (
    ("skip", r"[ \t\r\n]+|//[^\n]*"),
    ("number", r"(?:(?:inf|nan)f(?:16|64)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:[fiu]\d*)?)(?![\w.])"),
    ("word", DOTTED_TEXT),
    ("string", QUOTED),
    ("mark", r"->|\|>|\|\||&&|<<|>>|==|!=|<=|>=|[-(){}\[\],;:=<>+*/|&^]"),
)
_TOKEN: Final = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS))


class Words(TokenStream):
    """The tokens between two offsets of a module's text.

    Raises:
        ParseError: a character that starts no token.
    """

    def __init__(self, source: Source, start: int, end: int) -> None:
        super().__init__(Source(""))  # none of Relay's
        self.source = source
        self.tokens = []
        while start < end:
            found = _TOKEN.match(source.text, start, end)
            if found is None:
                source.error(start, f"unexpected character {source.text[start]!r}")
            kind = found.lastgroup or ""
            if kind != "skip":
                self.tokens.append(Token(kind, found[0], start))
            start = found.end()
        self.tokens.append(Token("end", "", end))

    def fail_at(
        self, at: Token, what: str, word: str | None = None, legal: Sequence[str] = ()
    ) -> NoReturn:
        """Raise a ParseError at a token."""
        self.source.error(at.start, what, word=word, legal=legal)
