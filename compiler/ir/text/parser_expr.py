"""Parsing expressions: calls with attributes, literals, infix operators, tuples, references."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from compiler.errors import AttrError
from compiler.ir.adt import REF_WORDS, Constructor
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Call, Constant, Expr, Op, Quant, Tuple, TupleGetItem, Var
from compiler.ir.op import all_ops, has_op
from compiler.ir.text.lexer import Token
from compiler.ir.text.literals import scalar_array
from compiler.ir.text.parser_types import (
    TypeParser,
    ValueParser,
    meta_reference,
    name_of,
    number_parts,
)
from compiler.span import Span

MAX_NESTING = 60

# Relay's infix operators: binding strength and the operator each stands for.
INFIX = {
    "*": (12, "multiply"),
    "/": (12, "divide"),
    "+": (10, "add"),
    "-": (10, "subtract"),
    "<": (8, "less"),
    "<=": (8, "less_equal"),
    ">": (8, "greater"),
    ">=": (8, "greater_equal"),
    "==": (7, "equal"),
    "!=": (7, "not_equal"),
}
SCOPE_WORDS = ("fn", "if", "match", "{")
_ZERO = np.zeros(())
KEYWORDS = ("fn", "if", "match", *REF_WORDS, "meta", "True", "False")


class ExprParser(ABC):
    """Expressions of one definition; what opens a scope is left to BodyParser."""

    def __init__(
        self, types: TypeParser, values: ValueParser, constructors: dict[str, Constructor]
    ) -> None:
        self._stream = values.stream
        self._types = types
        self._values = values
        self._constructors = constructors
        self._temps: dict[str, Expr] = {}
        self._vars: dict[str, Var] = {}
        self._undo: list[tuple[str, Var | None]] = []
        self._depth = 0

    def _span(self, start: int) -> Span:
        at = self._stream.at
        return self._stream.source.span(start, self._stream.tokens[at - 1].end)

    @abstractmethod
    def _nested_scope(self) -> Expr:
        """A function literal, if, match or braced block that stands inside another expression."""

    @abstractmethod
    def _nested_body(self) -> Expr:
        """Lets and their result in parentheses."""

    def expr(self, strength: int = 0) -> Expr:
        """An expression whose infix operators bind tighter than ``strength``."""
        start = self._stream.token.start
        return self._infix(self._postfix(self._atom(), start), start, strength)

    def _infix(self, left: Expr, start: int, strength: int) -> Expr:
        """``left`` with the infix operators that follow it."""
        stream = self._stream
        while (found := INFIX.get(stream.token.text)) and stream.token.kind == "mark":
            level, name = found
            if level <= strength:
                break
            op = self._op(stream.next(), name)
            right = self.expr(level)
            left = Call(op, (left, right), span=self._span(start))
        return left

    def _postfix(self, node: Expr, start: int) -> Expr:
        """``node`` with the calls and tuple indices that follow it."""
        stream = self._stream
        while True:
            if stream.is_mark("("):
                node = self._call(node, start)
            elif stream.token.kind == "projection":
                index = int(stream.next().text[1:])
                node = TupleGetItem(node, index, span=self._span(start))
            elif isinstance(node, (Call, TupleGetItem)) and stream.take(":"):
                node = node.with_fields(quant=self._quant())
            else:
                break
        if isinstance(node, Constructor) and not node.inputs:
            return Call(node, (), span=self._span(start))
        return node

    def _quant(self) -> Quant:
        """``quant(0.5f, 3, 12)``: scale, zero point, bits; a constant of scales along an axis."""
        stream = self._stream
        start = stream.expect("quant").start
        given = self._arguments()
        held = [each for each in given if isinstance(each, Constant)]
        if 0 < len(held) == len(given) < 4:
            known = [each.data for each in held]
        else:
            known = [_ZERO]
        scale, zero, bits = (*known, _ZERO, _ZERO)[:3]
        legal = not zero.ndim and not bits.ndim and float(zero).is_integer()
        legal = legal and float(bits) in (0, *range(9, 17))
        if scale.ndim:
            legal = legal and max(scale.shape) == scale.size and scale.dtype == np.float32
        if not legal or not ((scale > 0) & np.isfinite(scale)).all():
            stream.source.error(
                start,
                "a quant holds a scale, a zero point and 9 to 16 bits",
                fix="a finite number above 0, or a float32 constant of such numbers along one "
                "axis, and integers, such as quant(0.5f, 3) or quant(0.5f, 0, 12)",
            )
        return Quant(held[0] if scale.ndim else float(scale), int(zero), int(bits))

    def _atom(self) -> Expr:
        stream = self._stream
        token = stream.token
        if token.kind == "temp":
            stream.next()
            if token.text not in self._temps:
                self._unbound(token, token.text, list(self._temps))
            return self._temps[token.text]
        if token.kind == "local":
            stream.next()
            name = name_of(stream, token)
            if name not in self._vars:
                self._unbound(token, token.text, [f"%{n}" for n in self._vars])
            return self._vars[name]
        if token.kind == "global":
            stream.next()
            return self._values.names.global_var(name_of(stream, token))
        if token.kind == "number":
            return self._literal("")
        if token.text in SCOPE_WORDS:
            return self._nested_scope()
        if token.kind == "word":
            return self._word()
        if token.text == "-":
            return self._minus()
        if token.text == "(":
            if stream.peek().text == "let":
                return self._nested_body()
            return self._tuple()
        return stream.fail(f"expected an expression, found {stream.shown()}")

    def _unbound(self, token: Token, name: str, legal: list[str]) -> None:
        self._stream.source.error(
            token.start,
            f"{name} is not defined here",
            word=name,
            legal=legal,
            fix="define it above, or declare it with free_var",
        )

    def _literal(self, sign: str) -> Constant:
        stream = self._stream
        token = stream.next()
        digits, suffix = number_parts(stream, token)
        try:
            data = scalar_array(sign + digits, suffix)
        except ValueError as error:
            stream.source.error(token.start, str(error))
        return Constant(data, span=self._span(token.start))

    def _minus(self) -> Expr:
        """Minus signs in a row; the last one belongs to a number that follows it."""
        stream = self._stream
        signs: list[Token] = []
        while stream.is_mark("-"):
            signs.append(stream.next())
        start = stream.token.start
        if stream.token.kind == "number":
            node: Expr = self._literal("-")
            signs.pop()
        else:
            node = self._postfix(self._atom(), start)
        for sign in reversed(signs):
            node = Call(self._op(sign, "negative"), (node,), span=self._span(sign.start))
        return node

    def _word(self) -> Expr:
        stream = self._stream
        token = stream.next()
        word = token.text
        start = token.start
        if word in ("True", "False"):
            return Constant(np.array(word == "True"), span=self._span(start))
        if word == "meta" and stream.is_mark("["):
            found = self._values.names.meta(*meta_reference(stream), token)
            if not isinstance(found, Expr):
                stream.source.error(start, "this metadata is not an expression")
            return found
        if word in REF_WORDS and stream.is_mark("("):
            return self._reference(word, start)
        if word in self._constructors:
            return self._constructors[word]
        return self._op(token, word)

    def _op(self, token: Token, name: str) -> Op:
        if not has_op(name):
            legal = [op.name for op in all_ops()] + [*self._constructors, *KEYWORDS]
            what = f"unknown operator {name!r} (your own is known once it is imported: --import)"
            self._stream.source.error(token.start, what, word=name, legal=legal)
        return Op.get(name)

    def _reference(self, word: str, start: int) -> Expr:
        args = self._arguments()
        wanted = 2 if word == "ref_write" else 1
        if len(args) != wanted:
            self._stream.source.error(start, f"{word} takes {wanted} operands, got {len(args)}")
        return REF_WORDS[word](*args, span=self._span(start))

    def _arguments(self) -> list[Expr]:
        self._stream.expect("(")
        return [self._nested() for _ in self._stream.items(")")]

    def _nested(self) -> Expr:
        return self._deeper(self.expr)

    def _deeper(self, parse: Callable[[], Expr]) -> Expr:
        """Return the result of ``parse``, one level further inside."""
        self._depth += 1
        if self._depth > MAX_NESTING:
            self._stream.fail(
                f"an expression is nested more than {MAX_NESTING} deep",
                fix="name the inner parts with %n = …; lines",
            )
        result = parse()
        self._depth -= 1
        return result

    def _tuple(self) -> Expr:
        """``(a, b)``, ``(a,)``, ``()``, or an expression in parentheses."""
        stream = self._stream
        start = stream.next().start
        fields: list[Expr] = []
        comma = False
        while not stream.take(")"):
            fields.append(self._nested())
            comma = stream.take(",")
            if not comma and not stream.is_mark(")"):
                stream.fail(f"expected ',' or ')', found {stream.shown()}")
        if len(fields) == 1 and not comma:
            return fields[0]
        return Tuple(tuple(fields), span=self._span(start))

    def _call(self, callee: Expr, start: int) -> Call:
        stream = self._stream
        stream.expect("(")
        args: list[Expr] = []
        given: dict[str, Any] = {}
        given_at: dict[str, int] = {}
        for _ in stream.items(")"):
            key = stream.token
            if key.kind in ("word", "string") and stream.peek().text == "=":
                given_at[self._values.attribute(given)] = key.start
            elif given:
                stream.fail("an argument after the first attribute")
            else:
                args.append(self._nested())
        attrs = self._attrs(callee, given, given_at, start)
        return Call(callee, tuple(args), attrs, span=self._span(start))

    def _attrs(
        self, callee: Expr, given: dict[str, Any], given_at: dict[str, int], start: int
    ) -> Attrs | None:
        error = self._stream.source.error
        if not isinstance(callee, Op) or callee.attrs_type is None:
            if given:
                name = callee.name if isinstance(callee, Op) else "this callee"
                first = min(given_at.values())
                error(first, f"{name} takes no attributes, found {', '.join(given)}")
            return None
        try:
            return callee.attrs_type.make(**given)
        except AttrError as problem:
            legal = [f.name for f in dataclasses.fields(callee.attrs_type)]
            wrong = next((key for key in given if key not in legal), None)
            what = f"{callee.name}: {problem.what}"
            at = start if wrong is None else given_at[wrong]
            return error(at, what, fix=problem.fix, word=wrong, legal=legal)
