"""Reads Relay text 0.0.5 as modules and expressions; skips comments, type comments too.

Raises ParseError with line, column, the line itself and a caret. Source: Relay v0.10, its parser.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from compiler.errors import CompilerError
from compiler.ir.adt import Constructor, TypeData
from compiler.ir.expr import Expr, Function
from compiler.ir.garbage import collector_rests
from compiler.ir.lowered_function import LoweredFunction, lowered_parsers
from compiler.ir.module import IRModule
from compiler.ir.text.lexer import Source, Token, TokenStream
from compiler.ir.text.metadata import Arrays, MetadataReader
from compiler.ir.text.parser_body import BodyParser
from compiler.ir.text.parser_types import Names, TypeParser, ValueParser, name_of
from compiler.ir.text.printer import HEADER, VERSION
from compiler.ir.ty import GlobalTypeVar
from compiler.span import ANONYMOUS

ExternalArrays = str | Path | Arrays


class MissingVersionWarning(UserWarning):
    """A text without ``#[version = …]``: it is read as the current version."""


@collector_rests
def parse(
    text: str, *, source_name: str = ANONYMOUS, external_data: ExternalArrays | None = None
) -> IRModule:
    """A module from text; an expression alone becomes its @main.

    Args:
        text: Relay text.
        source_name: shown in errors and spans, such as the file's name.
        external_data: what ``text(...)`` was given to keep large arrays in.

    Raises:
        ParseError: the text is not a module; unbound or doubly defined names, unknown operators and
            attributes, and bad metadata references are errors too.
    """
    return _ModuleParser(text, source_name, external_data).module()


def parse_expr(
    text: str, *, source_name: str = ANONYMOUS, external_data: ExternalArrays | None = None
) -> Expr:
    """An expression from text; its free variables are declared with ``free_var %x: type;``.

    Raises:
        ParseError: see parse.
    """
    return _ModuleParser(text, source_name, external_data).expression()


