"""Reads the text that ``compiler.lir.printer`` writes; parse(text(f)) is f."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from compiler.ir.attrs import NO_ATTRS, DictAttrs
from compiler.ir.lowered_function import Array, register_lowered_parser
from compiler.ir.text.lexer import QUOTED, Source
from compiler.ir.text.literals import IDENT_TEXT
from compiler.ir.ty import DTYPES
from compiler.lir.expression_parser import Names, read_scalar
from compiler.lir.nodes import COMBINERS, HINTS, Block, Compute, Extern, PrimFunc
from compiler.lir.scalars import INDEX_DTYPE, Axis, Buffer, Scalar, Scope
from compiler.lir.tokens import Words
from compiler.lir.verify import verify

_NAME = re.compile(rf"@({QUOTED}|{IDENT_TEXT}) *= *\Z")


def parse_primfunc(text: str, constants: tuple[Array, ...] = ()) -> PrimFunc:
    """One definition on its own, ``@name = primfn(…) … }``.

    Args:
        text: as ``definition`` writes it.
        constants: what ``meta[relay.Constant][i]`` stands for.
    Raises:
        ParseError: no definition, with line, column and caret.
        LoweringError: it breaks a rule of ``verify``.
    """
    source = Source(text)
    start = text.find("primfn")
    if start < 0:
        source.error(0, "expected '@name = primfn(…)'")
    return parse_definition(source, start, len(text.rstrip()), lambda index: constants[index])


def parse_definition(
    source: Source, start: int, end: int, constant: Callable[[int], Array]
) -> PrimFunc:
    """The definition between two offsets of a module's text.

    Args:
        source: the module.
        start: offset of ``primfn``.
        end: offset behind the closing brace.
        constant: the array of ``meta[relay.Constant][i]``.
    Raises:
        ParseError: with line, column and caret.
        LoweringError: the function breaks a rule of ``verify``.
    """
    reader = _Reader(Words(source, start, end), constant)
    func = reader.function(_name_before(source, start))
    verify(func)
    return func


register_lowered_parser("primfn")(parse_definition)


def _name_before(source: Source, start: int) -> str:
    line = source.text.rfind("@", 0, start)
    found = _NAME.match(source.text, max(line, 0), start)
    if found is None:
        return "main"
    name = found[1]
    return str(json.loads(name)) if name.startswith('"') else name


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
    """A number, string, bool or list of them; recurses over their nesting."""
    if not words.take("["):
        return _plain_value(words)
    return words.nested_items("]", "a value", lambda: _value(words))


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


class _Reader:
    """Reads one definition."""

    def __init__(self, words: Words, constant: Callable[[int], Array]) -> None:
        self.words = words
        self.constant = constant
        self.buffers: dict[str, Buffer] = {}

    def function(self, name: str) -> PrimFunc:
        """From ``primfn`` to the closing brace."""
        words = self.words
        words.expect("primfn")
        params = self._declarations("param")
        words.expect("->")
        outputs = self._declarations("out")
        attrs = read_attributes(self.words)
        words.expect("{")
        consts: list[tuple[Buffer, Array]] = []
        temps: list[Buffer] = []
        while words.token.text in ("const", "temp") and words.peek().kind == "word":
            if words.next().text == "temp":
                temps.append(self._declaration("temp"))
            else:
                buffer = self._declaration("const")
                words.expect("=")
                consts.append((buffer, self._meta()))
        blocks: list[Block] = []
        while not words.take("}"):
            blocks.append(self._block())
        if words.token.kind != "end":
            words.fail("expected the end of the function")
        return PrimFunc(name, params, outputs, tuple(temps), tuple(consts), tuple(blocks), attrs)

    def _declarations(self, scope: Scope) -> tuple[Buffer, ...]:
        self.words.expect("(")
        return self.words.nested_items(")", "a list", lambda: self._declaration(scope))

    def _declaration(self, scope: Scope) -> Buffer:
        words = self.words
        name = words.expect_kind("word", "the name of a buffer")
        if name.text in self.buffers:
            words.fail_at(name, f"{name.text} is declared twice")
        words.expect(":")
        dtype = words.expect_kind("word", "a dtype")
        if dtype.text not in DTYPES:
            words.fail_at(dtype, f"unknown dtype {dtype.text!r}", dtype.text, DTYPES)
        words.expect("[")
        shape = words.nested_items("]", "a list", self._size)
        buffer = Buffer(name.text, shape, dtype.text, scope)
        self.buffers[name.text] = buffer
        return buffer

    def _size(self) -> int:
        word = self.words.expect_kind("number", "a size")
        if not word.text.isdigit():
            self.words.fail_at(word, f"{word.text!r} is no size")
        return int(word.text)

    def _meta(self) -> Array:
        words = self.words
        first = words.token
        words.expect("meta")
        words.expect("[")
        if words.take("relay.Constant"):
            words.expect("]")
            words.expect("[")
        index = self._size()
        words.expect("]")
        try:
            return self.constant(index)
        except IndexError:
            words.fail_at(first, f"there is no constant {index}")

    def _block(self) -> Block:
        if self.words.peek().text == "[":
            return self._compute()
        return self._extern()

    def _buffer(self) -> Buffer:
        word = self.words.expect_kind("word", "a buffer")
        buffer = self.buffers.get(word.text)
        if buffer is None:
            self.words.fail_at(
                word, f"unknown buffer {word.text!r}", word.text, tuple(self.buffers)
            )
        return buffer

    def _extern(self) -> Extern:
        words = self.words
        outs = [self._buffer()]
        while words.take(","):
            outs.append(self._buffer())
        words.expect("=")
        words.expect("extern")
        symbol = words.expect_kind("string", "the name of a routine in quotes")
        words.expect("(")
        ins = words.nested_items(")", "a list", self._buffer)
        return Extern(json.loads(symbol.text), ins, tuple(outs), read_attributes(words))

    def _compute(self) -> Compute:
        words = self.words
        out = self._buffer()
        # The loops follow their use: the index is read once they are known.
        index_at = words.at
        self._skip_brackets()
        words.expect("for")
        names = Names(self.buffers)
        axes = self._loops(names, "(", ")")
        hints: list[str] = []
        while words.token.text in HINTS:
            hints.append(words.next().text)
        body_at = words.at
        words.at = index_at
        out_index = self._index(names)
        words.at = body_at
        words.expect("=")
        loops: tuple[Axis, ...] = ()
        combiner, init, post = None, None, None
        if words.token.text in COMBINERS and self._is_reduction():
            combiner = next(c for c in COMBINERS if c == words.token.text)
            words.next()
            words.expect("(")
            init = read_scalar(words, names)
            loops = self._loops(names, ";", ")")
        expr = read_scalar(words, names)
        if init is not None and words.take("|>"):
            index_like = combiner in ("argmax", "argmin")
            acc = INDEX_DTYPE if index_like else init.dtype
            outer = {axis.name: axis for axis in axes}
            post = read_scalar(words, Names(self.buffers, outer, acc))
        return Compute(out, axes, expr, out_index, loops, combiner, init, post, tuple(hints))

    def _is_reduction(self) -> bool:
        """``max(0f; …`` rather than ``max(a, b)``: a semicolon at this depth."""
        depth, ahead = 0, 1
        while self.words.peek(ahead).kind != "end":
            text = self.words.peek(ahead).text
            depth += (text in ("(", "[")) - (text in (")", "]"))
            if depth == 1 and text == ";":
                return True
            if depth == 0:
                return False
            ahead += 1
        return False

    def _skip_brackets(self) -> None:
        words = self.words
        words.expect("[")
        depth = 1
        while depth:
            word = words.next()
            if word.kind == "end":
                words.fail("a bracket is not closed")
            depth += (word.text == "[") - (word.text == "]")

    def _index(self, names: Names) -> tuple[Scalar, ...]:
        self.words.expect("[")
        return self.words.nested_items("]", "a list", lambda: read_scalar(self.words, names))

    def _loops(self, names: Names, opener: str, closer: str) -> tuple[Axis, ...]:
        words = self.words

        def loop() -> Axis:
            name = words.expect_kind("word", "the name of a loop")
            if name.text in names.axes:
                words.fail_at(name, f"two loops are called {name.text}")
            words.expect("<")
            axis = names.axes[name.text] = Axis(name.text, self._size())
            return axis

        words.expect(opener)
        return words.nested_items(closer, "a list", loop)
