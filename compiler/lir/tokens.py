"""Tokens of the text of loops, with positions in the module they stand in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, NoReturn

from compiler.ir.text.lexer import QUOTED, Source
from compiler.ir.text.literals import DOTTED_TEXT

_KINDS = (
    ("skip", r"[ \t\r\n]+|//[^\n]*"),
    ("number", r"(?:(?:inf|nan)f(?:16|64)?|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:[fiu]\d*)?)(?![\w.])"),
    ("word", DOTTED_TEXT),
    ("string", QUOTED),
    ("mark", r"->|\|>|\|\||&&|<<|>>|==|!=|<=|>=|[-(){}\[\],;:=<>+*/|&^]"),
)
_TOKEN = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS))


class Word(NamedTuple):
    """A piece of text: its kind, the text itself, and where it starts in the module."""

    kind: str
    text: str
    start: int


class Words:
    """The tokens between two offsets of a module's text, read from left to right.

    Raises:
        ParseError: a character that starts no token.
    """

    def __init__(self, source: Source, start: int, end: int) -> None:
        self.source = source
        self.at = 0
        self._words: list[Word] = []
        place = start
        while place < end:
            found = _TOKEN.match(source.text, place, end)
            if found is None:
                source.error(place, f"unexpected character {source.text[place]!r}")
            kind = found.lastgroup or ""
            if kind != "skip":
                self._words.append(Word(kind, found[0], place))
            place = found.end()
        self._words.append(Word("end", "", end))

    def peek(self, ahead: int = 0) -> Word:
        """A token that has not been taken; the last one stands for all behind it."""
        return self._words[min(self.at + ahead, len(self._words) - 1)]

    def take(self) -> Word:
        """The next token."""
        word = self.peek()
        self.at += 1
        return word

    def accept(self, text: str) -> bool:
        """Take the next token if it is this mark or word."""
        word = self.peek()
        if word.text != text or word.kind == "string":
            return False
        self.at += 1
        return True

    def items(self, close: str) -> Iterator[None]:
        """Once for each item in front of the mark ``close``, which is taken, a comma between them.

        Raises:
            ParseError: no comma stands there.
        """
        if self.accept(close):
            return
        yield
        while not self.accept(close):
            self.expect(",")
            yield

    def expect(self, text: str) -> Word:
        """Take this mark or word.

        Raises:
            ParseError: something else stands here.
        """
        word = self.peek()
        if not self.accept(text):
            self.fail(f"expected {text!r}, found {word.text or 'the end'!r}")
        return word

    def expect_kind(self, kind: str, what: str) -> Word:
        """Take a token of this kind.

        Raises:
            ParseError: something else stands here.
        """
        word = self.peek()
        if word.kind != kind:
            self.fail(f"expected {what}, found {word.text or 'the end'!r}")
        return self.take()

    def fail(
        self, what: str, at: Word | None = None, word: str | None = None, legal: Sequence[str] = ()
    ) -> NoReturn:
        """Raise a ParseError at the next token, or at ``at``."""
        place = (at or self.peek()).start
        self.source.error(place, what, word=word, legal=legal)
