"""Tokens of Relay text, and the errors that point into it."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, NoReturn, TypeVar

from compiler.errors import ParseError, nearest
from compiler.ir.text.literals import DOTTED_TEXT, IDENT_TEXT
from compiler.ir.ty import MAX_NESTING
from compiler.span import ANONYMOUS, Span

T = TypeVar("T")

QUOTED = r'"(?:[^"\\\n]|\\.)*+"'

_KINDS = (
    ("line_comment", r"//[^\n]*"),
    ("blank", r"\Z"),
    ("comment", r"/\*"),
    ("version", r"#\[\s*version\s*=[^\]]*\]"),
    ("metadata", r"#\[\s*metadata\s*\]"),
    # The definition of a lowered function is one token: its language is not Relay's. It ends with
    # the first line that starts with a brace.
    ("lowered", rf"@(?:{QUOTED}|{IDENT_TEXT}) *= *[a-z]+ *\("),
    ("temp", r"%[0-9]+"),
    ("local", rf"%(?:{QUOTED}|{IDENT_TEXT})"),
    ("global", rf"@(?:{QUOTED}|{IDENT_TEXT})"),
    ("number", r"(?:inf|nan)f(?:16|32|64)?\b|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?:[fi]\d*)?"),
    ("projection", r"\.\d+"),
    ("string", QUOTED),
    ("word", DOTTED_TEXT),
    ("mark", r"->|=>|==|!=|<=|>=|[-(){}\[\],;:=<>+*/?]"),
    ("unknown", r"."),
)
_ANY = "|".join(f"(?P<{kind}>{pattern})" for kind, pattern in _KINDS)
# A comment without an edge inside, such as all types are, is skipped as blanks are. One, and no
# group that repeats: possessive ones with ways in them keep on Python 3.11.2 what one of these has
# read in vain, others remember every comment.
_SKIPPED = r"[ \t\r\n]*+(?:/\*[^*/]*+\*/[ \t\r\n]*+)?"
_TOKEN = re.compile(rf"{_SKIPPED}(?:{_ANY})")
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_RARE = frozenset(("blank", "line_comment", "lowered", "comment", "metadata", "unknown"))
"""Kinds that are not one token."""

MAX_NUMBER = 64
"""Characters of a number; the shortest text of any value has fewer than 30."""
MAX_WORD = 1 << 16
"""Characters of a name or string."""
_MAX_LENGTH = dict.fromkeys(("number", "projection", "temp"), MAX_NUMBER) | dict.fromkeys(
    ("local", "global", "word", "string"), MAX_WORD
)


class Token(NamedTuple):
    """A piece of text: its kind, the text itself, and the offset where it starts."""

    kind: str
    text: str
    start: int

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.start + len(self.text)


class Source:
    """A text with a name: offsets to lines and columns, both counted from 1."""

    def __init__(self, text: str, name: str = ANONYMOUS) -> None:
        self.text = text
        self.name = name
        self._starts = [0, *(m.end() for m in re.finditer("\n", text)), len(text) + 1]
        self._line = 1

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column; quick for offsets of one line after the other."""
        line = self._line
        starts = self._starts
        if not starts[line - 1] <= offset < starts[line]:
            line = self._line = min(bisect.bisect_right(starts, offset), len(starts) - 1)
        return line, offset - starts[line - 1] + 1

    def span(self, start: int, end: int) -> Span:
        """The span between two offsets."""
        line, column = self.position(start)
        end_line, end_column = self.position(end)
        return Span(self.name, line, end_line, column, end_column)

    def error(
        self,
        offset: int,
        what: str,
        *,
        fix: str | None = None,
        word: str | None = None,
        legal: Sequence[str] = (),
    ) -> NoReturn:
        """Raise a ParseError with line and caret; ``word`` asks for its nearest legal names."""
        line, column = self.position(offset)
        start = self._starts[line - 1]
        shown = self.text[start:].split("\n", 1)[0]
        close = nearest(word, legal) if word is not None else []
        if close:
            fix = f"did you mean {', '.join(close)}?"
        # Long lines are cut around the place, so that the caret stays on the screen.
        first = max(0, column - 80)
        caret = " " * (column - 1 - first) + "^"
        raise ParseError(
            f"{line}:{column}: {what}\n    {shown[first : column + 60]}\n    {caret}",
            where=f"{self.name}:{line}:{column}",
            fix=fix,
        )


