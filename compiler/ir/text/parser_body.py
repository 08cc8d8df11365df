"""Parsing one definition: lines, scopes, functions, patterns.

Lines are loops, and scopes that open at the start of a line or of a result, as the printer writes
them, run on a stack of their own; only what is nested inside an expression recurses.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from compiler.ir.adt import (
    Clause,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
)
from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import Expr, Function, If, Let, Var
from compiler.ir.text.nested_scopes import drive
from compiler.ir.text.parser_expr import SCOPE_WORDS, ExprParser
from compiler.ir.text.parser_types import name_of
from compiler.ir.ty import Type
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.span import Span

Steps = Generator["Steps", Expr, Expr]


class _LetLine(NamedTuple):
    var: Var
    value: Expr
    span: Span


class BodyParser(ExprParser):
    """Expressions of one definition: temporaries in one flat table, variables in nested scopes."""

    def _define(self, name: str, var: Var) -> None:
        self._undo.append((name, self._vars.get(name)))
        self._vars[name] = var

    def _leave(self, mark: int) -> None:
        while len(self._undo) > mark:
            name, before = self._undo.pop()
            if before is None:
                del self._vars[name]
            else:
                self._vars[name] = before

    def body(self) -> Expr:
        """Lines and the result of a scope, up to its closing brace or the end of the text."""
        return drive(self._body())

    def function(self, start: int) -> Function:
        """``[A](%x: T, key=value) -> R {…}`` after ``fn`` or ``def @name`` at offset ``start``."""
        result = drive(self._function(start))
        assert isinstance(result, Function)
        return result

    def _nested_scope(self) -> Expr:
        return self._deeper(lambda: drive(self._scoped()))

    def _nested_body(self) -> Expr:
        """``(let %x = …; …)``."""
        self._stream.expect("(")
        result = self._deeper(self.body)
        self._stream.expect(")")
        return result

    def _at_scope(self) -> bool:
        return self._stream.token.text in SCOPE_WORDS

    def _scoped(self) -> Steps:
        """Parse the scope that the current word opens."""
        token = self._stream.token
        if token.text == "{":
            return (yield self._block())
        self._stream.next()
        handlers = {"fn": self._function, "if": self._if, "match": self._match}
        return (yield handlers[token.text](token.start))

    def _value(self) -> Steps:
        """An expression whose first word opens a scope."""
        start = self._stream.token.start
        node = yield self._scoped()
        return self._infix(self._postfix(node, start), start, 0)

    def _block(self) -> Steps:
        self._stream.expect("{")
        result = yield self._body()
        self._stream.expect("}")
        return result

    def _body(self) -> Steps:
        stream = self._stream
        mark = len(self._undo)
        lets: list[_LetLine] = []
        while True:
            token = stream.token
            if token.kind == "temp" and stream.peek().text == "=":
                stream.at += 2
                if self._at_scope():
                    value = yield self._value()
                else:
                    value = self.expr()
                stream.expect(";")
                self._temps[token.text] = value
            elif token.kind == "word" and token.text == "let":
                lets.append((yield from self._let()))
            elif token.kind == "word" and token.text == "free_var":
                self._free_var()
            else:
                if self._at_scope():
                    result = yield self._value()
                else:
                    result = self.expr()
                if not stream.take(";"):
                    break
                lets.append(_LetLine(Var("_"), result, self._span(token.start)))  # ``e1; e2``
        self._leave(mark)
        for line in reversed(lets):
            result = Let(line.var, line.value, result, span=line.span)
        return result

    def _let(self) -> Generator[Steps, Expr, _LetLine]:
        stream = self._stream
        start = stream.next().start
        name, var = self._binder()
        stream.expect("=")
        recursive = stream.is_mark("fn")
        if recursive:
            self._define(name, var)
        if self._at_scope():
            value = yield self._value()
        else:
            value = self.expr()
        stream.expect(";")
        if not recursive:
            self._define(name, var)
        return _LetLine(var, value, self._span(start))

    def _free_var(self) -> None:
        self._stream.next()
        name, var = self._binder()
        self._stream.expect(";")
        # Free variables belong to the whole definition: no scope takes them back.
        self._vars[name] = var

    def _binder(self) -> tuple[str, Var]:
        """``%x {virtual_device=…}: T`` where a variable is bound."""
        stream = self._stream
        token = stream.expect_kind("local", "a variable, such as %x")
        name = name_of(stream, token)
        device: VirtualDevice = UNCONSTRAINED
        if stream.is_mark("{") and stream.peek().text == "virtual_device":
            stream.at += 2
            stream.expect("=")
            device = self._values.parse()
            stream.expect("}")
        annotation: Type | None = self._types.parse() if stream.take(":") else None
        var = Var(name, annotation, span=self._span(token.start), virtual_device=device)
        return name, var.with_fields(quant=self._quant() if stream.take(":") else None)

    def _function(self, start: int) -> Steps:
        stream = self._stream
        types = self._types
        outer = types.variables
        mark = len(self._undo)
        type_params = types.parameters()
        stream.expect("(")
        params: dict[str, Var] = {}
        attrs: dict[str, Any] = {}
        for _ in stream.items(")"):
            token = stream.token
            if token.kind == "local":
                name, var = self._binder()
                if name in params:
                    stream.source.error(token.start, f"parameter %{name} is defined twice")
                params[name] = var
            elif token.kind in ("word", "string"):
                self._values.attribute(attrs)
            else:
                stream.fail(f"expected a parameter or an attribute, found {stream.shown()}")
        for name, var in params.items():
            self._define(name, var)
        device: VirtualDevice = attrs.pop("virtual_device", UNCONSTRAINED)
        if not isinstance(device, VirtualDevice):
            stream.source.error(start, "virtual_device of a function must name a device")
        ret_type = types.parse() if stream.take("->") else None
        body = yield self._block()
        self._leave(mark)
        types.variables = outer
        return Function(
            tuple(params.values()),
            body,
            ret_type,
            type_params,
            DictAttrs(attrs),
            span=self._span(start),
            virtual_device=device,
        )

    def _if(self, start: int) -> Steps:
        self._stream.expect("(")
        cond = self._nested()
        self._stream.expect(")")
        yes = yield self._block()
        self._stream.expect("else")
        no = yield self._block()
        return If(cond, yes, no, span=self._span(start))

    def _match(self, start: int) -> Steps:
        stream = self._stream
        complete = not stream.take("?")
        data = self._nested()
        stream.expect("{")
        clauses: list[Clause] = []
        for _ in stream.items("}"):
            mark = len(self._undo)
            pattern = self._pattern()
            stream.expect("=>")
            # Braces may be left out around a clause, as in TVM's own texts.
            rhs = (yield self._value()) if self._at_scope() else self.expr()
            clauses.append(Clause(pattern, rhs))
            self._leave(mark)
        return Match(data, tuple(clauses), complete, span=self._span(start))

    def _pattern(self) -> Pattern:
        """Recurses over the nesting of the pattern."""
        stream = self._stream
        if stream.take("_"):
            return PatternWildcard()
        if stream.token.kind == "local":
            name, var = self._binder()
            self._define(name, var)
            return PatternVar(var)
        if stream.take("("):
            return PatternTuple(self._patterns())
        token = stream.expect_kind("word", "a pattern")
        if token.text not in self._constructors:
            stream.source.error(
                token.start,
                f"unknown constructor {token.text!r}",
                word=token.text,
                legal=list(self._constructors),
            )
        parts = self._patterns() if stream.take("(") else ()
        return PatternConstructor(self._constructors[token.text], parts)

    def _patterns(self) -> tuple[Pattern, ...]:
        return self._stream.nested_items(")", "a pattern", self._pattern)
