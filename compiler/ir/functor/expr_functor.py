"""ExprFunctor: dispatch on the kind of an expression, and nothing else.

``visit(expr, *args)`` calls ``visit_<kind>(expr, *args)``. The subclasses in this folder add a
traversal and a memo. Source: Relay v0.10 expr_functor.h.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, ClassVar, Generic, TypeVar

from compiler.errors import DeepGraphError
from compiler.ir.adt import Constructor, Match, RefCreate, RefRead, RefWrite
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    TempExpr,
    Tuple,
    TupleGetItem,
    Var,
)

R = TypeVar("R")

KIND_NAMES: dict[type, str] = {
    Var: "var",
    GlobalVar: "global_var",
    Constant: "constant",
    Tuple: "tuple",
    TupleGetItem: "tuple_getitem",
    Call: "call",
    Function: "function",
    Let: "let",
    If: "if",
    Op: "op",
    RefCreate: "ref_create",
    RefRead: "ref_read",
    RefWrite: "ref_write",
    Constructor: "constructor",
    Match: "match",
}
"""Every kind of expression with the word used in handler names."""

WALKED = frozenset((Call, Tuple, TupleGetItem, Let))
"""Kinds that visitors and mutators walk with a stack of their own."""

Handler = Callable[..., Any]


def handler_table(
    cls: type, prefix: str, kinds: Mapping[type, str] = KIND_NAMES
) -> dict[type, Handler]:
    """Kind → the method ``<prefix><kind>`` of ``cls``; kinds without such a method are left out."""
    found = ((kind, getattr(cls, prefix + name, None)) for kind, name in kinds.items())
    return {kind: handler for kind, handler in found if handler is not None}


def walks(cls: type, base: type) -> bool:
    """Return whether a subclass of ``base`` overrides no handler of the kinds WALKED."""
    names = [f"visit_{KIND_NAMES[kind]}" for kind in WALKED]
    return all(getattr(cls, name) is getattr(base, name) for name in names)


class KindFunctor(Generic[R]):
    """``visit(item, *args)`` calls the handler of the item's kind, or visit_default."""

    kinds: ClassVar[Mapping[type, str]]
    """Kind → the word used in the name of its handler."""
    noun: ClassVar[str]
    """Word for the visited items, for errors."""
    _handlers: ClassVar[dict[type, Handler]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._handlers = handler_table(cls, "visit_", cls.kinds)

    def visit(self, item: Any, *args: Any) -> R:
        """The handler's answer for ``item``."""
        handler = self._handlers.get(type(item))
        result: R = (
            self.visit_default(item, *args) if handler is None else handler(self, item, *args)
        )
        return result

    def __call__(self, item: Any, *args: Any) -> R:
        """``visit``, as Relay calls a functor."""
        return self.visit(item, *args)

    def visit_default(self, item: Any, *args: Any) -> R:
        """Return the result for a kind without a handler.

        Raises:
            NotImplementedError: always, naming the kind and the class.
        """
        raise NotImplementedError(
            f"{self.noun} kind {type(item).__name__} not handled by {type(self).__name__}"
        )


class ExprFunctor(KindFunctor[R]):
    """A dispatch table from expression kinds to handlers returning ``R``."""

    kinds = KIND_NAMES
    noun = "Expr"

    def visit(self, expr: Expr, *args: Any) -> R:
        """The handler's answer for ``expr``."""
        return self.dispatch(expr, *args)

    def dispatch(self, expr: Expr, *args: Any) -> R:
        """Call the handler of this kind of expression.

        Raises:
            DeepGraphError: handlers that visit their operands used up the interpreter's stack.
        """
        handler = self._handlers.get(type(expr))
        if handler is None:
            if isinstance(expr, TempExpr):
                return self.visit_temp(expr, *args)
            return self.visit_default(expr, *args)
        try:
            result: R = handler(self, expr, *args)
        except RecursionError:
            what = f"{type(self).__name__} recursed through a graph deeper than the stack"
            raise _too_deep(what, expr) from None
        return result

    def visit_temp(self, expr: TempExpr, *args: Any) -> R:
        """A temporary expression where none may be.

        Raises:
            NotImplementedError: always; the pass that made the expression has ended.
        """
        raise NotImplementedError(
            f"TempExpr {type(expr).__name__} outside its pass, met by {type(self).__name__}"
        )


class MemoizedFunctor(ExprFunctor[R]):
    """An ExprFunctor that handles each node once; the memo is keyed by identity."""

    def __init__(self) -> None:
        self.memo: dict[Expr, R] = {}

    def visit(self, expr: Expr, *args: Any) -> R:
        """The answer given for this very node before, or the handler's."""
        if expr in self.memo:
            return self.memo[expr]
        result = self.dispatch(expr, *args)
        self.memo[expr] = result
        return result


_LEVELS_BETWEEN_CHECKS = 8
_STACK_SHARE = 0.8


class DepthGuard:
    """Notices in time that natural recursion is about to exhaust the interpreter's stack."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.depth = 0

    def enter(self, expr: Expr) -> None:
        """One level deeper; the caller pairs it with ``leave`` in a finally clause.

        Raises:
            DeepGraphError: more than 0.8 of the recursion limit is in use.
        """
        self.depth += 1
        if self.depth % _LEVELS_BETWEEN_CHECKS:
            return
        frames = _stack_depth()
        if frames > _STACK_SHARE * sys.getrecursionlimit():
            depth = self.depth
            self.depth = self.depth - 1
            what = f"{self.owner} recursed through {depth} nested expressions"
            raise _too_deep(f"{what}, {frames} stack frames", expr)

    def leave(self) -> None:
        """Back from one level."""
        self.depth -= 1


def _too_deep(what: str, expr: Expr) -> DeepGraphError:
    return DeepGraphError(
        what,
        where=f"at a {type(expr).__name__}",
        fix="use MixedModeVisitor or MixedModeMutator, which keep a stack of their own",
        span=expr.span,
    )


def _stack_depth() -> int:
    frame: FrameType | None = sys._getframe(1)
    count = 0
    while frame is not None:
        count += 1
        frame = frame.f_back
    return count