def tokenize(source: Source) -> tuple[list[Token], str]:
    """Tokens without comments, ending with one of kind "end", and the text of the metadata section.

    Raises:
        ParseError: a character that starts no token, a comment that does not end, or a number or
            name that is too long.
    """
    text = source.text
    tokens: list[Token] = []
    # what NamedTuple does, without a call more
    append = tokens.append
    new = tuple.__new__
    at = 0
    metadata = ""
    while at < len(text):
        for found in _TOKEN.finditer(text, at):
            kind = found.lastgroup or ""
            start, at = found.span(kind)
            if kind in _RARE:
                break
            if at - start > MAX_NUMBER and at - start > (limit := _MAX_LENGTH.get(kind, at)):
                source.error(start, f"a {kind} of more than {limit} characters")
            append(new(Token, (kind, text[start:at], start)))
        if kind == "lowered":
            end = text.find("\n}", at)
            if end < 0:
                source.error(start, "this definition has no end", fix="close it with a line of }")
            at = end + 2
            append(Token(kind, text[start:at], start))
        elif kind == "comment":
            at = _comment_end(source, start)
        elif kind == "metadata":
            metadata = text[at:]
            at = len(text)
        elif kind == "unknown":
            source.error(start, f"unexpected character {text[start]!r}")
    append(Token("end", "", tokens[-1].end if tokens else 0))
    return tokens, metadata


def _comment_end(source: Source, start: int) -> int:
    """Offset after a comment that may hold others."""
    depth = 1
    at = start + 2
    while depth:
        edge = _COMMENT_EDGE.search(source.text, at)
        if edge is None:
            source.error(start, "this comment has no end", fix="close it with */")
        depth += 1 if edge.group() == "/*" else -1
        at = edge.end()
    return at


class TokenStream:
    """Tokens with one position; every ``expect`` names what it wanted."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.tokens, self.metadata = tokenize(source)
        self.at = 0
        self._depth = 0

    @property
    def token(self) -> Token:
        """The current token."""
        return self.tokens[self.at]

    def peek(self, ahead: int = 1) -> Token:
        """A token further on; the last one beyond the end."""
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def next(self) -> Token:
        """The current token; go on to the next."""
        token = self.tokens[self.at]
        if token.kind != "end":
            self.at += 1
        return token

    def is_mark(self, text: str) -> bool:
        """True when the current token is this mark or word."""
        token = self.tokens[self.at]
        return token.text == text and token.kind in ("mark", "word")

    def take(self, text: str) -> bool:
        """Go past this mark or word if it is here."""
        found = self.is_mark(text)
        self.at += found
        return found

    def items(self, close: str) -> Iterator[None]:
        """Once for each item in front of the mark ``close``, which is taken; a comma stands behind
        each but the last, which may have one.

        Raises:
            ParseError: something else stands behind an item.
        """
        while not self.take(close):
            yield
            if not self.is_mark(close):
                self.expect(",")

    def expect(self, text: str) -> Token:
        """The mark or word ``text``.

        Raises:
            ParseError: something else stands here.
        """
        if not self.is_mark(text):
            self.fail(f"expected {text!r}, found {self.shown()}")
        return self.next()

    def expect_kind(self, kind: str, what: str) -> Token:
        """A token of a kind; ``what`` names it in the error.

        Raises:
            ParseError: something else stands here.
        """
        if self.token.kind != kind:
            self.fail(f"expected {what}, found {self.shown()}")
        return self.next()

    @contextmanager
    def nested(self, what: str) -> Iterator[None]:
        """One level further inside ``what``.

        Raises:
            ParseError: that is deeper than MAX_NESTING.
        """
        self._depth += 1
        if self._depth > MAX_NESTING:
            self.fail(f"{what} is nested more than {MAX_NESTING} deep")
        yield
        self._depth -= 1

    def nested_items(self, close: str, what: str, parse: Callable[[], T]) -> tuple[T, ...]:
        """Return the results of ``parse`` for each of the ``items``, one level further inside
        ``what``."""
        found: list[T] = []
        for _ in self.items(close):
            with self.nested(what):
                found.append(parse())
        return tuple(found)

    def shown(self) -> str:
        """The current token as errors show it."""
        if self.token.kind != "end":
            return repr(self.token.text)
        return "the end of the text"

    def fail(self, what: str, *, fix: str | None = None) -> NoReturn:
        """Raise a ParseError at the current token."""
        self.source.error(self.token.start, what, fix=fix)
