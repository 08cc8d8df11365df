"""Scalar expressions read from text: operator precedence with explicit stacks, no recursion."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.errors import LoweringError
from compiler.ir.text.lexer import Token
from compiler.ir.ty import DTYPES
from compiler.lir.printer import FLOAT_SUFFIX, INFIX, INT_SUFFIX
from compiler.lir.scalars import (
    BINARY,
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
    Select,
    Un,
    literal,
)
from compiler.lir.tokens import Words

_LEVEL_OF = {symbol: (op, level) for op, (symbol, level) in INFIX.items()}
_INT_DTYPE = {suffix: dtype for dtype, suffix in INT_SUFFIX.items()}
_FLOAT_DTYPE = {suffix: dtype for dtype, suffix in FLOAT_SUFFIX.items()}
_NUMBER = re.compile(r"(inf|nan|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)((?:[fiu]\d*)?)\Z")
_FUNCTIONS = (*(op for op in BINARY if op not in INFIX), *UNARY, *INTRINSICS, "select", *DTYPES)


@dataclass
class Names:
    """What a name stands for in one block."""

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
    if found is None:
        words.fail_at(word, f"{word.text!r} is no number")
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
        b, a = frame.values.pop(), frame.values.pop()
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
    count = 3 if name == "select" else 2 if name in BINARY else 1
    if len(args) != count:
        raise LoweringError(f"{name or 'a parenthesis'} takes {count} values, not {len(args)}")
    if name == "":
        return args[0]
    if name in BINARY:
        return Bin(name, args[0], args[1])
    if name in UNARY:
        return Un(name, args[0])
    return Select(args[0], args[1], args[2]) if name == "select" else Cast(name, args[0])
