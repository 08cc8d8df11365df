"""Types of match patterns, and the cases a complete match leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from compiler.errors import TypeInferenceError
from compiler.ir.adt import (
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    TypeData,
)
from compiler.ir.expr import Var
from compiler.ir.inference.solver import TypeSolver, instantiate
from compiler.ir.ty import FuncType, TupleType, Type, TypeCall, TypeVar

Definitions = Callable[[str], TypeData]

MAX_LISTED_CASES = 5


def constructor_type(constructor: Constructor, data: TypeData) -> FuncType:
    """``fn [A](inputs) -> T[A]`` of a constructor of the type ``data``."""
    return FuncType(
        tuple(constructor.inputs), TypeCall(data.header, data.type_vars), data.type_vars
    )


def type_pattern(
    pattern: Pattern,
    ty: Type,
    solver: TypeSolver,
    definitions: Definitions,
    bind_var: Callable[[Var, Type], None],
) -> None:
    """Unify a pattern with the type of what it is matched against; variables go to ``bind_var``.

    Raises:
        TypeInferenceError: wrong constructor, wrong number of fields.
    """
    stack: list[tuple[Pattern, Type]] = [(pattern, ty)]
    while stack:
        top, expected = stack.pop()
        if isinstance(top, PatternVar):
            bind_var(top.var, expected)
        elif isinstance(top, PatternTuple):
            fields = tuple(solver.hole() for _ in top.patterns)
            solver.unify(TupleType(fields), expected)
            stack.extend(zip(reversed(top.patterns), reversed(fields)))
        elif isinstance(top, PatternConstructor):
            con = top.constructor
            data = definitions(con.belong_to.name_hint)
            mapping: dict[TypeVar, Type] = {v: solver.hole() for v in data.type_vars}
            solver.unify(TypeCall(data.header, tuple(mapping.values())), expected)
            if len(con.inputs) != len(top.patterns):
                raise TypeInferenceError(
                    f"pattern {con.name_hint} has {len(top.patterns)} fields, "
                    f"the constructor has {len(con.inputs)}"
                )
            inputs = [instantiate(t, mapping) for t in con.inputs]
            stack.extend(zip(reversed(top.patterns), reversed(inputs)))


def missing_cases(match: Match, definitions: Definitions) -> list[str]:
    """Printed patterns of values that no clause of ``match`` takes, at most a few."""
    rows = [(clause.lhs,) for clause in match.clauses]
    return [row[0] for row, _ in zip(_missing(rows, 1, definitions), range(MAX_LISTED_CASES))]


def _missing(
    rows: Sequence[Sequence[Pattern]], width: int, definitions: Definitions
) -> Iterator[tuple[str, ...]]:
    """Vectors of ``width`` patterns that no row matches (Maranget's usefulness).

    Recurses over the nesting of the patterns as written, never over the graph.
    """
    if width == 0:
        if not rows:
            yield ()
        return
    heads = [row[0] for row in rows if not isinstance(row[0], (PatternWildcard, PatternVar))]
    if not heads:
        for rest in _missing([row[1:] for row in rows], width - 1, definitions):
            yield ("_", *rest)
        return
    head = heads[0]
    if isinstance(head, PatternTuple):
        size = len(head.patterns)
        inner = [(*_spread(row[0], size), *row[1:]) for row in rows]
        for case in _missing(inner, size + width - 1, definitions):
            yield (f"({', '.join(case[:size])}{',' if size == 1 else ''})", *case[size:])
        return
    assert isinstance(head, PatternConstructor)
    for con in definitions(head.constructor.belong_to.name_hint).constructors:
        size = len(con.inputs)
        inner = [
            (*_spread(row[0], size), *row[1:])
            for row in rows
            if not isinstance(row[0], PatternConstructor)
            or row[0].constructor.name_hint == con.name_hint
        ]
        for case in _missing(inner, size + width - 1, definitions):
            fields = f"({', '.join(case[:size])})" if size else ""
            yield (con.name_hint + fields, *case[size:])


def _spread(pattern: Pattern, size: int) -> tuple[Pattern, ...]:
    if isinstance(pattern, (PatternConstructor, PatternTuple)):
        return pattern.patterns
    return (PatternWildcard(),) * size
