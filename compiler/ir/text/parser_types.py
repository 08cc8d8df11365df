"""Parsing types and attribute values."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from compiler.errors import CompilerError
from compiler.ir.expr import GlobalVar
from compiler.ir.text.lexer import Source, Token, TokenStream
from compiler.ir.text.literals import DTYPE_OF_SUFFIX
from compiler.ir.text.metadata import CONSTANT, MetadataReader
from compiler.ir.ty import (
    DTYPES,
    Dim,
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeVar,
)
from compiler.ir.ty import Any as AnyDim

_BARE_DTYPES = {"int": "int32", "uint": "uint32", "float": "float32"}
"""A dtype without bits has 32, as in Relay."""
_NUMBER = re.compile(r"(?P<digits>inf|nan|[-+.0-9]+(?:[eE][+-]?\d+)?)(?P<suffix>[fi]\d*)?\Z")


class TypeParser:
    """Types, with the type variables and data types in scope.

    Args:
        stream: tokens, shared with the parser of expressions.
    """

    def __init__(self, stream: TokenStream) -> None:
        self.stream = stream
        self.headers: dict[str, GlobalTypeVar] = {}
        self.variables: dict[str, TypeVar] = {}

    def parameters(self) -> tuple[TypeVar, ...]:
        """``[A, B]``: new type variables, in scope until the caller restores ``variables``."""
        if not self.stream.take("["):
            return ()
        made = []
        for _ in self.stream.items("]"):
            name = self.stream.expect_kind("word", "the name of a type parameter").text
            made.append(TypeVar(name))
            self.variables = {**self.variables, name: made[-1]}
        return tuple(made)

    def parse(self) -> Type:
        """One type; recurses over its nesting."""
        stream = self.stream
        if stream.take("("):
            return TupleType(self.types_until(")"))
        token = stream.expect_kind("word", "a type")
        word = token.text
        if word == "_":
            return IncompleteType()
        if word == "Tensor" and stream.is_mark("["):
            return self._tensor()
        if (dtype := _BARE_DTYPES.get(word, word)) in DTYPES:
            return TensorType((), dtype)
        if word == "ref" and stream.take("("):
            with stream.nested("a type"):
                inner = self.parse()
            stream.expect(")")
            return RefType(inner)
        if word == "fn":
            return self._function()
        if word in self.variables:
            return self.variables[word]
        if word in self.headers:
            args = self.types_until("]") if stream.take("[") else ()
            return TypeCall(self.headers[word], args)
        legal = ["Tensor", "fn", "ref", *DTYPES, *self.variables, *self.headers]
        return stream.source.error(token.start, f"unknown type {word!r}", word=word, legal=legal)

    def types_until(self, close: str) -> tuple[Type, ...]:
        """Types separated by commas up to the mark ``close``, which is taken."""
        return self.stream.nested_items(close, "a type", self.parse)

    def _tensor(self) -> TensorType:
        stream = self.stream
        stream.expect("[")
        stream.expect("(")
        shape = tuple([self._dim() for _ in stream.items(")")])
        stream.expect(",")
        token = stream.expect_kind("word", "a dtype")
        dtype = _BARE_DTYPES.get(token.text, token.text)
        if dtype not in DTYPES:
            stream.source.error(token.start, f"unknown dtype {dtype!r}", word=dtype, legal=DTYPES)
        stream.expect("]")
        return TensorType(shape, dtype)

    def _dim(self) -> Dim:
        stream = self.stream
        if stream.take("?"):
            return AnyDim()
        token = stream.expect_kind("number", "a dimension (a number or ?)")
        value, _ = number_parts(stream, token)
        if not value.isdigit():
            stream.source.error(token.start, f"a dimension must be an integer, found {token.text}")
        return int(value)

    def _function(self) -> FuncType:
        outer = self.variables
        params = self.parameters()
        self.stream.expect("(")
        args = self.types_until(")")
        self.stream.expect("->")
        with self.stream.nested("a type"):
            result = self.parse()
        self.variables = outer
        return FuncType(args, result, params)


def number_parts(stream: TokenStream, token: Token) -> tuple[str, str]:
    """Digits and suffix ("" for none) of a number token.

    Raises:
        ParseError: the suffix names no dtype.
    """
    found = _NUMBER.match(token.text)
    suffix = (found.group("suffix") or "") if found else "?"
    if found is None or suffix not in DTYPE_OF_SUFFIX:
        stream.source.error(
            token.start,
            f"{token.text!r} is not a number",
            fix="write 42, 42i16, 42i64, 3f, 3f16, 3f64, inff or nanf",
        )
    digits = found.group("digits")
    if suffix.startswith("i") and not digits.isdigit():
        stream.source.error(token.start, f"{token.text!r} is not an integer")
    if not suffix and not digits.isdigit():
        suffix = "f"
    return digits, suffix


class Names:
    """Functions and metadata of a module by name; it keeps no parser, as parsers keep it."""

    def __init__(self, source: Source, metadata: MetadataReader) -> None:
        self._source = source
        self._metadata = metadata
        self._globals: dict[str, GlobalVar] = {}

    def global_var(self, name: str) -> GlobalVar:
        """The one GlobalVar of this name."""
        return self._globals.setdefault(name, GlobalVar(name))

    def meta(self, kind: str, index: int, token: Token) -> Any:
        """Object of a metadata reference; the same object every time."""
        try:
            return self._metadata.get(kind, index, self._attr_values)
        except CompilerError as error:
            return self._source.error(token.start, error.what, fix=error.fix)

    def _attr_values(self, fields: dict[str, str]) -> dict[str, Any]:
        """Values of an attribute record kept in the metadata as text."""
        found = {}
        for key, text in fields.items():
            stream = TokenStream(Source(text, f"metadata field {key}"))
            found[key] = ValueParser(stream, self).parse()
        return found


class ValueParser:
    """Attribute values: numbers, strings, lists, maps, globals and metadata."""

    def __init__(self, stream: TokenStream, names: Names) -> None:
        self.stream = stream
        self.names = names

    def parse(self) -> Any:
        """One value; recurses over its nesting."""
        stream = self.stream
        token = stream.token
        if token.kind == "number" or stream.is_mark("-"):
            return self._number()
        stream.next()
        if token.kind == "string":
            return unquote(stream, token)
        if token.kind == "global":
            return self.names.global_var(name_of(stream, token))
        if token.kind == "word":
            if token.text in _CONSTANTS:
                return _CONSTANTS[token.text]
            if token.text == "meta":
                return self.names.meta(*meta_reference(stream), token)
            return token.text
        if token.text in ("[", "("):
            close = "]" if token.text == "[" else ")"
            return stream.nested_items(close, "a value", self.parse)
        if token.text == "{":
            return self._map()
        return stream.source.error(token.start, f"expected a value, found {token.text!r}")

    def attribute(self, given: dict[str, Any]) -> str:
        """``key=value``, which ``given`` takes; the key."""
        stream = self.stream
        token = stream.next()
        if token.kind not in ("string", "word"):
            stream.source.error(token.start, f"expected an attribute name, found {token.text!r}")
        if token.kind == "string":
            key = unquote(stream, token)
        else:
            key = token.text
        if key in given:
            stream.source.error(token.start, f"attribute {key} is given twice")
        stream.expect("=")
        given[key] = self.parse()
        return key

    def _number(self) -> int | float:
        sign = -1 if self.stream.take("-") else 1
        token = self.stream.expect_kind("number", "a number")
        digits, suffix = number_parts(self.stream, token)
        if suffix.startswith("f"):
            # The suffix of an attribute says nothing: attribute floats are doubles.
            real = float(digits)
            if math.isinf(real) and digits != "inf":
                self.stream.source.error(token.start, f"{digits} does not fit float64")
            return sign * real
        whole = sign * int(digits)
        if not -(1 << 63) <= whole < 1 << 64:
            self.stream.source.error(token.start, f"{whole} does not fit 64 bits")
        return whole

    def _key(self) -> Any:
        """A quoted key, or the name of a function."""
        token = self.stream.token
        if token.kind == "global":
            return self.names.global_var(name_of(self.stream, self.stream.next()))
        return unquote(self.stream, self.stream.expect_kind("string", "a quoted key"))

    def _map(self) -> dict[Any, Any]:
        found: dict[Any, Any] = {}
        for _ in self.stream.items("}"):
            key = self._key()
            self.stream.expect("=")
            with self.stream.nested("a value"):
                found[key] = self.parse()
        return found


_CONSTANTS = {"True": True, "False": False, "None": None}


def meta_reference(stream: TokenStream) -> tuple[str, int]:
    """``[kind][index]`` after ``meta``, or ``[index]`` of a constant."""
    stream.expect("[")
    kind = CONSTANT
    if stream.token.kind != "number":
        kind = stream.expect_kind("word", "a kind of metadata, such as relay.Constant").text
        stream.expect("]")
        stream.expect("[")
    token = stream.expect_kind("number", "the number of a metadata entry")
    if not token.text.isdigit():
        stream.source.error(token.start, f"a metadata number is expected, found {token.text!r}")
    stream.expect("]")
    return kind, int(token.text)


def unquote(stream: TokenStream, token: Token) -> str:
    """Contents of a string token.

    Raises:
        ParseError: an escape JSON does not know.
    """
    try:
        value: str = json.loads(token.text, strict=False)
    except json.JSONDecodeError as error:
        stream.source.error(token.start, f"bad string: {error}")
    return value


def name_of(stream: TokenStream, token: Token) -> str:
    """Name after ``%`` or ``@``, without quotes."""
    name = token.text[1:]
    if not name.startswith('"'):
        return name
    return unquote(stream, token._replace(text=name))