class _ModuleParser:
    """Top level: version, type definitions, functions, attributes, metadata."""

    def __init__(self, text: str, source_name: str, external_data: ExternalArrays | None) -> None:
        self.stream = TokenStream(Source(text, source_name))
        self.types = TypeParser(self.stream)
        self.constructors: dict[str, Constructor] = {}
        self.definitions: dict[GlobalTypeVar, TypeData] = {}
        self.functions: dict[str, Function | LoweredFunction] = {}
        self.attrs: dict[str, Any] = {}
        try:
            metadata = MetadataReader(self.stream.metadata, external_data)
        except CompilerError as error:
            self.stream.source.error(len(text) - len(self.stream.metadata), error.what)
        self.names = Names(self.stream.source, metadata)
        self.values = ValueParser(self.stream, self.names)

    def expression(self) -> Expr:
        """The whole text as one expression."""
        self._version(required=False)
        body = BodyParser(self.types, self.values, self.constructors)
        result = body.body()
        if self.stream.token.kind != "end":
            self.stream.fail(f"expected the end of the expression, found {self.stream.shown()}")
        return result

    def module(self) -> IRModule:
        """The whole text as a module."""
        self._version(required=True)
        first = self.stream.token
        if first.kind != "lowered" and first.text not in ("def", "type", "attributes", ""):
            return IRModule.from_expr(self.expression())
        items = self._items()
        for name, _ in items["type"]:
            self.types.headers[name] = GlobalTypeVar(name)
        for _, at in items["type"]:
            self.stream.at = at
            self._type_definition()
        for _, at in items["def"]:
            self.stream.at = at
            self._function()
        for _, at in items["@"]:
            self._lowered(self.stream.tokens[at])
        for _, at in items["attributes"]:
            self.stream.at = at
            self._attributes()
        functions = {self.names.global_var(name): fn for name, fn in self.functions.items()}
        return IRModule(functions, self.definitions, self.attrs)

    def _version(self, *, required: bool) -> None:
        token = self.stream.token
        if token.kind != "version":
            if required:
                warnings.warn(
                    f"the text has no version line; {HEADER} is assumed",
                    MissingVersionWarning,
                    # Past _version, parse and its decorator.
                    stacklevel=5,
                )
            return
        self.stream.next()
        if f'"{VERSION}"' not in token.text:
            self.stream.source.error(
                token.start, f"{token.text} cannot be read", fix=f"this reads {HEADER} only"
            )

    def _items(self) -> dict[str, list[tuple[str, int]]]:
        """Locate each top-level item: kind → (name, token number)."""
        stream = self.stream
        kinds = ("type", "def", "attributes", "@")
        found: dict[str, list[tuple[str, int]]] = {kind: [] for kind in kinds}
        depth = 0
        for at in range(stream.at, len(stream.tokens) - 1):
            kind, text, _ = stream.tokens[at]
            if depth == 0:
                if kind == "word" and text in found:
                    found[text].append((stream.tokens[at + 1].text, at))
                elif kind == "lowered":
                    found["@"].append(("", at))
                elif not self._inside_head(at):
                    stream.at = at
                    stream.fail(f"expected def or type, found {stream.shown()}")
            if kind == "mark":
                depth += (text in "([{") - (text in ")]}")
        return found

    def _inside_head(self, at: int) -> bool:
        """Between an item's keyword and its braces anything goes here; its own parser is strict."""
        before = self.stream.tokens[at - 1] if at else None
        return before is not None and before.text != "}" and before.kind != "version"

    def _type_definition(self) -> None:
        stream = self.stream
        types = self.types
        stream.expect("type")
        token = stream.expect_kind("word", "the name of a type")
        header = types.headers[token.text]
        if header in self.definitions:
            stream.source.error(token.start, f"type {token.text} is defined twice")
        outer = types.variables
        params = types.parameters()
        stream.expect("{")
        constructors: list[Constructor] = []
        for _ in stream.items("}"):
            word = stream.expect_kind("word", "the name of a constructor")
            if word.text in self.constructors:
                stream.source.error(word.start, f"constructor {word.text} is defined twice")
            inputs = types.types_until(")") if stream.take("(") else ()
            con = Constructor(word.text, inputs, header, len(constructors))
            self.constructors[word.text] = con
            constructors.append(con)
        types.variables = outer
        self.definitions[header] = TypeData(header, params, tuple(constructors))

    def _function(self) -> None:
        stream = self.stream
        stream.expect("def")
        token = stream.expect_kind("global", "the name of a function, such as @main")
        name = name_of(stream, token)
        if name in self.functions:
            stream.source.error(token.start, f"@{name} is defined twice")
        self.names.global_var(name)
        body = BodyParser(self.types, self.values, self.constructors)
        self.functions[name] = body.function(token.start)

    def _lowered(self, token: Token) -> None:
        """``@name = primfn(…) {…}``, read by the package that knows its language."""
        head, _, rest = token.text.partition("=")
        keyword = rest.partition("(")[0].strip()
        name = name_of(self.stream, token._replace(text=head.strip()))
        if keyword not in lowered_parsers:
            self.stream.source.error(
                token.start,
                f"unknown kind of definition {keyword!r}",
                word=keyword,
                legal=("def", *lowered_parsers.names()),
            )
        if name in self.functions:
            self.stream.source.error(token.start, f"@{name} is defined twice")
        self.names.global_var(name)

        def constant(index: int) -> Any:
            return self.names.meta("relay.Constant", index, token).data

        start = token.start + token.text.index(keyword, len(head))
        parse_definition = lowered_parsers.require(keyword)
        self.functions[name] = parse_definition(self.stream.source, start, token.end, constant)

    def _attributes(self) -> None:
        stream = self.stream
        stream.expect("attributes")
        stream.expect("{")
        for _ in stream.items("}"):
            self.values.attribute(self.attrs)
