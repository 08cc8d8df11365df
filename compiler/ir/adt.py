"""References, constructors and Match: never produced by an ONNX import."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.expr import Expr, Function, Let, Var
from compiler.ir.ty import GlobalTypeVar, Type, TypeVar
from compiler.ir.walk import post_order


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RefCreate(Expr):
    """A new mutable cell."""

    value: Expr

    def operands(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RefRead(Expr):
    """The value in a cell."""

    ref: Expr

    def operands(self) -> tuple[Expr, ...]:
        return (self.ref,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RefWrite(Expr):
    """Store into a cell; the result is the unit value."""

    ref: Expr
    value: Expr

    def operands(self) -> tuple[Expr, ...]:
        return (self.ref, self.value)


REF_WORDS: dict[str, type[Expr]] = {"ref": RefCreate, "ref_read": RefRead, "ref_write": RefWrite}
"""Word of the text → what it makes of its operands."""
REF_WORD_OF = {kind: word for word, kind in REF_WORDS.items()}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Constructor(Expr):
    """A constructor of an algebraic data type; usable as a call target."""

    name_hint: str
    inputs: tuple[Type, ...]
    belong_to: GlobalTypeVar
    tag: int = -1


@dataclass(frozen=True, slots=True)
class TypeData(Type):
    """Definition of an algebraic data type."""

    header: GlobalTypeVar
    type_vars: tuple[TypeVar, ...]
    constructors: tuple[Constructor, ...]


class Pattern:
    """Base of match patterns."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False)
class PatternWildcard(Pattern):
    """Matches anything, binds nothing."""


@dataclass(frozen=True, slots=True, eq=False)
class PatternVar(Pattern):
    """Matches anything and binds it."""

    var: Var


@dataclass(frozen=True, slots=True, eq=False)
class PatternConstructor(Pattern):
    """Matches a value built by ``constructor`` whose fields match."""

    constructor: Constructor
    patterns: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PatternTuple(Pattern):
    """Matches a tuple field by field."""

    patterns: tuple[Pattern, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Clause:
    """``lhs => rhs``."""

    lhs: Pattern
    rhs: Expr


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Match(Expr):
    """The first clause whose pattern matches ``data``."""

    data: Expr
    clauses: tuple[Clause, ...]
    complete: bool = True

    def operands(self) -> tuple[Expr, ...]:
        return (self.data, *(c.rhs for c in self.clauses))


def pattern_vars(pattern: Pattern) -> tuple[Var, ...]:
    """Variables a match pattern binds, left to right."""
    found: list[Var] = []
    stack = [pattern]
    while stack:
        top = stack.pop()
        if isinstance(top, PatternVar):
            found.append(top.var)
        elif isinstance(top, (PatternConstructor, PatternTuple)):
            stack.extend(reversed(top.patterns))
    return tuple(found)


BINDERS = frozenset((Function, Let, Match))
"""Kinds of nodes that bind variables."""


def binders_of(node: Expr) -> tuple[Var, ...]:
    """Variables that ``node`` itself binds: params, the let variable, match variables."""
    if isinstance(node, Function):
        return node.params
    if isinstance(node, Let):
        return (node.var,)
    if isinstance(node, Match):
        return tuple(v for clause in node.clauses for v in pattern_vars(clause.lhs))
    return ()


def free_vars(root: Expr) -> list[Var]:
    """Variables used but not bound inside ``root``, in order of first occurrence (post-order)."""
    bound: set[Var] = set()
    used: dict[Var, None] = {}
    for node in post_order(root):
        if type(node) is Var:
            used[node] = None
        elif type(node) in BINDERS:
            bound.update(binders_of(node))
    return [v for v in used if v not in bound]
