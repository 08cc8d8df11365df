"""Reads the text that ``compiler.lir.printer`` writes; parse(text(f)) is f.

Scalar expressions are read by operator precedence with explicit stacks, no recursion.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from compiler.errors import LoweringError
from compiler.ir.attrs import NO_ATTRS, DictAttrs
from compiler.ir.lowered_function import Array, register_lowered_parser
from compiler.ir.text.lexer import QUOTED, Source, Token
from compiler.ir.text.literals import IDENT_TEXT
from compiler.ir.text.parser_types import meta_reference
from compiler.ir.ty import DTYPES
from compiler.lir.nodes import COMBINERS, HINTS, Block, Compute, Extern, PrimFunc
from compiler.lir.printer import FLOAT_SUFFIX, INFIX, INT_SUFFIX
from compiler.lir.scalars import (
    BINARY,
    INDEX_DTYPE,
    INTRINSICS,
    UNARY,
    Acc,
    Axis,
    Bin,
    BoolImm,
    Buffer,
    Cast,
    Intrin,
    Load,
    Scalar,
    Scope,
    Select,
    Un,
    literal,
)
from compiler.lir.tokens import Words
from compiler.lir.verify import verify

_LEVEL_OF = {symbol: (op, level) for op, (symbol, level) in INFIX.items()}
_INT_DTYPE = {suffix: dtype for dtype, suffix in INT_SUFFIX.items()}
_FLOAT_DTYPE = {suffix: dtype for dtype, suffix in FLOAT_SUFFIX.items()}
_NUMBER = re.compile(r"(inf|nan|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)((?:[fiu]\d*)?)\Z")
_FUNCTIONS = (*(op for op in BINARY if op not in INFIX), *UNARY, *INTRINSICS, "select", *DTYPES)


@dataclass
class Names:
    """Names of one block, and the values that they stand for."""

    buffers: Mapping[str, Buffer]
    axes: dict[str, Axis] = field(default_factory=dict)
    acc: str | None = None


@dataclass
class _Frame:
    """An open bracket: values and operators since it, and what closes it."""

    opener: Token | None
    name: str
    target: str | None = None
    done: list[Scalar] = field(default_factory=list)
    values: list[Scalar] = field(default_factory=list)
    operators: list[tuple[str, int, Token]] = field(default_factory=list)


def read_scalar(words: Words, names: Names) -> Scalar:
    """The expression at the reading position; stops at what cannot continue it.

    Raises:
        ParseError: no expression, unknown names, or dtypes that do not fit.
    """
    frames = [_Frame(None, "")]
    while True:
        _read_operand(words, names, frames)
        # Everything that may follow a value.
        while True:
            frame = frames[-1]
            word = words.token
            if word.kind == "mark" and word.text in _LEVEL_OF:
                op, level = _LEVEL_OF[word.text]
                _reduce(words, frame, level)
                frame.operators.append((op, level, words.next()))
                break
            _reduce(words, frame, 0)
            if frame.opener is None:
                return frame.values[0]
            frame.done.append(frame.values.pop())
            if words.take(","):
                break
            words.expect("]" if frame.opener.text == "[" else ")")
            frames.pop()
            frames[-1].values.append(_closed(words, names, frame))


def _read_operand(words: Words, names: Names, frames: list[_Frame]) -> None:
    """Push brackets until a value has been read."""
    while True:
        word = words.next()
        if word.text == "(" and word.kind == "mark":
            frames.append(_Frame(word, ""))
            continue
        if word.kind == "number" or (word.text == "-" and words.token.kind == "number"):
            sign = -1 if word.text == "-" else 1
            number = words.next() if sign < 0 else word
            frames[-1].values.append(_number(words, number, sign))
            return
        if word.kind != "word":
            words.fail_at(word, f"expected a value, found {word.text or 'the end'!r}")
        follow = words.token
        if follow.text in ("(", "[") and follow.kind == "mark":
            if _opened(words, names, word, frames):
                return
            continue
        frames[-1].values.append(_named(words, names, word))
        return


def _opened(words: Words, names: Names, word: Token, frames: list[_Frame]) -> bool:
    """Open ``word[`` or ``word(``; True when it was closed at once, as a scalar buffer is."""
    opener = words.next()
    if opener.text == "[":
        if word.text not in names.buffers:
            words.fail_at(word, f"unknown buffer {word.text!r}", word.text, tuple(names.buffers))
        if words.take("]"):
            frames[-1].values.append(Load(names.buffers[word.text], ()))
            return True
        frames.append(_Frame(opener, word.text))
        return False
    if word.text not in _FUNCTIONS:
        words.fail_at(word, f"unknown function {word.text!r}", word.text, _FUNCTIONS)
    target = None
    if word.text == "saturating_cast":
        target = words.expect_kind("word", "a dtype").text
        words.expect(",")
    frames.append(_Frame(opener, word.text, target))
    return False


def _named(words: Words, names: Names, word: Token) -> Scalar:
    if word.text in ("True", "False"):
        return BoolImm(word.text == "True")
    if word.text == "acc" and names.acc is not None:
        return Acc(names.acc)
    if word.text not in names.axes:
        words.fail_at(word, f"unknown loop {word.text!r}", word.text, tuple(names.axes))
    return names.axes[word.text]


def _number(words: Words, word: Token, sign: int) -> Scalar:
    found = _NUMBER.match(word.text)
    assert found is not None
    digits, suffix = found.groups()
    if suffix in _FLOAT_DTYPE:
        return literal(math.copysign(float(digits), sign), _FLOAT_DTYPE[suffix])
    if suffix not in _INT_DTYPE or not digits.isdigit():
        words.fail_at(word, f"{word.text!r} is no number of a known dtype")
    try:
        return literal(sign * int(digits), _INT_DTYPE[suffix])
    except LoweringError as error:
        words.fail_at(word, error.what)


def _reduce(words: Words, frame: _Frame, level: int) -> None:
    """Apply the operators that bind at least as tightly."""
    while frame.operators and frame.operators[-1][1] >= level:
        op, _, word = frame.operators.pop()
        b = frame.values.pop()
        a = frame.values.pop()
        try:
            frame.values.append(Bin(op, a, b))
        except LoweringError as error:
            words.fail_at(word, error.what)


def _closed(words: Words, names: Names, frame: _Frame) -> Scalar:
    assert frame.opener is not None
    args = tuple(frame.done)
    try:
        if frame.opener.text == "[":
            return Load(names.buffers[frame.name], args)
        return _applied(frame.name, args, frame.target)
    except LoweringError as error:
        words.fail_at(frame.opener, error.what)


def _applied(name: str, args: tuple[Scalar, ...], target: str | None) -> Scalar:
    """A function of the text on its arguments; the empty name is a pair of parentheses.

    Raises:
        LoweringError: their number or dtypes do not fit.
    """
    if name in INTRINSICS:
        return Intrin(name, args, target)
    if name == "select":
        count = 3
    elif name in BINARY:
        count = 2
    else:
        count = 1
    if len(args) != count:
        raise LoweringError(f"{name or 'a parenthesis'} takes {count} values, not {len(args)}")
    if name == "":
        return args[0]
    if name in BINARY:
        return Bin(name, args[0], args[1])
    if name in UNARY:
        return Un(name, args[0])
    if name == "select":
        return Select(args[0], args[1], args[2])
    return Cast(name, args[0])


# ---- functions -----------------------------------------------------------------------------------


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
    if name.startswith('"'):
        return str(json.loads(name))
    return name


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
        first = self.words.expect("meta")
        _, index = meta_reference(self.words)
        try:
            return self.constant(index)
        except IndexError:
            self.words.fail_at(first, f"there is no constant {index}")

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
        combiner = None
        init = None
        post = None
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
        depth = 0
        ahead = 1
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
